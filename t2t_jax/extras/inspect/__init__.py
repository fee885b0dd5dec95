"""Inspect a model: explorer pages, figures, head importance and head pruning."""

from t2t_jax.plugins import Plugin

_GROUP = "measuring a model"

PLUGIN = Plugin(
    commands={
        "explore": (_GROUP, "write a web page that shows attention and search on a sentence"),
        "heads": (_GROUP, "rank attention heads by importance and show what they attend to"),
        "figures": (_GROUP, "draw the paper's figures with the shapes of a run"),
    },
    names={"explore": "t2t_jax.extras.inspect.explorer.page:explore"},
    uses=("interchange",),  # which writes the run with pruned heads
)
