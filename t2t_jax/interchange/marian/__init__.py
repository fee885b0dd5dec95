"""Export and import of Marian models of Hugging Face's library transformers, such as OPUS-MT's."""

from t2t_jax.interchange.marian.reading import read
from t2t_jax.interchange.marian.writing import (
    VOCABULARIES,
    carried,
    model_config,
    write,
    write_tokenizer,
)

__all__ = ["VOCABULARIES", "carried", "model_config", "read", "write", "write_tokenizer"]
