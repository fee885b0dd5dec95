"""A training as a managed job of SkyPilot, which rents the hosts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.launch.job import GpuHosts, LaunchedTraining, TrainJob, split_option


@dataclass(frozen=True)
class SkyPilot(GpuHosts, TrainJob):
    """Write a task of SkyPilot, and start it by sky as a managed job.

    Each --option is one of the task's resources, such as infra=aws/us-east-1 or use_spot=true.
    """

    hosts: int = 1
    """Number of nodes."""
    gpus: int = 0
    """GPUs of a host, of the kind of --gpu; 0 trains on its CPU."""
    gpu: str = "H100"
    """Kind of the GPUs, as SkyPilot names it."""
    setup: tuple[str, ...] = ("pip install -e '.[train,cuda13,gcs,s3]'",)
    """Lines of shell that each host runs once, in the copy of the current directory."""

    file: ClassVar[str] = "skypilot.yaml"
    client: ClassVar[str] = "sky"

    def check(self, training: LaunchedTraining) -> None:
        """Refuse hosts on which the mesh of the config cannot lie, beside what all jobs refuse.

        Raises:
          UserError: a value is refused.
        """
        super().check(training)
        self.check_hosts(training, [self.hosts])

    def text(self, training: LaunchedTraining, path: Path) -> str:
        """Return the task."""
        resources = [("accelerators", json.dumps(f"{self.gpu}:{self.gpus}"))] if self.gpus else []
        resources += map(split_option, self.option)
        return self.filled(
            training,
            name=json.dumps(self.title(training)),
            hosts=self.hosts,
            resources="\n".join(f"{name}: {value}" for name, value in resources),
            script=self.script(
                self.train_command(training),
                host="$SKYPILOT_NODE_RANK",
                hosts=str(self.hosts),
                first='$(head -n1 <<<"$SKYPILOT_NODE_IPS")',
            ),
        )

    def command(self, path: Path) -> list[str]:
        """Return the command of sky, which waits for no question and no log."""
        return ["sky", "jobs", "launch", "--yes", "--detach-run", str(path)]
