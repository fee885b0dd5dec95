"""Read corpora that consist of many files (shards), and tokenize them before training."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "data prepare": ("first steps", "tokenize a corpus in shards before training reads it"),
    }
)
