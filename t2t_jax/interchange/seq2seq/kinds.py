"""The facts in which kinds of encoder-decoders of transformers differ; `forms` has the kinds."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from t2t_jax.config import Config
from t2t_jax.interchange import pretrained
from t2t_jax.interchange.carried import (
    Carried,
    any_value,
    common_search,
    sizes_of_transformers,
)

EPSILON = 1e-5
"""The epsilon that the norms of these models add to the variance."""
FIRST_POSITION = 2
"""The position of the first token, where positions are sinusoids."""


class Kind(NamedTuple):
    """A kind of encoder-decoder in transformers."""

    model_type: str
    """The name of the kind in config.json."""
    model_class: str
    """The class in transformers."""
    fields: pretrained.Counterparts
    """The fields of config.json that stand for fields of ours."""
    fixed: Mapping[str, Any]
    """Options with the only value of each that transformers computes with."""
    norm_order: Literal["pre", "post"]
    """Where the norms are; with "pre", a stack ends with one more."""
    has_table: bool
    """Whether positions are learned, embeddings normalised and logits biased, as in BART; if not,
    positions are sinusoids."""
    starts_with_end: bool
    """Whether a target starts with the end of a sentence, unless the files say otherwise; if not,
    it starts with the mark of its language."""
    has_languages: bool
    """Whether an entry of the vocabulary says what language a text is in."""

    @property
    def model_fields(self) -> dict[str, Any]:
        """Return the fields of our config that all models of the kind have alike."""
        return {
            "model.attention_bias": True,
            "model.norm_epsilon": EPSILON,
            "model.norm_order": self.norm_order,
            "model.position": "learned" if self.has_table else "sinusoidal_t2t",
            "model.first_position": 0 if self.has_table else FIRST_POSITION,
            "model.embedding_norm": self.has_table,
            "model.output_bias": self.has_table,
            "model.share_embeddings": True,
        }

    def carried(self, config: Config) -> Carried:
        """Return the fields of a config that the format can hold, each with its values."""
        return {
            **sizes_of_transformers(config.model),
            **common_search(),
            **{name: (value,) for name, value in self.model_fields.items()},
            **any_value("model", "scale_embeddings", "max_positions"),
            "model.architecture": ("encoder_decoder",),
            "model.feed_forward": tuple(pretrained.ACTIVATIONS),
            "model.start_token": ("begin", "end"),
        }
