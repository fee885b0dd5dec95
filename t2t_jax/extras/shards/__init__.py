"""Corpora in many files ("shards"): read, tokenised once into pieces, and trained on by windows."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "data prepare": ("first steps", "tokenize a corpus in shards before training reads it"),
    }
)
