"""A training as a job of a scheduler, which starts it again when it was stopped."""

from t2t_jax.plugins import CommandRow, Plugin

PLUGIN = Plugin(
    commands={
        "launch": CommandRow(
            "training",
            "train on several hosts: Slurm, Kubernetes, TPUs, ssh",
            "t2t_jax.extras.launch.command:LaunchCommand",
            after="config",
        )
    }
)
