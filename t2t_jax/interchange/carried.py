"""What of a config a format carries: any other option of a model is refused by its name.

A format lists the fields that it carries, each with the values that it has a place for. A field
that is not listed has to have the value that changes nothing, with which runs were trained before
there was the field. So an option that is added to the config is refused by every format until the
format lists it.

Refused are options that change what a trained model computes, or how an output is chosen. Those of
training alone, and those that only say how the work is laid out, are none of these.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from t2t_jax.config import Config, ModelConfig
from t2t_jax.config.config import walk
from t2t_jax.errors import UserError

Carried: TypeAlias = Mapping[str, Collection[Any] | None]
"""The values that a format has a place for, by the path of the field: `{"model.norm": ("layer",)}`;
`ANY` of them. The name of a section, such as "decoding", stands for all of its fields."""

ANY = None
"""Every value of a field."""

_SECTIONS = "model", "data", "decoding"
_OF_TRAINING = {
    *("model.dropout_rate", "model.attention_dropout_rate", "model.activation_dropout_rate"),
    *("data.corpus", "data.source_language", "data.target_language", "data.documents"),
    *("data.text_rows", "data.masked_share", "data.whole_words", "data.image_resize"),
    *("data.image_shift", "data.image_flip", "data.max_length", "data.batching"),
    *("data.source_tokens_per_step", "data.target_tokens_per_step", "data.cache_dir"),
    "data.prefetch",
}
_IN_THE_VOCABULARY = {"data.vocab_size", "data.protected_tokens"}
_OF_THE_WORK = {
    *("model.compute_dtype", "decoding.quantize", "decoding.tokens_per_batch"),
    *("decoding.max_source_length", "decoding.long_lines"),  # lines are split ahead of the model
}


def refuse_other_options(name: str, config: Config, carried: Carried) -> None:
    """Refuse a model with an option that a format does not carry.

    Args:
      name: the name of the format.
      config: the config of the model.
      carried: what the format carries.

    Raises:
      UserError: the model has such an option; all of them are named.
    """
    found = [
        f"{path}={value!r} in place of {' or '.join(map(repr, values))}"
        for path, value, values in _bounded(config, carried)
        if value not in values
    ]
    if found:
        raise UserError(
            f"{name} cannot have this model, which has {' and '.join(found)}; export it "
            "--to safetensors, or use a model without"
        )


def _bounded(config: Config, carried: Carried) -> list[tuple[str, Any, Collection[Any]]]:
    """Each field whose values are bounded, with its value and those that are carried."""
    nothing = _OF_TRAINING | _IN_THE_VOCABULARY | _OF_THE_WORK | _unread(config.model)
    bounded = []
    for path, leaf, value in walk(config):
        section = path.partition(".")[0]
        if section not in _SECTIONS or section in carried or path in nothing:
            continue
        values = carried.get(path, (_unchanging(leaf),))
        if values is not ANY:
            bounded.append((path, value, values))
    return bounded


def _unchanging(leaf: "dataclasses.Field[Any]") -> Any:
    """The value of a field that leaves a model as it was before there was the field."""
    return leaf.metadata.get("before", leaf.default)


def _unread(model: ModelConfig) -> set[str]:
    """The fields that a network with these options does not read."""
    rotary = "rotary_base", "rotary_scale", "rotary_scaling"
    conditions = {
        **dict.fromkeys(rotary, model.position == "rotary"),
        "max_positions": model.position == "learned" and model.patch_size is None,
        "first_position": model.position.startswith("sinusoidal"),
        "image_size": model.patch_size is not None,
        "image_channels": model.patch_size is not None,
        "num_encoder_layers": model.architecture != "decoder_only",
        "num_decoder_layers": model.architecture != "encoder_only",
        "start_token": model.architecture != "encoder_only",
    }
    return {f"model.{name}" for name, is_read in conditions.items() if not is_read}


def any_value(section: str, *names: str) -> Carried:
    """Some fields of a section with every value.

    Args:
      section: the name of the section.
      names: the names of the fields.
    """
    return {f"{section}.{name}": ANY for name in names}


def common_search() -> Carried:
    """The settings of a search for which other engines have a counterpart."""
    return any_value(
        "decoding",
        *("beam_size", "beam_rule", "length_penalty", "max_extra_length", "min_length"),
        *("temperature", "top_k", "top_p", "no_repeat_ngram_size", "forbidden_ids"),
    )


def sizes_of_transformers(model: ModelConfig) -> Carried:
    """The sizes that every model of the library transformers carries.

    Args:
      model: the config of a model: heads there have the width d_model / num_heads.
    """
    width, heads = (None, model.d_model / model.num_heads), (None, model.num_heads)
    sizes = "d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers"
    return {
        **any_value("model", *sizes, "norm_epsilon"),
        **dict.fromkeys(("model.d_k", "model.d_v"), width),
        "model.num_kv_heads": heads,
        **{f"model.{stack}_heads": heads for stack in ("encoder", "decoder", "cross")},
    }


def tied_output(model: ModelConfig) -> Carried:
    """Embeddings, of which that of targets is the output projection too.

    Args:
      model: the config of a model.
    """
    return {
        "model.share_embeddings": ANY,
        "model.share_target_embedding": ANY if model.share_embeddings else (True,),
    }
