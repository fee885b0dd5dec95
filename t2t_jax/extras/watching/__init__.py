"""Plot training curves in the terminal, and compare runs with the paper in a report."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "watch": ("training", "plot training curves in the terminal"),
        "report": (
            "measuring a model",
            "compare a run with the paper, and show its time and curves",
        ),
    },
    remarks={"the paper": "t2t_jax.extras.watching.report:paper_comparison"},
)
