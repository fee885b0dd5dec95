"""A training as a job of a scheduler, which starts it again when it was stopped."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "launch": ("training", "train on several hosts: Slurm, Kubernetes, TPUs, ssh"),
    }
)
