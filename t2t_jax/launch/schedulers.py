"""The table of the schedulers that a training can be launched on."""

from collections.abc import Mapping

from t2t_jax.launch.job import TrainJob
from t2t_jax.launch.kubernetes import Kubernetes
from t2t_jax.launch.skypilot import SkyPilot
from t2t_jax.launch.slurm import Slurm
from t2t_jax.launch.ssh import Ssh
from t2t_jax.launch.tpu import Tpu

SCHEDULERS: Mapping[str, type[TrainJob]] = {
    "slurm": Slurm,
    "kubernetes": Kubernetes,
    "tpu": Tpu,
    "skypilot": SkyPilot,
    "ssh": Ssh,
}
"""The class of the jobs of each scheduler, whose fields are the flags of `t2t-jax launch`."""
