"""Export and import of mBART models of transformers; see `interchange.seq2seq`."""

from pathlib import Path

from t2t_jax.config import Config
from t2t_jax.data.vocabularies.framed import FramedVocabulary
from t2t_jax.interchange.carried import Carried
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.seq2seq.kinds import MBART
from t2t_jax.interchange.seq2seq.reading import read_seq2seq
from t2t_jax.interchange.seq2seq.writing import write_seq2seq

VOCABULARIES = (FramedVocabulary,)


def read(
    path: Path, *, source_language: str | None = None, target_language: str | None = None
) -> PortableModel:
    """Read a model for two of its languages; see `read_seq2seq`."""
    return read_seq2seq(path, MBART, source_language, target_language)


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    return MBART.carried(config)


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as `save_pretrained` does."""
    write_seq2seq(model, MBART, directory)
