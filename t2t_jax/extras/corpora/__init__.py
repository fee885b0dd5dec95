"""Public corpora: text from their archives, with the command that fetches it, and TFDS."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "data": ("first steps", "download a public corpus, such as WMT14, as text files"),
    }
)
