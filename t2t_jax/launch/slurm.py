"""A training as a batch job of Slurm."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.errors import UserError, in_one_line, quote
from t2t_jax.launch.job import GpuHosts, LaunchedTraining, TrainJob, exclusion, fewest_hosts
from t2t_jax.system.atomic_file import write_whole

_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED")
_JOB = re.compile(r"^(\d+)(;\S+)?$", re.MULTILINE)


@dataclass(frozen=True)
class Slurm(GpuHosts, TrainJob):
    """Write a batch job of Slurm, and submit it by sbatch."""

    hosts: int = 1
    """Number of nodes."""
    min_hosts: int | None = None
    """Number of nodes with which the job also starts, if no more are up; None is --hosts."""
    cpus: int | None = None
    """Cores of each node; None takes whole nodes, with all of their memory."""
    time: str = "24:00:00"
    """Time limit as 90 (minutes), 24:00:00 or 2-12; a job that reaches it is queued again."""
    grace: int = 180
    """Seconds before the time limit at which the training writes a checkpoint and stops."""

    file: ClassVar[str] = "slurm.sh"
    client: ClassVar[str] = "sbatch"
    shares_files: ClassVar[bool] = True

    @property
    def _fewest(self) -> int:
        return fewest_hosts(self.min_hosts, self.hosts)

    def check(self, training: LaunchedTraining) -> None:
        """Refuse numbers of nodes that do not fit each other or the mesh, beside what all jobs do.

        Raises:
          UserError: a value is refused.
        """
        super().check(training)
        if self.grace < 1:
            raise UserError(f"--grace {self.grace} is no number of seconds above 0")
        if not _TIME.fullmatch(self.time):
            raise UserError(
                f"--time {self.time} is no time of Slurm; write minutes, HOURS:MINUTES:SECONDS or "
                "DAYS-HOURS, as in 24:00:00"
            )
        self.check_hosts(training, range(self._fewest, self.hosts + 1))

    def check_queue(self, folder: Path) -> None:
        """Refuse a run whose earlier job Slurm still has in its queue.

        Raises:
          UserError: the job that was submitted from this folder waits or runs.
        """
        stored = _job_file(folder)
        if not stored.is_file():
            return
        job = stored.read_text("utf-8", "replace").strip()
        queue = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
        try:
            state = subprocess.run(queue, capture_output=True, text=True, errors="replace")
        except FileNotFoundError:
            return
        if state.returncode == 0 and state.stdout.strip():  # a job that is forgotten is an error
            raise UserError(
                f"job {job} of Slurm trains in {folder.parent} ({state.stdout.split()[0]}); wait "
                f"for it, or end it first: scancel {job}"
            )

    def text(self, training: LaunchedTraining, path: Path) -> str:
        """Return the batch script, which requeues itself."""
        gpus = [f"gpus-per-node={self.gpus}"] if self.gpus else []
        share = "--exclusive --mem=0" if self.cpus is None else f"--mincpus={self.cpus}"
        one_for_all = self.gpus and self.one_process_per == "host"
        log = path.absolute().with_name("slurm-%j.log")
        return self.filled(
            training,
            name=shlex.quote(self.title(training)),
            nodes="-".join(map(str, sorted({self._fewest, self.hosts}))),
            share=share,
            time=self.time,
            grace=self.grace,
            log=shlex.quote(f"{str(log.parent).replace('%', '%%')}/{log.name}"),
            options="\n".join(f"#SBATCH --{option}" for option in [*gpus, *self.options()]),
            devices=f"export JAX_LOCAL_DEVICE_IDS={self.devices[0]}" if one_for_all else "",
            processes=len(self.devices),
            restarts=self.restarts(training, path),
            record=shlex.quote(str(log.with_name("slurm"))),
            exclusion=exclusion("slurm_exclusion.sh", training, self._fewest),
        )

    def command(self, path: Path) -> list[str]:
        """Return the command of sbatch, which answers with the number of the job."""
        return ["sbatch", "--parsable", str(path)]

    def submitted(self, path: Path, answer: str) -> None:
        """Print the number of the job, and keep it for `check_queue`.

        Raises:
          UserError: the answer has no number.
        """
        match = _JOB.search(answer)
        if match is None:
            raise UserError(
                f"sbatch answered {quote(in_one_line(answer))}, not with the number of a job; see "
                "squeue --me before you try again"
            )
        job = match[1]
        write_whole(_job_file(path.parent), f"{job}\n".encode())
        print(f"submitted as job {job}; its log: {path.with_name(f'slurm-{job}.log')}")


def _job_file(folder: Path) -> Path:
    return folder / "slurm.job"
