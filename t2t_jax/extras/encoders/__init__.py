"""Encoder-only networks: classification, tagging, image labels and masked language models."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "predict": ("using a trained model", "label text or images, or fill in masked words"),
    }
)
