"""Public corpora as directories of text: their archives, and the command that fetches them."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "data": ("first steps", "download a public corpus, such as WMT14, as text files"),
    }
)
