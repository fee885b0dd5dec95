"""Launchers of the processes of a grid: on this machine, or on a cluster through submitit."""

import ast
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from t2t_jax.config import Config
from t2t_jax.config.tables import environment_of
from t2t_jax.errors import UserError, in_one_line, needs_extra, warn
from t2t_jax.sweep.cell import Cell, train_and_score
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import check_local
from t2t_jax.system.regular_file import check_regular

_CUDA, _ROCM = "CUDA_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PLATFORMS = {"gpu", "cuda", "rocm"}  # JAX's names for GPUs
_SECONDS_TO_LIST = 60
_LISTED = re.compile(r"^(?:GPU (\d+): |[ \t]+MIG .*\(UUID: (MIG-[^)]+)\))", re.MULTILINE)
_NVIDIA, _AMD = "proc/driver/nvidia/gpus", "sys/class/kfd/kfd/topology/nodes"


class Gpus(NamedTuple):
    """The GPUs available to processes of this machine."""

    names: tuple[str, ...] = ()
    """The names of the GPUs, as `variable` takes them."""
    variable: str = _CUDA
    """The variable of the environment that lists the GPUs that a process sees."""
    source: str = ""
    """The source of the names, for errors."""


def find_gpus(root: Path = Path("/")) -> Gpus:
    """Find the GPUs that a process in this environment would see, or their parts (MIG).

    They are the GPUs that an environment variable names, or else those that `nvidia-smi` lists, or
    else those that the drivers of NVIDIA or AMD show below `root`. There are none if JAX_PLATFORMS
    is set and names no GPU.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not _PLATFORMS & {*platforms.split(",")}:
        return Gpus()
    for variable in (_CUDA, *_ROCM):
        if variable in os.environ:
            named = [name.strip() for name in os.environ[variable].split(",")]
            none = "", "-1", "NoDevFiles"  # the last one is Slurm's
            return Gpus(tuple(name for name in named if name not in none), variable, variable)
    if listed := _listed():
        return Gpus(listed, _CUDA, "nvidia-smi -L")
    if indices := _indices(len([*(root / _NVIDIA).glob("*")])):
        return Gpus(indices, _CUDA, f"/{_NVIDIA}")
    nodes = (path.read_text().strip() for path in (root / _AMD).glob("*/gpu_id"))
    count = sum(node not in ("", "0") for node in nodes)  # a processor is a node with the id 0
    return Gpus(_indices(count), _ROCM[0], f"/{_AMD}")


def _listed() -> tuple[str, ...]:
    """Return the GPUs that `nvidia-smi` lists: the index of each, or the names of its parts."""
    command, hidden = ["nvidia-smi", "-L"], subprocess.DEVNULL
    try:
        listed = subprocess.check_output(command, stderr=hidden, timeout=_SECONDS_TO_LIST)
    except (OSError, subprocess.SubprocessError):  # nvidia-smi is missing, or finds no driver
        return ()
    parts: dict[str, list[str]] = {}
    for index, part in _LISTED.findall(listed.decode(errors="replace")):
        if index:
            parts[index] = []
        elif parts:
            parts[next(reversed(parts))].append(part)
    return tuple(name for index, named in parts.items() for name in named or [index])


def _indices(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


_SUBMITIT = "submitit"


class Outcome(NamedTuple):
    """The end of a cell's process: its exit code, and the reason of a failure."""

    code: int
    """0 if the cell is done, 128 + n if signal n stopped it, another number for a failure."""
    message: str
    """The reason of a failure, in one line."""


@runtime_checkable
class Job(Protocol):
    """The process, or the job of a cluster, that trains a cell."""

    def poll(self) -> Outcome | None:
        """Return the outcome of the cell; None while the cell is queued or running."""

    def stop(self) -> None:
        """Ask the cell to write a checkpoint and end, unless its job outlives the sweep."""

    def wait(self) -> None:
        """Wait until the cell has ended, if `stop` has asked it to end."""


@runtime_checkable
class Launcher(Protocol):
    """A place where cells are trained, such as this machine or a cluster."""

    def launch(self, cell: Cell) -> Job | None:
        """Start a cell, or take over its job if one is queued or running.

        Returns:
          The job; None if there is no room now, or if another sweep trains this cell.

        Raises:
          UserError, OSError: the cell cannot be started.
        """


class Local:
    """A launcher of processes on this machine, each on its share of the cores and of the GPUs.

    No two of them see the same GPU: JAX takes three quarters of the memory of each GPU that it
    sees. `find_gpus` finds the GPUs of the machine.
    """

    def __init__(self, num_jobs: int, flags: Sequence[str] = ()) -> None:
        """Divide the machine into shares, for as many cells at once, or refuse too many.

        Args:
          flags: flags of plugins for the cells; see `plugins.flags_from`.
        """
        self._flags = flags
        cores = sorted(os.sched_getaffinity(0))
        if not 1 <= num_jobs <= len(cores):
            raise UserError(f"jobs={num_jobs} is not from 1 to {len(cores)}, the number of cores")
        gpus = find_gpus() if num_jobs > 1 else Gpus()  # a single process sees all of them
        names = gpus.names
        if names and num_jobs > len(names):
            raise UserError(
                f"jobs={num_jobs} is more than the {len(names)} GPUs of {gpus.source}, and two "
                "do not fit on one; ask for at most one job for each, or set JAX_PLATFORMS=cpu for "
                "jobs on the cores alone"
            )
        self._cores = [set(cores[first::num_jobs]) for first in range(num_jobs)]
        self._gpus = [
            {gpus.variable: ",".join(names[first::num_jobs])} if names else {}
            for first in range(num_jobs)
        ]
        self._jobs: list[_LocalJob | None] = [None] * num_jobs

    def launch(self, cell: Cell) -> Job | None:
        """Start a cell on the first free share of the machine."""
        free = [i for i, job in enumerate(self._jobs) if job is None or job.poll() is not None]
        if not free:
            return None
        share = free[0]
        cell.log.parent.mkdir(parents=True, exist_ok=True)
        check_regular(cell.log)
        with cell.log.open("ab") as log:
            try:
                # The process inherits the lock, and keeps it even if this one is killed.
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            described = str(cell.workdir), str(cell.until), str(os.getpid()), cell.split
            process = subprocess.Popen(
                [sys.executable, "-m", "t2t_jax.sweep.cell", *described, *self._flags],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._gpus[share], **environment_of(cell.config)},
                start_new_session=True,  # Ctrl-C reaches it through `stop` alone
            )
        job = self._jobs[share] = _LocalJob(cell, process)
        os.sched_setaffinity(process.pid, self._cores[share])
        return job


class _LocalJob:
    def __init__(self, cell: Cell, process: subprocess.Popen[bytes]) -> None:
        self._cell, self._process = cell, process
        assert process.stdin is not None
        # The process may have ended at once; `poll` tells why.
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(cell.config.to_json().encode())

    def poll(self) -> Outcome | None:
        code = self._process.poll()
        if code is None:
            return None
        if code < 0:
            name = signal.Signals(-code).name
            return Outcome(1, f"its process was ended by {name}; see {self._cell.log}")
        said = _last_line(self._cell.log) or f"see {self._cell.log}"
        return Outcome(code, said if code else "")

    def stop(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        self._process.wait()


def last_words(cell: Cell) -> str:
    """Return the last line that a process of a cell printed, here or in a job; "" without any."""
    number = _job_id(cell.workdir.with_suffix(".job"))
    errors = cell.workdir.parent.parent / _SUBMITIT / f"{number}_0_log.err"
    files = [path for path in (cell.log, errors) if path.is_file()]
    return _last_line(max(files, key=lambda path: path.stat().st_mtime)) if files else ""


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = (line.strip() for line in reversed(lines) if not line.startswith("INFO:submitit:"))
    return next(filter(None, said), "")


class Cluster:
    """A launcher of jobs on a cluster, which outlive the sweep; a later sweep takes them over."""

    def __init__(
        self, workdir: Path, settings: Sequence[str], kind: str = "slurm", flags: Sequence[str] = ()
    ) -> None:
        """Prepare to submit all cells at once, as the cluster has a queue.

        Args:
          workdir: the grid's directory; submitit's files go to its folder `submitit/`.
          settings: `name=value` for `submitit.AutoExecutor.update_parameters`, such as
            `slurm_partition=gpu`; `timeout_min` is required.
          kind: the kind of cluster, by submitit's name for it.
          flags: as for `Local`.
        """
        with needs_extra("slurm", "--launcher slurm"):
            import submitit

        check_local(workdir, "for jobs of a cluster, choose a directory that the nodes share")
        parameters = _parsed(settings)
        if not {"timeout_min", "slurm_time"} & parameters.keys():
            raise UserError("a job needs a time limit, such as --slurm timeout_min=1440 (minutes)")
        self._folder, self._flags = workdir / _SUBMITIT, flags
        if kind == "slurm":
            _watch_queue()
        self._job_class = {"slurm": submitit.SlurmJob, "local": submitit.LocalJob}[kind]
        try:
            self._executor = submitit.AutoExecutor(folder=self._folder, cluster=kind)
            self._executor.update_parameters(name=workdir.name, **parameters)
        except (RuntimeError, NameError, TypeError, ValueError, AssertionError) as error:
            reason = in_one_line(error)
            raise UserError(f"launcher {kind}: {reason}; mend --slurm name=value") from error

    def launch(self, cell: Cell) -> Job | None:
        """Submit a cell, unless its job is in the queue already."""
        stored = cell.workdir.with_suffix(".job")
        if job_id := _job_id(stored):
            job = self._job_class(self._folder, job_id, [0])
            if not job.done():
                return _ClusterJob(job)
        try:
            # As text: only a config that is made on the node reads the files that register names.
            config, env = cell.config.to_json(), environment_of(cell.config)
            job = self._executor.submit(
                _run_cell, config, str(cell.workdir), env, self._flags, cell.until, cell.split
            )
        except RuntimeError as error:  # sbatch refused it
            raise UserError(f"cannot be submitted: {in_one_line(error)}") from error
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_whole(stored, f"{job.job_id}\n".encode())
        return _ClusterJob(job)


def _watch_queue() -> None:
    """Have submitit ask Slurm's queue for the states of jobs, if Slurm keeps no accounts.

    submitit asks only the accounts. Without them it warns at every poll, and takes a job that ended
    without a result for a running one. If the queue does not answer, a single warning says so.
    """
    with suppress(OSError):
        if not subprocess.run(["sacct", "--noheader"], capture_output=True, check=False).returncode:
            return
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    class Queue(SlurmInfoWatcher):
        is_silent = False
        """Whether the last look had no answer, as while the controller of Slurm is started anew."""

        def update(self) -> None:
            of_user = f"--user={os.getuid()}"
            command = ["squeue", "--noheader", "--states=all", of_user, "--format=%i|%T|%N"]
            seen = subprocess.run(command, capture_output=True, check=False)
            if seen.returncode and not self.is_silent:
                said = in_one_line(seen.stderr.decode(errors="replace"))
                warn(f"squeue does not answer ({said}); until it does, jobs keep their last state")
            self.is_silent = bool(seen.returncode)
            if not self.is_silent:
                jobs = self.read_info(b"JobID|State|NodeList\n" + seen.stdout)
                self._info_dict.update({job: {"State": "GONE"} for job in self._registered} | jobs)
            self._last_status_check = time.time()
            ended = {job for job in self._registered if self.is_done(job, mode="cache")}
            self._finished |= ended

    SlurmJob.watcher = Queue(delay_s=600)


def _job_id(stored: Path) -> str:
    """Return the job that a file names; "" if there is no file, or an empty one after a kill."""
    content = stored.read_bytes().strip() if stored.is_file() else b""
    if content and not re.fullmatch(rb"[0-9]+(_[0-9]+)?", content):
        raise UserError(
            f"{stored} is damaged: {content[:40]!r} is no job of the cluster; see whether the job "
            "runs, then remove the file to submit it again"
        )
    return content.decode()


def _run_cell(
    config: str, workdir: str, env: Mapping[str, str], flags: Sequence[str], until: int, split: str
) -> Outcome:
    """Train and score a cell on a node of the cluster.

    SIGUSR2, which announces the end of the job's time or its preemption, stops the training like
    SIGTERM: with a checkpoint. The sweep then submits the cell again.
    """
    from t2t_jax.system.program import prepare_process

    os.environ.update(env)
    prepare_process()
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        cell = Cell("", Config.from_json(config), Path(workdir), until, split)
        return Outcome(train_and_score(cell, flags), "")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return Outcome(2, f"error: {error}")
    except Exception as error:
        traceback.print_exc()
        return Outcome(1, f"{type(error).__name__}: {in_one_line(error)[:200]}")


class _ClusterJob:
    def __init__(self, job: Any) -> None:
        self._job = job

    def poll(self) -> Outcome | None:
        if not self._job.done():
            return None
        try:
            return self._job.result()
        except Exception as error:  # it left no result
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Outcome(1, f"job {self._job.job_id}: {first}; see {self._job.paths.stderr}")

    def stop(self) -> None:
        """Do nothing, as the job continues without the sweep."""

    def wait(self) -> None:
        """Do nothing, as `stop` has not asked the job to end."""


def _parsed(settings: Sequence[str]) -> Mapping[str, object]:
    parsed: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals and value):
            raise UserError(f"--slurm {setting!r} is not name=value, as in slurm_partition=gpu")
        try:
            parsed[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parsed[name] = value
    return parsed
