"""The formats M2M100, mBART and BART of transformers, and the facts in which they differ."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from t2t_jax.config import Config
from t2t_jax.data.vocabularies.framed import FramedVocabulary
from t2t_jax.extras.interchange import pretrained
from t2t_jax.extras.interchange.carried import ANY, SEARCH, Carried, fields_of_transformers
from t2t_jax.extras.interchange.portable import PortableModel

EPSILON = 1e-5
"""The epsilon that the norms of these models add to the variance."""
FIRST_POSITION = 2
"""The position of the first token, where positions are sinusoids."""


@dataclass(frozen=True)
class Seq2SeqFormat:
    """A class of encoder-decoders in transformers."""

    VOCABULARIES: ClassVar = (FramedVocabulary,)

    model_type: str
    """The value of `model_type` in config.json."""
    model_class: str
    """The class in transformers."""
    norm_order: Literal["pre", "post"]
    """Where the norms are; with "pre", a stack ends with one more."""
    has_table: bool = True
    """Whether positions are learned, embeddings normalised and logits biased, as in BART; if not,
    positions are sinusoids."""
    starts_with_end: bool = True
    """Whether a target starts with the end of a sentence, unless the files say otherwise; if not,
    it starts with the mark of its language."""
    has_languages: bool = True
    """Whether an entry of the vocabulary says what language a text is in."""

    @property
    def fields(self) -> pretrained.Counterparts:
        """Return the fields of config.json that stand for fields of ours."""
        if self.has_table:
            return pretrained.encoder_decoder_fields("gelu")
        return pretrained.encoder_decoder_fields("relu", scaled=True, attention_dropout=0.1)

    @property
    def fixed(self) -> dict[str, bool]:
        """Return options with the only value of each that transformers computes with."""
        tied, is_pre = {"tie_word_embeddings": True}, self.norm_order == "pre"
        norms = {"normalize_before": is_pre, "add_final_layer_norm": is_pre}
        of_bart = {"normalize_embedding": True, "static_position_embeddings": False, **norms}
        return {**tied, **of_bart} if self.has_table else tied

    @property
    def model_fields(self) -> dict[str, Any]:
        """Return the fields of our config that all models of the format share."""
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
            **fields_of_transformers(config.model),
            **SEARCH,
            **{name: (value,) for name, value in self.model_fields.items()},
            "model.max_positions": ANY,
            "model.architecture": ("encoder_decoder",),
            "model.start_token": ("begin", "end"),
        }

    def read(
        self, path: Path, *, source_language: str | None = None, target_language: str | None = None
    ) -> PortableModel:
        """Read a model for two of its languages; see `read_seq2seq`."""
        # It imports this module.
        from t2t_jax.extras.interchange.seq2seq.reading import read_seq2seq

        return read_seq2seq(path, self, source_language, target_language)

    def write(self, model: PortableModel, directory: Path) -> None:
        """Write a model as `save_pretrained` does."""
        from t2t_jax.extras.interchange.seq2seq.writing import write_seq2seq

        write_seq2seq(model, self, directory)


M2M100 = Seq2SeqFormat("m2m_100", "M2M100ForConditionalGeneration", "pre", has_table=False)
MBART = Seq2SeqFormat("mbart", "MBartForConditionalGeneration", "pre", starts_with_end=False)
BART = Seq2SeqFormat("bart", "BartForConditionalGeneration", "post", has_languages=False)
