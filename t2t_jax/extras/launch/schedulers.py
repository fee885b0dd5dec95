"""A training as a batch job of Slurm, on hosts reached by ssh, on Cloud TPUs, or by SkyPilot."""

import json
import re
import shlex
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.errors import UserError, in_one_line, quote
from t2t_jax.extras.launch import job
from t2t_jax.system.atomic_file import write_whole

_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED")
_JOB_FILE = "slurm.job"
_HOST = re.compile(r"[^\s:@]+(@[^\s:@]+)?")
_JOB = re.compile(r"^(\d+)(;\S+)?$", re.MULTILINE)


@dataclass(frozen=True)
class Slurm(job.GpuHosts, job.TrainJob):
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
        return job.fewest_hosts(self.min_hosts, self.hosts)

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse numbers of nodes that do not fit each other or the mesh, beside what others do."""
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
        """Refuse a run whose earlier job Slurm still has in its queue."""
        stored = folder / _JOB_FILE
        if not stored.is_file():
            return
        number = stored.read_text("utf-8", "replace").strip()
        queue = ["squeue", "--noheader", "--format=%T", f"--jobs={number}"]
        try:
            state = subprocess.run(queue, capture_output=True, text=True, errors="replace")
        except FileNotFoundError:
            return
        if state.returncode == 0 and state.stdout.strip():  # a job that is forgotten is an error
            raise UserError(
                f"job {number} of Slurm trains in {folder.parent} ({state.stdout.split()[0]}); "
                f"wait for it, or end it first: scancel {number}"
            )

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the batch script, which requeues itself."""
        gpus = [f"gpus-per-node={self.gpus}"] if self.gpus else []
        share = "--exclusive --mem=0" if self.cpus is None else f"--mincpus={self.cpus}"
        one_for_all = self.gpus and self.one_process_per == "host"
        log = path.absolute().with_name("slurm-%j.log")
        return self.filled(
            training,
            path,
            nodes="-".join(map(str, sorted({self._fewest, self.hosts}))),
            share=share,
            log=shlex.quote(f"{str(log.parent).replace('%', '%%')}/{log.name}"),
            options="\n".join(f"#SBATCH --{option}" for option in [*gpus, *self.options()]),
            devices=f"export JAX_LOCAL_DEVICE_IDS={self.devices[0]}" if one_for_all else "",
            processes=len(self.devices),
            record=shlex.quote(str(log.with_name("slurm"))),
            exclusion=job.exclusion("slurm_exclusion.sh", training, self._fewest),
        )

    def command(self, path: Path) -> list[str]:
        """Return the command of sbatch, which answers with the number of the job."""
        return ["sbatch", "--parsable", str(path)]

    def submitted(self, path: Path, answer: str) -> None:
        """Print the number of the job, and keep it for `check_queue`."""
        match = _JOB.search(answer)
        if match is None:
            raise UserError(
                f"sbatch answered {quote(in_one_line(answer))}, not with the number of a job; see "
                "squeue --me before you try again"
            )
        number = match[1]
        write_whole(path.parent / _JOB_FILE, f"{number}\n".encode())
        print(f"submitted as job {number}; its log: {path.with_name(f'slurm-{number}.log')}")


@dataclass(frozen=True)
class Ssh(job.GpuHosts, job.TrainJob):
    """Write a script that trains on hosts that see the files of this one, and start it.

    Each --option is one of ssh, such as Port=2222.
    """

    hosts: tuple[str, ...] = ()
    """Names of the hosts, or USER@NAME, by which they also find each other."""
    min_hosts: int | None = None
    """Number of hosts with which a training goes on without those that hung; None is all."""

    file: ClassVar[str] = "ssh.sh"
    client: ClassVar[str] = "ssh"
    shares_files: ClassVar[bool] = True
    in_foreground: ClassVar[bool] = True

    @property
    def _fewest(self) -> int:
        return job.fewest_hosts(self.min_hosts, len(self.hosts))

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse names of hosts, or a number of them that does not fit the mesh."""
        super().check(training)
        if not self.hosts:
            raise UserError("there is no host to train on; name some, as in --hosts gpu1 gpu2")
        [(name, count), *_] = Counter(self.hosts).most_common(1)
        if count > 1:
            raise UserError(f"--hosts names {name} {count} times; name each host once")
        for host in self.hosts:
            if not _HOST.fullmatch(host):
                raise UserError(
                    f"--hosts {quote(host)} is not NAME or USER@NAME; a port is --option Port=2222"
                )
        self.check_hosts(training, range(self._fewest, len(self.hosts) + 1))

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the script, which is called on the hosts, too."""
        train = self.train_command(training)
        options = [word for option in self.options() for word in ("-o", option)]
        return self.filled(
            training,
            path,
            hosts=shlex.join(self.hosts),
            script=self.script(train, host='"$1"', hosts='"$2"', first='"$3"'),
            options=shlex.join(options),
            exclusion=job.exclusion("ssh_exclusion.sh", training, self._fewest),
        )


@dataclass(frozen=True)
class Tpu(job.TrainJob):
    """Write a script that asks for a slice of TPUs and trains on all of its hosts, and start it.

    Each --option is a flag of gcloud's queued-resources create, such as spot. A host has one
    process, for all of its chips.
    """

    accelerator: str | None = None
    """Kind and size of the slice, as gcloud takes it: v5litepod-16."""
    runtime: str | None = None
    """Version of the hosts' system, as gcloud takes it: v2-alpha-tpuv5-lite."""
    zone: str | None = None
    """Zone of the slice."""
    setup: tuple[str, ...] = (
        "python3 -m pip install --quiet --user uv || exit",
        "[[ -d .venv ]] || ~/.local/bin/uv venv --quiet --python 3.12 || exit",
        ". .venv/bin/activate",
        "~/.local/bin/uv pip install --quiet -e '.[train,tpu,gcs]' || exit",
    )
    """Lines of shell that each host runs before the training, in a copy of this directory. The
    hosts' system has Python 3.10, so uv installs a newer one."""

    file: ClassVar[str] = "tpu.sh"
    client: ClassVar[str] = "gcloud"
    name_form: ClassVar[str] = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
    name_rule: ClassVar[str] = "of small letters, digits and hyphens"
    in_foreground: ClassVar[bool] = True

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse a name that gcloud would not take, or flags that are missing."""
        super().check(training)
        for name in ("accelerator", "runtime", "zone"):
            if getattr(self, name) is None:
                raise UserError(f"a slice of TPUs needs --{name}; see t2t-jax launch tpu --help")

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the script."""
        options = [f"--{option}" for option in self.options()]
        return self.filled(
            training,
            path,
            zone=shlex.quote(str(self.zone)),
            accelerator=shlex.quote(str(self.accelerator)),
            runtime=shlex.quote(str(self.runtime)),
            options=shlex.join(options),
        )


@dataclass(frozen=True)
class SkyPilot(job.GpuHosts, job.TrainJob):
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

    def check(self, training: job.LaunchedTraining) -> None:
        """Refuse hosts on which the mesh of the config cannot lie, beside what all jobs refuse."""
        super().check(training)
        self.check_hosts(training, [self.hosts])

    def text(self, training: job.LaunchedTraining, path: Path) -> str:
        """Return the task."""
        resources = [("accelerators", json.dumps(f"{self.gpu}:{self.gpus}"))] if self.gpus else []
        resources += map(job.split_option, self.option)
        return self.filled(
            training,
            path,
            name=json.dumps(self.title(training)),
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
