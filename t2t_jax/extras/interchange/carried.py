"""The one check of whether a format can hold a model, which names what the format lacks.

A format lists the fields of the config that it carries, each with the values that it can hold. A
field that is not listed has to have the value that changes nothing, with which runs were trained
before the field existed. So an option that is added to the config, or a value that is added to an
option, is refused by every format until the format lists it.

A field that exported files need not hold is declared as such (`config.checks`): `NOT_EXPORTED`, or
`read_where` other fields have certain values.
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
"""The values that a format can hold, by the path of the field: `{"model.norm": ("layer",)}`; `ANY`
stands for all values. The name of a section, such as "decoding", stands for all of its fields."""

ANY = None
"""The mark for every value of a field; for named values, as of `model.position`, list them."""

_SECTIONS = "model", "data", "decoding"


def refuse_other_models(name: str, form: Any, model: PortableModel) -> None:
    """Refuse a model with an option or a vocabulary that the form of a format does not carry."""
    carried, found = form.carried(model.config), []
    for path, leaf, value in walk(model.config):
        section = path.partition(".")[0]
        is_read = leaf.metadata.get("read_where", lambda _: True)(getattr(model.config, section))
        if section not in _SECTIONS or section in carried or not is_read:
            continue
        values = carried.get(path, (leaf.default,) if leaf.metadata.get("exported", True) else ANY)
        if values is not ANY and value not in values:
            found.append(f"{path}={quote(value)} in place of {' or '.join(map(repr, values))}")
    if not isinstance(model.vocabulary, form.VOCABULARIES):
        kinds = " or ".join(kind.__name__ for kind in form.VOCABULARIES)
        found.append(f"a {type(model.vocabulary).__name__} in place of a {kinds}")
    if found:
        raise UserError(
            f"{name} cannot have this model, which has {' and '.join(found)}; export it "
            "--to safetensors, or use a model without"
        )


def any_value(section: str, *names: str) -> Carried:
    """Return some fields of a section, each with every value."""
    return {f"{section}.{name}": ANY for name in names}


SEARCH: Carried = {
    **any_value("decoding", "beam_size", "length_penalty", "max_extra_length", "min_length"),
    **any_value("decoding", "temperature", "top_k", "top_p"),
    **any_value("decoding", "no_repeat_ngram_size", "forbidden_ids"),
    "decoding.beam_rule": ("paper", "transformers"),
}
"""The settings of a search that other engines have too, with their possible values."""


def fields_of_transformers(model: ModelConfig) -> Carried:
    """Return the fields that every model of the library transformers can hold.

    In transformers, heads have the width d_model / num_heads, and the target embedding is the
    output projection too.
    """
    width, heads = (None, model.d_model / model.num_heads), (None, model.num_heads)
    sizes = "d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers"
    is_shared = len(set(model.embeddings.values())) == 1
    return {
        **any_value("model", *sizes, "norm_epsilon", "share_embeddings", "scale_embeddings"),
        **dict.fromkeys(("model.d_k", "model.d_v"), width),
        "model.num_kv_heads": heads,
        **{f"model.{part}_heads": heads for part in PARTS},
        "model.feed_forward": tuple(ACTIVATIONS),
        "model.share_target_embedding": ANY if is_shared else (True,),
    }
