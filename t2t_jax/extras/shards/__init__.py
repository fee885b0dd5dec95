"""Corpora in many files ("shards"): read, tokenised once into pieces, and trained on by windows."""

from t2t_jax.plugins import CommandRow, Plugin

PLUGIN = Plugin(
    commands={
        "data prepare": CommandRow(
            "first steps",
            "tokenize a corpus in shards before training reads it",
            "t2t_jax.extras.shards.command:DataPrepareCommand",
            after="data",
        )
    }
)
