"""Base classes of the jobs of all schedulers, and the templates of the job files."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal

from t2t_jax.config import Config
from t2t_jax.errors import UserError, in_one_line, quote
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, FINAL, HUNG, STOPPED

PORT = 8476
"""The port of the coordinator, on the first host."""
_PLACEHOLDER = re.compile(r"@\{([\w.]+)\}")


@dataclass(frozen=True)
class LaunchedTraining:
    """The training run that a job starts, with a checked command line."""

    arguments: tuple[str, ...]
    """The arguments of `t2t-jax train`."""
    config: Config
    workdir: Path


@dataclass(frozen=True)
class TrainJob:
    """Base class of the jobs of all schedulers."""

    name: str | None = None
    """Name of the job. By default, the name of the run directory."""
    retries: int = 20
    """Maximum number of restarts in a row without a new checkpoint. Exit codes 0, 2 (refused), 76
    (diverged) and 130 (Ctrl-C) end the job for good."""
    setup: tuple[str, ...] = ()
    """Shell lines that each host runs before training, such as 'module load cuda'."""
    option: tuple[str, ...] = ()
    """Scheduler options of your site, each as name=value or name."""
    program: str | None = None
    """The program on the hosts. By default, t2t-jax, or this Python if hosts share its files."""
    print: bool = False
    """Print the job, but do not write or submit it."""

    file: ClassVar[str]
    """The name of the job file, and of its template."""
    client: ClassVar[str]
    """The program that submits a job."""
    name_pattern: ClassVar[str] = r"[^:\x00-\x1f\x7f]+"
    """The regular expression of valid job names."""
    name_rule: ClassVar[str] = "without colons and control characters"
    """The description of valid job names."""
    shares_files: ClassVar[bool] = False
    """Whether hosts see this machine's files under the same paths."""
    in_foreground: ClassVar[bool] = False
    """Whether the client runs until training ends."""

    def check(self, training: LaunchedTraining) -> None:
        """Refuse a training run that this job cannot start."""
        if self.retries < 0:
            raise UserError(f"--retries {self.retries} is negative; 0 disables restarts")
        if not re.fullmatch(self.name_pattern, self.title(training)):
            raise UserError(
                f"{quote(self.title(training))} is not a job name for {self.client}; pass a name "
                f"{self.name_rule} as --name"
            )
        is_shared = self.shares_files or isinstance(training.workdir, BucketPath)
        if not (is_shared or training.workdir.is_absolute()):
            raise UserError(
                f"--workdir {training.workdir} is relative to this machine; name a bucket, or the "
                "absolute path of a disk that all hosts share"
            )

    def check_queue(self, folder: Path) -> None:
        """Refuse a run whose earlier job, recorded in the job's folder, is still queued."""

    def text(self, training: LaunchedTraining, path: Path) -> str:
        """Return the text of the job file at `path`."""
        raise NotImplementedError

    def command(self, path: Path) -> list[str]:
        """Return the command that submits a job file; by default, bash runs it as a script."""
        return ["bash", str(path)]

    def options(self) -> list[str]:
        """Return the site's scheduler options as name=value or name, without dashes."""
        pairs = map(split_option, self.option)
        return [f"{name}={value}" if value else name for name, value in pairs]

    def submit(self, path: Path) -> int:
        """Submit a job file, and return the exit code of the client.

        A client that runs in the foreground replaces this process.
        """
        if self.in_foreground:
            os.execvp(self.command(path)[0], self.command(path))
        command = self.command(path)
        client = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if client.returncode:
            reason = in_one_line(client.stderr or client.stdout)
            raise UserError(
                f"{self.client} refuses {path}: {reason}; nothing was submitted: fix the flags "
                f"before -- and try again"
            )
        self.report_submission(path, client.stdout.strip())
        return 0

    def report_submission(self, path: Path, answer: str) -> None:
        """Print the scheduler's answer. A subclass may also record the submitted job."""
        print(answer)

    def title(self, training: LaunchedTraining) -> str:
        """Return the job name."""
        return self.name or training.workdir.name

    def render(self, training: LaunchedTraining, path: Path, **values: object) -> str:
        """Return the text of the job file: its template with flags, common values and `values`."""
        from t2t_jax.workdir import CHECKPOINTS  # imports JAX, which would slow down --help

        common_values = {
            **vars(self),
            "name": shlex.quote(self.title(training)),
            "directory": shlex.quote(str(Path.cwd())),
            "setup": "\n".join(self.setup),
            "train": self.train_command(training),
            "path": shlex.quote(str(path.absolute())),
            "list": _listing_command(training.workdir / CHECKPOINTS),
            "command": shlex.join(self.command(path)),
        }
        return render_template(self.file, **{**common_values, **values})

    def train_command(self, training: LaunchedTraining) -> str:
        """Return the training command of a host, quoted for a shell."""
        default = shlex.join([sys.executable, "-m", "t2t_jax"]) if self.shares_files else "t2t-jax"
        return f"{self.program or default} train {shlex.join(training.arguments)}"


@dataclass(frozen=True)
class GpuHosts:
    """The processes that a job starts on hosts with GPUs."""

    gpus: int = 0
    """GPUs per host; 0 trains on the CPU."""
    one_process_per: Literal["host", "gpu"] = "host"
    """Start one process per host, for all of its GPUs, or one process per GPU."""

    @property
    def devices(self) -> list[str]:
        """Return the local device ids of each process of a host, such as ["0,1"]."""
        ids = [str(number) for number in range(max(self.gpus, 1))]
        return ids if self.one_process_per == "gpu" else [",".join(ids)]

    def check_hosts(self, training: LaunchedTraining, hosts: int, min_hosts: int | None) -> None:
        """Refuse counts from `min_hosts` (None: `hosts`) to `hosts` that do not fit the mesh."""
        if self.gpus < 0:
            raise UserError(f"--gpus {self.gpus} is negative; 0 trains on the CPU")
        fewest = hosts if min_hosts is None else min_hosts
        if fewest > hosts:
            raise UserError(f"--min-hosts {fewest} is more than the {hosts} of --hosts; lower it")
        counts = [(n, max(self.gpus, 1)) for n in range(fewest, hosts + 1)]
        check_mesh_fits(training, counts, len(self.devices))

    def script(self, train: str, *, host: str, hosts: str, first_host: str) -> str:
        """Return the shell script that starts and stops the processes of one host.

        `host`, `hosts` and `first_host` are shell expressions: the host's index from 0, the number
        of hosts, and the first host's address.
        """
        devices = " ".join(f"'{ids}'" if "," in ids else ids for ids in self.devices)
        values = {"host": host, "hosts": hosts, "first": first_host, "train": train}
        return render_template("host.sh", devices=devices, port=PORT, **values)


def check_mesh_fits(
    training: LaunchedTraining, hosts: Iterable[tuple[int, int]], processes_per_host: int = 1
) -> None:
    """Refuse hosts whose devices do not fit the mesh of the config.

    Args:
      hosts: pairs of a possible number of hosts and the devices per host.
    """
    from t2t_jax.parallel.mesh import mesh_shape

    for count, devices in hosts:
        if count < 1:
            raise UserError(f"--hosts {count} is too few; ask for at least 1")
        try:
            mesh_shape(training.config.parallel, count * devices, count * processes_per_host)
        except UserError as error:
            raise UserError(f"with {count} hosts of {devices} devices: {error}") from error


def exclusion(template: str, training: LaunchedTraining, min_hosts: int) -> str:
    """Return the template's script lines that exclude hung hosts, or "" for a run in a bucket."""
    if isinstance(training.workdir, BucketPath):
        return ""
    hosts = shlex.quote(str(training.workdir.absolute() / EXCLUDED_HOSTS))
    return render_template(template, excluded=hosts, fewest=min_hosts)


def _listing_command(folder: Path) -> str:
    if not isinstance(folder, BucketPath):
        return f"find {shlex.quote(str(folder.absolute()))} -maxdepth 1"
    # In other stores nothing is listed, so every restart counts as one without a new checkpoint.
    is_google = str(folder).startswith("gs://")
    return f"gcloud storage ls {shlex.quote(str(folder))}" if is_google else "true"


def render_template(template: str, **values: object) -> str:
    """Fill the placeholders of a template, such as `@{name}`; `@{final.sh}` includes a template.

    Values of several lines get the indentation of their placeholder. A line is dropped if it has
    only placeholders and all are empty.
    """
    # Every template can use the exit codes that have a meaning.
    codes = {"final": " ".join(map(str, FINAL)), "hung": HUNG, "stopped": STOPPED}
    texts = {name: str(value) for name, value in {**codes, **values}.items()}
    lines = (files(__package__) / "templates" / template).read_text("utf-8").splitlines()
    pairs = ((line, _render_line(line, texts)) for line in lines)
    output = [text for line, text in pairs if text.strip() or not _PLACEHOLDER.search(line)]
    return "\n".join(output) + "\n"


def _render_line(line: str, values: Mapping[str, str]) -> str:
    indent = line[: len(line) - len(line.lstrip())]

    def substitute(placeholder: re.Match[str]) -> str:
        name = placeholder[1]
        text = render_template(name, **values) if name.endswith(".sh") else values[name]
        return text.strip("\n").replace("\n", f"\n{indent}")

    return _PLACEHOLDER.sub(substitute, line)


def split_option(option: str) -> tuple[str, str]:
    """Return the name and the value of a scheduler option; the value may be ""."""
    name, _, value = option.lstrip("-").partition("=")
    if not name or len(option.splitlines()) != 1:
        raise UserError(f"--option {quote(option)} is not name=value, as in --option partition=gpu")
    return name, value
