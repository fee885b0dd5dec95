"""Encoder-only networks: labels of sentences, words and images, and masked language modelling.

`config.tasks` and `config.families` have their facts, so that the config of any run can be read.
"""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "predict": ("using a trained model", "label text or images, or fill in masked words"),
    }
)
