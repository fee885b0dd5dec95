"""Tools to inspect a model: pages, pictures, the worth of its heads, and their removal."""

from t2t_jax.plugins import CommandRow, Plugin

_GROUP = "measuring a model"

PLUGIN = Plugin(
    commands={
        "explore": CommandRow(
            _GROUP,
            "write a web page that shows attention and search on a sentence",
            "t2t_jax.extras.inspect.explore_command:ExploreCommand",
            after="compare",
        ),
        "heads": CommandRow(
            _GROUP,
            "rank attention heads by importance and show what they attend to",
            "t2t_jax.extras.inspect.heads_command:HeadsCommand",
            after="explore",
        ),
        "figures": CommandRow(
            _GROUP,
            "draw the paper's figures with the shapes of a run",
            "t2t_jax.extras.inspect.figures_command:FiguresCommand",
            after="heads",
        ),
    },
    names={"explore": "t2t_jax.extras.inspect.explorer.page:explore"},
    uses=("interchange",),  # which writes the run without the removed heads
)
