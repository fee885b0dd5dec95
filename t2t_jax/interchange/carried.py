"""What of a model a format carries: anything else is refused by its name, and here alone.

A format lists the fields of the config that it carries, each with the values that it has a place
for. A field that is not listed has to have the value that changes nothing, with which runs were
trained before there was the field. So an option that is added to the config, or a value that is
added to an option, is refused by every format until the format lists it.

A field of which no file has to know says so where it is declared: `NOT_EXPORTED`, or `read_where`
other fields have certain values (`config.fields`).
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from t2t_jax.config import ModelConfig
from t2t_jax.config.config import walk
from t2t_jax.errors import UserError
from t2t_jax.interchange.portable import PortableModel

Carried: TypeAlias = Mapping[str, Collection[Any] | None]
"""The values that a format has a place for, by the path of the field: `{"model.norm": ("layer",)}`;
`ANY` of them. The name of a section, such as "decoding", stands for all of its fields."""

ANY = None
"""Every value of a field. A field with named values, such as `model.position`, has them listed."""

_SECTIONS = "model", "data", "decoding"


def refuse_other_models(name: str, form: Any, model: PortableModel) -> None:
    """Refuse a model with an option or a vocabulary that a format does not carry.

    Args:
      name: the name of the format.
      form: its module, with `carried` and `VOCABULARIES`.
      model: the model.

    Raises:
      UserError: the format does not carry the model; everything that it lacks is named.
    """
    carried, found = form.carried(model.config), []
    for path, leaf, value in walk(model.config):
        section = path.partition(".")[0]
        is_read = leaf.metadata.get("read_where", lambda _: True)(getattr(model.config, section))
        if section not in _SECTIONS or section in carried or not is_read:
            continue
        unchanging = leaf.metadata.get("before", leaf.default)
        values = carried.get(path, (unchanging,) if leaf.metadata.get("exported", True) else ANY)
        if values is not ANY and value not in values:
            found.append(f"{path}={value!r} in place of {' or '.join(map(repr, values))}")
    if not isinstance(model.vocabulary, form.VOCABULARIES):
        kinds = " or ".join(kind.__name__ for kind in form.VOCABULARIES)
        found.append(f"a {type(model.vocabulary).__name__} in place of a {kinds}")
    if found:
        raise UserError(
            f"{name} cannot have this model, which has {' and '.join(found)}; export it "
            "--to safetensors, or use a model without"
        )


def any_value(section: str, *names: str) -> Carried:
    """Some fields of a section with every value.

    Args:
      section: the name of the section.
      names: the names of the fields.
    """
    return {f"{section}.{name}": ANY for name in names}


def common_search() -> Carried:
    """The settings of a search for which other engines have a counterpart."""
    sampling = "temperature", "top_k", "top_p"
    return {
        **any_value("decoding", "beam_size", "length_penalty", "max_extra_length", *sampling),
        **any_value("decoding", "min_length", "no_repeat_ngram_size", "forbidden_ids"),
        "decoding.beam_rule": ("paper", "transformers"),
    }


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
