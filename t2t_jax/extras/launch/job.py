"""A training as a job of a scheduler: what is alike for all of them, and how its text is made."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal

from t2t_jax.config import Config
from t2t_jax.errors import UserError, in_one_line, quote
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, FINAL, HUNG, STOPPED

PORT = 8476
"""The port on the first host at which the processes meet."""
_PLACE = re.compile(r"@\{([\w.]+)\}")


@dataclass(frozen=True)
class LaunchedTraining:
    """The training that a job starts, as its command line has been checked."""

    arguments: tuple[str, ...]
    """The flags of `t2t-jax train`."""
    config: Config
    workdir: Path


@dataclass(frozen=True)
class TrainJob:
    """What is alike in the jobs of every scheduler: one class for each is derived from this one."""

    name: str | None = None
    """Name of the job; None is that of the run directory."""
    retries: int = 20
    """How often in a row a training is started again without a new checkpoint. Exit codes 0, 2
    (refused), 76 (diverged) and 130 (Ctrl-C) end it for good."""
    setup: tuple[str, ...] = ()
    """Lines of shell that each host runs before the training, such as 'module load cuda'."""
    option: tuple[str, ...] = ()
    """Options of your site for the scheduler, as name=value, or as a name alone."""
    program: str | None = None
    """The program on the hosts; None is t2t-jax, or this Python where hosts share its files."""
    print: bool = False
    """Print the job, and neither write nor submit it."""

    file: ClassVar[str]
    """The name of the file that the job is written to."""
    client: ClassVar[str]
    """The program that submits a job."""
    name_form: ClassVar[str] = r"[^:\x00-\x1f\x7f]+"
    """The pattern of the names that the scheduler takes for a job."""
    name_rule: ClassVar[str] = "without colons and control characters"
    """The description of such names."""
    shares_files: ClassVar[bool] = False
    """Whether hosts see the files of this machine, under the same paths."""
    in_foreground: ClassVar[bool] = False
    """Whether the client goes on for as long as the training does."""

    def check(self, training: LaunchedTraining) -> None:
        """Refuse a training that cannot be started as this job."""
        if self.retries < 0:
            raise UserError(f"--retries {self.retries} is negative; 0 starts a training once")
        if not re.fullmatch(self.name_form, self.title(training)):
            raise UserError(
                f"{quote(self.title(training))} is no name of a job for {self.client}; give it one "
                f"{self.name_rule} by --name"
            )
        is_shared = self.shares_files or isinstance(training.workdir, BucketPath)
        if not (is_shared or training.workdir.is_absolute()):
            raise UserError(
                f"--workdir {training.workdir} is relative to this machine; name a bucket, or the "
                "absolute path of a disk that all hosts share"
            )

    def check_queue(self, folder: Path) -> None:
        """Refuse a run for which an earlier job is still queued, as files in a folder tell."""

    def text(self, training: LaunchedTraining, path: Path) -> str:
        """Return the text of the job, which is to be written to `path`."""
        raise NotImplementedError

    def command(self, path: Path) -> list[str]:
        """Return the command that submits the job in a file: bash, if the file is a script."""
        return ["bash", str(path)]

    def options(self) -> list[str]:
        """Return the options of the site as name=value, or as a name alone, without dashes."""
        named = map(split_option, self.option)
        return [name + (f"={value}" if value else "") for name, value in named]

    def submit(self, path: Path) -> int:
        """Submit the job in a file, and return the exit code of the client.

        A client that goes on with the training takes the place of this program.
        """
        if self.in_foreground:
            os.execvp(self.command(path)[0], self.command(path))
        command = self.command(path)
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            reason = in_one_line(done.stderr or done.stdout)
            raise UserError(
                f"{self.client} refuses {path}: {reason}; nothing was submitted: fix the flags "
                f"before -- and try again"
            )
        self.submitted(path, done.stdout.strip())
        return 0

    def submitted(self, path: Path, answer: str) -> None:
        """Tell the user what the client answered; remember the job if that is of use later."""
        print(answer)

    def title(self, training: LaunchedTraining) -> str:
        """Return the name of the job."""
        return self.name or training.workdir.name

    def filled(self, training: LaunchedTraining, path: Path, **values: object) -> str:
        """Return the template of the job's file, filled with values, flags and what jobs share."""
        from t2t_jax.workdir import CHECKPOINTS  # imports JAX, which the help needs not

        shared = {
            **vars(self),
            "name": shlex.quote(self.title(training)),
            "directory": shlex.quote(str(Path.cwd())),
            "setup": "\n".join(self.setup),
            "train": self.train_command(training),
            "path": shlex.quote(str(path.absolute())),
            "list": _listing(training.workdir / CHECKPOINTS),
            "command": shlex.join(self.command(path)),
        }
        return from_template(self.file, **{**shared, **values})

    def train_command(self, training: LaunchedTraining) -> str:
        """Return the command line of the training on a host, quoted for a shell."""
        here = shlex.join([sys.executable, "-m", "t2t_jax"]) if self.shares_files else "t2t-jax"
        return f"{self.program or here} train {shlex.join(training.arguments)}"


@dataclass(frozen=True)
class GpuHosts:
    """How the processes of a training lie on hosts with GPUs."""

    gpus: int = 0
    """GPUs of a host; 0 trains on its CPU."""
    one_process_per: Literal["host", "gpu"] = "host"
    """Start one process a host, for all of its GPUs, or one process for each GPU."""

    @property
    def devices(self) -> list[str]:
        """Return the numbers of the devices of each process of a host, as JAX takes them."""
        numbers = [str(number) for number in range(max(self.gpus, 1))]
        return numbers if self.one_process_per == "gpu" else [",".join(numbers)]

    def check_hosts(self, training: LaunchedTraining, counts: Iterable[int]) -> None:
        """Refuse numbers of hosts on which the mesh of the config cannot lie."""
        if self.gpus < 0:
            raise UserError(f"--gpus {self.gpus} is negative; 0 trains on the CPU")
        check_mesh_fits(training, [(hosts, max(self.gpus, 1)) for hosts in counts], self.devices)

    def script(self, train: str, **facts: str) -> str:
        """Return the shell script that starts the processes of one host, and ends them together.

        Args:
          facts: shell expressions: `host`, the number of the host from 0; `hosts`, how many there
            are; `first`, the address of the first one.
        """
        devices = " ".join(f"'{one}'" if "," in one else one for one in self.devices)
        return from_template("host.sh", train=train, devices=devices, port=PORT, **facts)


def fewest_hosts(min_hosts: int | None, hosts: int) -> int:
    """Return with how many hosts a job starts at least: all of them if `min_hosts` is None."""
    if min_hosts is not None and min_hosts > hosts:
        raise UserError(f"--min-hosts {min_hosts} is more than the {hosts} of --hosts; lower it")
    return hosts if min_hosts is None else min_hosts


def check_mesh_fits(
    training: LaunchedTraining, hosts: Iterable[tuple[int, int]], processes: Sequence[str] = ("",)
) -> None:
    """Refuse hosts whose devices the mesh of the config does not take.

    Args:
      hosts: possible numbers of hosts, each with the number of devices of a host.
      processes: an item for each process of a host.
    """
    from t2t_jax.parallel.mesh import mesh_shape

    for count, devices in hosts:
        if count < 1:
            raise UserError(f"--hosts {count} is no number of hosts; ask for 1 at least")
        try:
            mesh_shape(training.config.parallel, count * devices, count * len(processes))
        except UserError as error:
            raise UserError(f"with {count} hosts of {devices} devices: {error}") from error


def exclusion(template: str, training: LaunchedTraining, fewest: int) -> str:
    """Return the lines that leave out hosts that hung, or "" for a run in a bucket."""
    if isinstance(training.workdir, BucketPath):
        return ""
    hosts = shlex.quote(str(training.workdir.absolute() / EXCLUDED_HOSTS))
    return from_template(template, excluded=hosts, fewest=fewest)


def _listing(folder: Path) -> str:
    """Return a command that lists a folder, and nothing in stores other than Google's."""
    if not isinstance(folder, BucketPath):
        return f"find {shlex.quote(str(folder.absolute()))} -maxdepth 1"
    is_google = str(folder).startswith("gs://")
    return f"gcloud storage ls {shlex.quote(str(folder))}" if is_google else "true"


def from_template(template: str, **values: object) -> str:
    """Return a template with its places filled, such as `@{name}`, or `@{final.sh}` by a template.

    A value of several lines is indented as its place is. A line that has nothing but places, which
    are all empty, is left out. The exit codes with a meaning are among the values.
    """
    codes = {"final": " ".join(map(str, FINAL)), "hung": HUNG, "stopped": STOPPED}
    texts = {name: str(value) for name, value in {**codes, **values}.items()}
    lines = (files(__package__) / "templates" / template).read_text("utf-8").splitlines()
    filled = ((line, _filled_line(line, texts)) for line in lines)
    kept = [text for line, text in filled if text.strip() or not _PLACE.search(line)]
    return "\n".join(kept) + "\n"


def _filled_line(line: str, values: Mapping[str, str]) -> str:
    indent = line[: len(line) - len(line.lstrip())]

    def text(place: re.Match[str]) -> str:
        name = place[1]
        found = from_template(name, **values) if name.endswith(".sh") else values[name]
        return found.strip("\n").replace("\n", f"\n{indent}")

    return _PLACE.sub(text, line)


def split_option(option: str) -> tuple[str, str]:
    """Return the name and the value of an option of a site; the value of a name alone is empty."""
    name, _, value = option.lstrip("-").partition("=")
    if not name or len(option.splitlines()) != 1:
        raise UserError(f"--option {quote(option)} is not name=value, as in --option partition=gpu")
    return name, value
