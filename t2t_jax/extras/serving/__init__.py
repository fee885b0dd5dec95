"""A translation server over HTTP; the sentences of all requests share one running search."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "serve": ("using a trained model", "serve translations over HTTP, with a web page"),
    }
)
