"""Launch a training run as a job of a scheduler that restarts it after an interruption."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    commands={
        "launch": ("training", "train on several hosts: Slurm, Kubernetes, TPUs, ssh"),
    }
)
