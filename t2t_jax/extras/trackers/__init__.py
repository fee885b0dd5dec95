"""Send the log of a run to trackers such as W&B, during training or later with `track`."""

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
