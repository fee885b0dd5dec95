"""Marian models of the library transformers of Hugging Face, such as OPUS-MT's: out and in."""

from t2t_jax.interchange.marian.reading import POSITIONS, read
from t2t_jax.interchange.marian.writing import DTYPES, VOCABULARIES, carried, model_config, write

__all__ = ["DTYPES", "POSITIONS", "VOCABULARIES", "carried", "model_config", "read", "write"]
