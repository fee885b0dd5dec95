"""Trackers such as W&B: a process beside a training sends its log there, as `track` does later."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "track": ("training", "send the log of a run to W&B, MLflow or trackio"),
    },
    flags={
        "train": "t2t_jax.extras.trackers.flags:TrainFlags",
        "sweep": "t2t_jax.extras.trackers.flags:SweepFlags",
    },
)
