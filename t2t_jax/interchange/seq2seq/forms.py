"""The formats M2M100, mBART and BART of transformers, each as one row of facts."""

from pathlib import Path

from t2t_jax.data.vocabularies.framed import FramedVocabulary
from t2t_jax.interchange import pretrained
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.seq2seq.kinds import Kind
from t2t_jax.interchange.seq2seq.reading import read_seq2seq
from t2t_jax.interchange.seq2seq.writing import write_seq2seq


class Seq2SeqFormat(Kind):
    """A kind of encoder-decoder with what `interchange.formats` asks of a format."""

    VOCABULARIES = (FramedVocabulary,)

    def read(
        self,
        path: Path,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> PortableModel:
        """Read a model for two of its languages; see `read_seq2seq`."""
        return read_seq2seq(path, self, source_language, target_language)

    def write(self, model: PortableModel, directory: Path) -> None:
        """Write a model as `save_pretrained` does."""
        write_seq2seq(model, self, directory)


_COMMON = {"is_decoder": False, "tie_word_embeddings": True}
_OF_BART = {**_COMMON, "normalize_embedding": True, "static_position_embeddings": False}

M2M100 = Seq2SeqFormat(
    "m2m_100",
    "M2M100ForConditionalGeneration",
    pretrained.encoder_decoder_fields("relu", scaled=True, attention_dropout=0.1),
    _COMMON,
    norm_order="pre",
    has_table=False,
    starts_with_end=True,
    has_languages=True,
)
MBART = Seq2SeqFormat(
    "mbart",
    "MBartForConditionalGeneration",
    pretrained.encoder_decoder_fields("gelu"),
    {**_OF_BART, "normalize_before": True, "add_final_layer_norm": True},
    norm_order="pre",
    has_table=True,
    starts_with_end=False,
    has_languages=True,
)
BART = Seq2SeqFormat(
    "bart",
    "BartForConditionalGeneration",
    pretrained.encoder_decoder_fields("gelu"),
    {**_OF_BART, "normalize_before": False, "add_final_layer_norm": False},
    norm_order="post",
    has_table=True,
    starts_with_end=True,
    has_languages=False,
)
