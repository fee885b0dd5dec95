"""Check that an export format can hold a model, and name the options that the format lacks.

A format lists the config fields that it can hold, each with its allowed values. All other fields
must have their default values, so every format refuses new config fields until it lists them. Two
marks in `config.checks` exempt a field: `NOT_EXPORTED`, and `read_where` if its condition fails.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from t2t_jax.config import ModelConfig
from t2t_jax.config.config import walk
from t2t_jax.config.model import PARTS
from t2t_jax.errors import UserError, quote
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.pretrained import ACTIVATIONS

Carried: TypeAlias = Mapping[str, Collection[Any] | None]
"""The allowed values of each config field, by the path of the field: `{"model.norm": ("layer",)}`.
`ANY` allows every value. A key that names a section, such as "decoding", allows all its fields."""

ANY = None
"""Allow every value of a field. For a field of named values, such as `model.position`, list the
names instead, so that the format refuses names that are added later."""

_SECTIONS = "model", "data", "decoding"


def refuse_other_models(name: str, form: Any, model: PortableModel) -> None:
    """Raise a `UserError` if a format cannot hold the config or the vocabulary of a model.

    Args:
      form: implementation of the format; see `interchange.formats`.
    """
    carried, faults = form.carried(model.config), []
    for path, leaf, value in walk(model.config):
        section = path.partition(".")[0]
        is_read = leaf.metadata.get("read_where", lambda _: True)(getattr(model.config, section))
        if section not in _SECTIONS or section in carried or not is_read:
            continue
        choices = carried.get(path, (leaf.default,) if leaf.metadata.get("exported", True) else ANY)
        if choices is not ANY and value not in choices:
            faults.append(f"{path}={quote(value)} in place of {' or '.join(map(repr, choices))}")
    if not isinstance(model.vocabulary, form.VOCABULARIES):
        class_names = " or ".join(kind.__name__ for kind in form.VOCABULARIES)
        faults.append(f"a {type(model.vocabulary).__name__} in place of a {class_names}")
    if faults:
        raise UserError(
            f"{name} cannot hold this model, which has {' and '.join(faults)}; export it with "
            "--to safetensors, or change the model"
        )


def any_value(section: str, *names: str) -> Carried:
    """Return a mapping from each field SECTION.NAME to `ANY`: the format can hold every value."""
    return {f"{section}.{name}": ANY for name in names}


SEARCH: Carried = {
    **any_value("decoding", "beam_size", "length_penalty", "max_extra_length", "min_length"),
    **any_value("decoding", "temperature", "top_k", "top_p"),
    **any_value("decoding", "no_repeat_ngram_size", "forbidden_ids"),
    "decoding.beam_rule": ("paper", "transformers"),
}
"""The decoding fields that other programs support, with the allowed values."""


def fields_of_transformers(model: ModelConfig) -> Carried:
    """Return the model fields that every model class of Hugging Face transformers can hold."""
    # transformers fixes the head width and ties the target embedding to the output projection.
    widths, head_counts = (None, model.d_model / model.num_heads), (None, model.num_heads)
    size_fields = "d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers"
    is_shared = len(set(model.embeddings.values())) == 1
    return {
        **any_value("model", *size_fields, "norm_epsilon", "share_embeddings", "scale_embeddings"),
        **dict.fromkeys(("model.d_k", "model.d_v"), widths),
        "model.num_kv_heads": head_counts,
        **{f"model.{part}_heads": head_counts for part in PARTS},
        "model.feed_forward": tuple(ACTIVATIONS),
        "model.share_target_embedding": ANY if is_shared else (True,),
    }
