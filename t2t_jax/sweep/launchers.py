"""Launch the cells of a grid as local processes, or as cluster jobs through submitit."""

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
from t2t_jax.config.registered import environment_of
from t2t_jax.errors import UserError, in_one_line, needs_extra, reason_of, warn
from t2t_jax.sweep.cell import Cell, train_and_score
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import check_local
from t2t_jax.system.regular_file import check_regular

_CUDA, _ROCM = "CUDA_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PLATFORMS = {"gpu", "cuda", "rocm"}  # JAX's names for GPUs
_SECONDS_TO_LIST = 60
_NVIDIA_LINE = re.compile(r"^(?:GPU (\d+): |[ \t]+MIG .*\(UUID: (MIG-[^)]+)\))", re.MULTILINE)
_NVIDIA, _AMD = "proc/driver/nvidia/gpus", "sys/class/kfd/kfd/topology/nodes"


class Gpus(NamedTuple):
    """The GPUs that local processes may use."""

    names: tuple[str, ...] = ()
    """Names or indices of GPUs, as `variable` expects them."""
    variable: str = _CUDA
    """The environment variable for the GPUs visible to a process."""
    source: str = ""
    """The source of the names, for error messages."""


def find_gpus(root: Path = Path("/")) -> Gpus:
    """Find the GPUs, or their MIG instances, that a process in this environment sees.

    The sources are environment variables, then `nvidia-smi`, then driver files below `root`. No
    GPU is visible if JAX_PLATFORMS excludes GPUs.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not _PLATFORMS & {*platforms.split(",")}:
        return Gpus()
    for variable in (_CUDA, *_ROCM):
        if variable in os.environ:
            names = [name.strip() for name in os.environ[variable].split(",")]
            hidden = "", "-1", "NoDevFiles"  # Slurm writes NoDevFiles
            return Gpus(tuple(name for name in names if name not in hidden), variable, variable)
    if gpu_names := _list_nvidia():
        return Gpus(gpu_names, _CUDA, "nvidia-smi -L")
    if indices := tuple(str(i) for i, _ in enumerate((root / _NVIDIA).glob("*"))):
        return Gpus(indices, _CUDA, f"/{_NVIDIA}")
    gpu_ids = (path.read_text().strip() for path in (root / _AMD).glob("*/gpu_id"))
    num_gpus = sum(gpu_id not in ("", "0") for gpu_id in gpu_ids)  # CPUs have the id 0
    return Gpus(tuple(map(str, range(num_gpus))), _ROCM[0], f"/{_AMD}")


def _list_nvidia() -> tuple[str, ...]:
    """Return the GPUs that `nvidia-smi` lists: MIG instances by name, other GPUs by index."""
    command, devnull = ["nvidia-smi", "-L"], subprocess.DEVNULL
    try:
        output = subprocess.check_output(command, stderr=devnull, timeout=_SECONDS_TO_LIST)
    except (OSError, subprocess.SubprocessError):  # nvidia-smi is missing, or finds no driver
        return ()
    names_by_gpu: dict[str, list[str]] = {}
    for gpu_index, mig_name in _NVIDIA_LINE.findall(output.decode(errors="replace")):
        if gpu_index:
            names_by_gpu[gpu_index] = []
        elif names_by_gpu:
            names_by_gpu[next(reversed(names_by_gpu))].append(mig_name)
    return tuple(name for gpu_index, names in names_by_gpu.items() for name in names or [gpu_index])


_SUBMITIT = "submitit"


class Outcome(NamedTuple):
    """The exit code of a cell's process, and the reason for a failure."""

    code: int
    """0 if the cell is done, 128 + n if signal n stopped it, another number for a failure."""
    message: str
    """The reason for a failure, in one line; "" for code 0."""


@runtime_checkable
class Job(Protocol):
    """The local process or cluster job that trains a cell."""

    def poll(self) -> Outcome | None:
        """Return the outcome of the cell; None while the cell is queued or running."""

    def stop(self) -> None:
        """Ask a local process to write a checkpoint and exit; let a cluster job continue."""

    def wait(self) -> None:
        """Wait until a stopped local process exits; do not wait for a cluster job."""


@runtime_checkable
class Launcher(Protocol):
    """The interface for starting cells, on this machine or on a cluster."""

    def launch(self, cell: Cell) -> Job | None:
        """Start a cell, or adopt its queued or running job.

        Returns:
          The job; None if no slot is free, or if another sweep trains this cell.

        Raises:
          UserError, OSError: the cell cannot start.
        """


class Local:
    """Launch cells as local processes, each with a separate share of the CPU cores and GPUs."""

    # No two processes may see the same GPU: JAX reserves 75% of the memory of each visible GPU.

    def __init__(self, num_jobs: int, flags: Sequence[str] = ()) -> None:
        """Divide cores and GPUs between processes, and refuse too many processes.

        Args:
          num_jobs: the number of parallel processes, at most one per core and per GPU.
          flags: command-line flags of plugins for the cells.
        """
        self._flags = flags
        cores = sorted(os.sched_getaffinity(0))
        if not 1 <= num_jobs <= len(cores):
            raise UserError(f"jobs={num_jobs} is not from 1 to {len(cores)}, the number of cores")
        gpus = find_gpus() if num_jobs > 1 else Gpus()  # a single process uses all GPUs
        names = gpus.names
        if names and num_jobs > len(names):
            raise UserError(
                f"jobs={num_jobs} is more than the {len(names)} GPUs of {gpus.source}, and a GPU "
                "fits only one job; use at most one job per GPU, or set JAX_PLATFORMS=cpu to train "
                "on CPU cores"
            )
        self._cores = [set(cores[job_index::num_jobs]) for job_index in range(num_jobs)]
        self._gpus = [
            {gpus.variable: ",".join(names[job_index::num_jobs])} if names else {}
            for job_index in range(num_jobs)
        ]
        self._jobs: list[_LocalJob | None] = [None] * num_jobs

    def launch(self, cell: Cell) -> Job | None:
        """Start a cell on the first free share of cores and GPUs; None if no share is free."""
        free = [i for i, job in enumerate(self._jobs) if job is None or job.poll() is not None]
        if not free:
            return None
        share_index = free[0]
        cell.log.parent.mkdir(parents=True, exist_ok=True)
        check_regular(cell.log)
        with cell.log.open("ab") as log:
            try:
                # The cell inherits the lock, and keeps it even if the sweep is killed.
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            cell_arguments = str(cell.workdir), str(cell.last_step), str(os.getpid()), cell.split
            process = subprocess.Popen(
                [sys.executable, "-m", "t2t_jax.sweep.cell", *cell_arguments, *self._flags],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._gpus[share_index], **environment_of(cell.config)},
                start_new_session=True,  # Ctrl-C must reach the cell only through `stop`
            )
        job = self._jobs[share_index] = _LocalJob(cell, process)
        os.sched_setaffinity(process.pid, self._cores[share_index])
        return job


class _LocalJob:
    def __init__(self, cell: Cell, process: subprocess.Popen[bytes]) -> None:
        self._cell, self._process = cell, process
        assert process.stdin is not None
        # A process that has already failed closes the pipe; `poll` reports the reason.
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(cell.config.to_json().encode())

    def poll(self) -> Outcome | None:
        exit_code = self._process.poll()
        if exit_code is None:
            return None
        if exit_code < 0:
            name = signal.Signals(-exit_code).name
            return Outcome(1, f"{name} ended its process; see {self._cell.log}")
        message = _last_line(self._cell.log) or f"see {self._cell.log}"
        return Outcome(exit_code, message if exit_code else "")

    def stop(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        self._process.wait()


def last_output(cell: Cell) -> str:
    """Return the last line that a local or cluster cell printed; "" if none."""
    job_id = _job_id(cell.workdir.with_suffix(".job"))
    error_log = cell.workdir.parent.parent / _SUBMITIT / f"{job_id}_0_log.err"
    paths = [path for path in (cell.log, error_log) if path.is_file()]
    return _last_line(max(paths, key=lambda path: path.stat().st_mtime)) if paths else ""


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    messages = (line.strip() for line in reversed(lines) if not line.startswith("INFO:submitit:"))
    return next(filter(None, messages), "")


class Cluster:
    """Launch cells as cluster jobs. Jobs outlive the sweep, and a later sweep adopts them."""

    def __init__(
        self, workdir: Path, settings: Sequence[str], kind: str = "slurm", flags: Sequence[str] = ()
    ) -> None:
        """Configure submitit, which queues all cells at once.

        Args:
          workdir: the grid's directory; submitit writes its files to `submitit/` there.
          settings: `name=value` for `submitit.AutoExecutor.update_parameters`, such as
            `slurm_partition=gpu`; `timeout_min` is required.
          kind: submitit's name for the kind of cluster.
          flags: command-line flags of plugins for the cells.
        """
        with needs_extra("slurm", "--launcher slurm"):
            import submitit

        check_local(workdir, "for cluster jobs, choose a directory that the nodes share")
        parameters = _parse_settings(settings)
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
            raise UserError(f"launcher {kind}: {reason}; correct --slurm name=value") from error

    def launch(self, cell: Cell) -> Job | None:
        """Submit a cell, or adopt its job from the queue."""
        job_file = cell.workdir.with_suffix(".job")
        if job_id := _job_id(job_file):
            job = self._job_class(self._folder, job_id, [0])
            if not job.done():
                return _ClusterJob(job)
        try:
            # Send the config as JSON text, so that the node loads the files that register names.
            config, env = cell.config.to_json(), environment_of(cell.config)
            job = self._executor.submit(
                _run_cell, config, str(cell.workdir), env, self._flags, cell.last_step, cell.split
            )
        except RuntimeError as error:  # sbatch refused it
            raise UserError(f"cannot be submitted: {in_one_line(error)}") from error
        job_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(job_file, f"{job.job_id}\n".encode())
        return _ClusterJob(job)


def _watch_queue() -> None:
    """Make submitit read the states of jobs from `squeue` if Slurm has no accounting database."""
    # Without a database, submitit itself would warn at every poll, and report jobs as running that
    # ended without a result.
    with suppress(OSError):
        if not subprocess.run(["sacct", "--noheader"], capture_output=True, check=False).returncode:
            return
    from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

    class Queue(SlurmInfoWatcher):
        is_silent = False
        """Whether the last query failed, for example while Slurm's controller restarts."""

        def update(self) -> None:
            user = f"--user={os.getuid()}"
            command = ["squeue", "--noheader", "--states=all", user, "--format=%i|%T|%N"]
            reply = subprocess.run(command, capture_output=True, check=False)
            if reply.returncode and not self.is_silent:
                error = in_one_line(reply.stderr.decode(errors="replace"))
                warn(f"squeue does not answer ({error}); until it does, jobs keep their last state")
            self.is_silent = bool(reply.returncode)
            if not self.is_silent:
                jobs = self.read_info(b"JobID|State|NodeList\n" + reply.stdout)
                self._info_dict.update({job: {"State": "GONE"} for job in self._registered} | jobs)
            self._last_status_check = time.time()
            ended_jobs = {job for job in self._registered if self.is_done(job, mode="cache")}
            self._finished |= ended_jobs

    SlurmJob.watcher = Queue(delay_s=600)


def _job_id(job_file: Path) -> str:
    """Read the id of a cluster job; "" if the file is missing, or is empty after a kill."""
    job_id = job_file.read_bytes().strip() if job_file.is_file() else b""
    if job_id and not re.fullmatch(rb"[0-9]+(_[0-9]+)?", job_id):
        raise UserError(
            f"{job_file} is damaged: {job_id[:40]!r} is not a job id; check whether the job still "
            "runs, then remove the file to submit it again"
        )
    return job_id.decode()


def _run_cell(
    config: str, workdir: str, env: Mapping[str, str], flags: Sequence[str], step: int, split: str
) -> Outcome:
    from t2t_jax.system.program import prepare_process

    os.environ.update(env)
    prepare_process()
    # SIGUSR2 announces a timeout or preemption. Training then stops after a checkpoint, and the
    # sweep submits the cell again.
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        cell = Cell("", Config.from_json(config), Path(workdir), step, split)
        return Outcome(train_and_score(cell, flags), "")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return Outcome(2, f"error: {error}")
    except Exception as error:
        traceback.print_exc()
        return Outcome(1, reason_of(error))


class _ClusterJob:
    def __init__(self, job: Any) -> None:
        self._job = job

    def poll(self) -> Outcome | None:
        if not self._job.done():
            return None
        try:
            return self._job.result()
        except Exception as error:  # the job left no result
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            return Outcome(1, f"job {self._job.job_id}: {first_line}; see {self._job.paths.stderr}")

    def stop(self) -> None:
        """Do nothing: the job continues without the sweep."""

    def wait(self) -> None:
        """Return at once, because `stop` lets a cluster job continue."""


def _parse_settings(settings: Sequence[str]) -> Mapping[str, object]:
    parameters: dict[str, object] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not (name and separator and value):
            raise UserError(f"--slurm {setting!r} is not name=value, as in slurm_partition=gpu")
        try:
            parameters[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parameters[name] = value
    return parameters
