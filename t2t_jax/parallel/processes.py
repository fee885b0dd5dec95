"""Connect several processes, agree on decisions between them, and lock a run directory.

After `join`, `jax.devices()` lists the devices of all processes. All processes must start the same
programs in the same order, so they must agree on every decision about the next program.
"""

import hashlib
import inspect
import os
import re
import secrets
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from t2t_jax.errors import LostProcessError, UserError, in_one_line, needs_extra
from t2t_jax.parallel.liveness import liveness, watch_processes, within
from t2t_jax.system.host import host_name, let_devices_wait
from t2t_jax.system.lock import LOCK, holding, is_held

_LAG = 2
_LONGEST = 1800.0
_LEAST_SILENCE = 10.0  # seconds, because a busy host may suspend a thread for several seconds
_LONGEST_NAME = 64
_BY_HAND = (
    "pass --coordinator, --num-processes and --process-id, as t2t-jax launch does, or train in a "
    "single process with --num-processes 1"
)


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    minutes: float = 30.0,
    hang_minutes: float | None = 10.0,
) -> None:
    """Connect to the other processes of this run, before any call of `jax.devices`.

    Without arguments, JAX reads the processes from the environment: Slurm, Open MPI, a TPU pod or a
    Kubernetes job. Slurm and Open MPI give each process one GPU of its host
    (JAX_LOCAL_DEVICE_IDS overrides the choice).

    Args:
      coordinator: HOST:PORT where process 0 listens. Under Open MPI, the other two arguments may
        be None.
      num_processes: the number of processes; 1 ignores the environment.
      process_id: index of this process, from 0.
      minutes: how long to wait for the other processes.
      hang_minutes: the program ends if another process is silent for half of this time.
    """
    if num_processes == 1:
        return
    local_device = None
    if _tasks() > 1 and is_open_mpi_5() and num_processes is process_id is None:
        coordinator, num_processes, process_id = open_mpi_arguments(coordinator)
        if "JAX_LOCAL_DEVICE_IDS" not in os.environ:
            local_device = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    if coordinator is not None and num_processes is not None and process_id is not None:
        _check_address(coordinator, num_processes, process_id)
    elif (coordinator, num_processes, process_id) != (None, None, None):
        raise UserError("--coordinator, --num-processes and --process-id go together; pass all")
    elif not _has_others():
        return
    let_devices_wait()
    # JAX's preemption service would catch SIGTERM before the training loop starts, and ignore it.
    # JAX 0.6 lacks this setting.
    with suppress(AttributeError):
        jax.config.update("jax_enable_preemption_service", False)
    settings = {
        "initialization_timeout": int(60 * minutes) + 3600,
        "shutdown_timeout_seconds": 60,  # how long the first process to end waits for the others
        # `liveness` notices a silent process before JAX does, which would abort the program.
        "heartbeat_timeout_seconds": int(60 * hang_minutes) + 600 if hang_minutes else 10**6,
    }
    # JAX 0.6 accepts only the first setting.
    accepted = inspect.signature(jax.distributed.initialize).parameters
    settings = {name: value for name, value in settings.items() if name in accepted}
    initialize = partial(jax.distributed.initialize, coordinator, num_processes, process_id)
    _meet(partial(initialize, local_device, **settings), coordinator, 60 * minutes)
    if jax.process_count() > 1:
        watch_processes(max(_LEAST_SILENCE, 30 * hang_minutes) if hang_minutes else None)


def _check_address(coordinator: str, num_processes: int, process_id: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--coordinator {coordinator} is not HOST:PORT, as in 10.0.0.1:8476")
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process-id {process_id} is not one of {num_processes} processes, which are counted "
            f"from 0 to {num_processes - 1}"
        )


def _has_others() -> bool:
    return _tasks() > 1 or _is_on_tpu_pod() or _is_in_kubernetes_job()


def _tasks() -> int:
    """Return the number of tasks of this Slurm step or Open MPI program."""
    # SLURM_NTASKS would be wrong: in the shell of an allocation it counts tasks that nobody
    # started. A single-task step must not use the port of its job, which another step may use.
    counts = (os.environ.get(n, "") for n in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return max(int(count) if count.isdecimal() else 1 for count in counts)


def _is_on_tpu_pod() -> bool:
    # JAX puts `tpu` first if it finds TPU chips and libtpu. On other machines nothing is queried.
    if not (jax.config.values["jax_platforms"] or "").startswith("tpu"):
        return False
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    if hosts:
        return "," in hosts or os.environ.get("MEGASCALE_NUM_SLICES", "1") != "1"
    return "TPU_SKIP_MDS_QUERY" not in os.environ  # JAX asks the machine's metadata server


def _is_in_kubernetes_job() -> bool:
    """Return whether this process runs in a pod of an indexed Kubernetes job without TPUs."""
    # JAX queries Kubernetes for the other pods, except on TPU pods, whose environment names them.
    if not {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= os.environ.keys():
        return False
    if (jax.config.values["jax_platforms"] or "").startswith("tpu"):
        return False
    try:
        with needs_extra("kubernetes", "finding the other pods of this job"):
            import_module("kubernetes")
    except UserError as error:
        raise UserError(f"{error}; or {_BY_HAND}") from error
    return True


def _meet(initialize: Callable[[], None], coordinator: str | None, seconds: float) -> None:
    """Run `initialize` in a thread with a timeout, because JAX would abort the program."""
    with RollCall() as roll_call:
        met = within(seconds, initialize)
    address = f"at {coordinator}" if coordinator else "at the address from the environment"
    if not met.done():
        raise LostProcessError(
            f"the processes did not connect {address} within {seconds / 60:g} min "
            f"(parallel.rendezvous_minutes): {roll_call.result()}; start all processes, each with "
            "its own --process-id, on hosts that can reach that host and port"
        )
    if error := met.exception():  # of any class, such as ValueError for unexpected variables
        reason = in_one_line(error)
        if "Kubernetes API Error: 403" in reason:  # JAX's own message is long
            reason = "the service account of this pod may not read pods, services and jobs"
        raise UserError(
            f"cannot connect to the other processes {address} ({reason}); {_BY_HAND}"
        ) from error


def is_main() -> bool:
    """Return whether this process is process 0, which writes the shared files."""
    return jax.process_index() == 0


@cache
def _copies() -> tuple[NamedSharding, Callable[[jax.Array], jax.Array]]:
    """Return a sharding with one row per device, and a function that replicates all rows."""
    mesh = Mesh(np.asarray(jax.devices()), ("devices",))
    rows = NamedSharding(mesh, PartitionSpec("devices"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return rows, jax.jit(lambda x: x, out_shardings=everywhere)


def _start_exchange(values: Sequence[int]) -> jax.Array:
    """Start to send int32 values to all processes, without waiting for them.

    Returns:
      `[devices, values]`, ready once all processes have called. All devices of a process have equal
      rows.
    """
    rows, copy = _copies()
    local_rows = np.tile(np.asarray(values, np.int32), (jax.local_device_count(), 1))
    return copy(jax.make_array_from_process_local_data(rows, local_rows))


def agree(proposal: int) -> int:
    """Return the largest proposal of all processes.

    The call blocks until every process has called, so it is also a barrier.

    Args:
      proposal: an int32 other than -2**31.
    """
    if jax.process_count() == 1:
        return proposal
    return int(np.asarray(_start_exchange([proposal])).max())


def broadcast_from_main(value: int) -> int:
    """Broadcast an integer from process 0 to all processes."""
    return agree(value if is_main() else 1 - 2**31)


def failing_process(holds: bool) -> int | None:
    """Return the largest index of a process whose `holds` is False, or None."""
    index = agree(-1 if holds else jax.process_index())
    return None if index < 0 else index


class Agreement:
    """Agree on the largest number that any process proposes, without waiting for devices.

    All processes call the object equally often, and each call returns the result of two calls ago.

    Attributes:
      seconds: the durations that the processes passed in that earlier call, by process index. None
        before the first result, and in a single process.
    """

    def __init__(self) -> None:
        """Start with no proposals."""
        self._under_way: deque[jax.Array] = deque()
        owners = [device.process_index for device in jax.devices()]
        self._first_devices = np.unique(owners, return_index=True)[1]
        self.seconds: Float[np.ndarray, " processes"] | None = None

    def __call__(self, proposal: int, seconds: float = 0.0) -> int:
        """Send a proposal to all, and return the largest that any process sent two calls ago.

        The first two calls return 0, and no call returns the last two proposals. A single process
        gets its proposal back at once.

        Args:
          proposal: an int32 other than -2**31; 0 means no proposal.
          seconds: a duration for `Agreement.seconds` of all processes, capped at half an hour, with
            microsecond resolution.
        """
        if jax.process_count() == 1:
            return proposal
        self._under_way.append(_start_exchange([proposal, int(min(seconds, _LONGEST) * 1e6)]))
        if len(self._under_way) <= _LAG:
            return 0
        gathered = np.asarray(self._under_way.popleft())
        self.seconds = gathered[self._first_devices, 1] / 1e6
        return int(gathered[:, 0].max())


@cache
def hosts() -> tuple[str, ...]:
    """Return the host name of each process; all processes make the first call together."""
    name = host_name().encode()[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0")
    local_name = np.frombuffer(name, np.uint8)
    rows = np.reshape(multihost_utils.process_allgather(local_name), (-1, _LONGEST_NAME))
    return tuple(bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows)


def check_same(facts: Mapping[str, str]) -> None:
    """Refuse to continue unless all processes have identical facts.

    Args:
      facts: texts keyed by name; the names and their order are the same on all processes.

    Raises:
      UserError: on every process, naming a fact and the first process that differs from process 0.
    """
    if jax.process_count() == 1:
        return
    digests = [np.frombuffer(hashlib.sha256(v.encode()).digest(), np.uint8) for v in facts.values()]
    all_digests = np.asarray(multihost_utils.process_allgather(np.stack(digests)))
    differs = (all_digests != all_digests[0]).any(axis=-1)  # [processes, facts]
    if differs.any():
        process, fact_index = np.argwhere(differs)[0]
        raise UserError(
            f"{list(facts)[fact_index]} of process {process} differs from process 0; give all "
            "processes the same command line and the same files"
        )


@contextmanager
def bound_together() -> Iterator[None]:
    """Turn the loss of another process within the context into a one-line error.

    Any other error is reported to the other processes at once.

    Raises:
      LostProcessError: another process is gone, which ends the run of all processes.
    """
    try:
        yield
    except Exception as error:
        watcher, signs = liveness(), ("Gloo", "NCCL", "coordination service", "heartbeat")
        # Dispatching a program raises a ValueError after the loss of a process.
        is_from_jax = isinstance(error, (jax.errors.JaxRuntimeError, ValueError))
        is_loss = is_from_jax and not isinstance(error, UserError)
        if jax.process_count() == 1 or not is_loss or not any(s in str(error) for s in signs):
            if watcher:
                watcher.report(error)
            raise
        if watcher:
            watcher.wait()
        reason = in_one_line(error)[:200]
        raise LostProcessError(
            f"another process of this run is gone ({reason}); see its error message, and start "
            "all processes again: they resume from the last checkpoint"
        ) from error


_FIRST_PORT, _NUM_PORTS = 61440, 4096  # JAX takes the ports of jobs from this range


def is_open_mpi_5() -> bool:
    """Return whether `mpirun` of Open MPI 5 started this process and others."""
    names = os.environ.keys()
    return {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= names and not any(
        name.startswith("OMPI_MCA_orte_") for name in names
    )


def open_mpi_arguments(coordinator: str | None) -> tuple[str, int, int]:
    """Return the coordinator, number of processes and process index under Open MPI 5.

    If `coordinator` is None, process 0 must run on the host of `mpirun`.
    """
    # JAX only reads the variables of Open MPI 4. The name of a job contains the host of `mpirun`,
    # as in `prterun-node1-4711@1`.
    size, rank = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("SIZE", "RANK"))
    if coordinator is None:
        job = os.environ.get("PMIX_NAMESPACE", "")
        launcher = re.fullmatch(r"\w+-(.+)-\d+@\d+", job)
        host = launcher[1] if launcher else ""
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
            host = "127.0.0.1"
        is_elsewhere = host.partition(".")[0] != socket.gethostname().partition(".")[0]
        if not job or not host or (rank == 0 and host != "127.0.0.1" and is_elsewhere):
            raise UserError(
                "Open MPI does not name the host of process 0; add --coordinator HOST:PORT with "
                "that host and a free port"
            )
        coordinator = f"{host}:{_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS}"
    return coordinator, size, rank


_CALL_SECONDS = 1.0
_MOST_NAMED = 16


class RollCall:
    """Track which processes have connected, for the error message that names missing ones.

    Process 0 listens on the address of the coordinator, at the port after JAX's own. The other
    processes connect and send their index. If the port is unavailable, only the error message has
    less detail.
    """

    def __init__(self) -> None:
        """Start with no connected process."""
        self._present: set[int] = set()  # contains 0 once process 0 listens or answers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="roll call")

    def __enter__(self) -> "RollCall":
        """Start a thread that listens or connects once JAX knows the address of process 0."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening or connecting."""
        self._over.set()
        self._thread.join(2 * _CALL_SECONDS)

    def result(self) -> str:
        """Describe which processes have not connected, as far as this process knows."""
        num_processes, process_index = global_state.num_processes, global_state.process_id
        if not global_state.coordinator_address:
            return "the address of process 0 is not known yet"
        if process_index != 0:
            if 0 in self._present:
                return "process 0 is connected, and its error names the missing processes"
            return f"process 0 does not answer process {process_index}"
        if 0 not in self._present:
            return f"process 0 waits for {num_processes - 1} other processes"
        missing = sorted({*range(num_processes)} - self._present)
        indices_text = ", ".join(map(str, missing[:_MOST_NAMED])) or "none"
        suffix = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        return f"{len(missing)} of {num_processes} processes are missing: {indices_text}{suffix}"

    def _run(self) -> None:
        while not global_state.coordinator_address or global_state.client is None:
            if self._over.wait(0.1):
                return
        host, _, port = global_state.coordinator_address.rpartition(":")
        with suppress(OSError, OverflowError):
            if global_state.process_id == 0:
                self._listen(host.strip("[]"), int(port) + 1)
            else:
                self._call(host.strip("[]"), int(port) + 1)

    def _listen(self, host: str, port: int) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if str(address[0]).startswith("127.0.1."):  # Debian's loopback address of the host name
            return
        with socket.create_server((str(address[0]), port), family=family) as server:
            server.settimeout(_CALL_SECONDS)
            self._present.add(0)
            while not self._over.is_set():
                with suppress(OSError, ValueError):
                    caller, _ = server.accept()
                    with caller:
                        caller.settimeout(_CALL_SECONDS)
                        self._present.add(int(caller.recv(16)))

    def _call(self, host: str, port: int) -> None:
        while not self._over.wait(_CALL_SECONDS * (30 if 0 in self._present else 1)):
            with (
                suppress(OSError),
                socket.create_connection((host, port), timeout=_CALL_SECONDS) as connection,
            ):
                connection.sendall(str(global_state.process_id).encode())
                self._present.add(0)


_SECONDS_TO_BE_SEEN = 60.0


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Create a run directory if needed, and hold its lock within a `with` block.

    Process 0 holds the lock, and the other processes check that they see the same directory.

    Raises:
      UserError: another process trains in the directory, or not all processes see the same one.
    """
    mark = secrets.randbelow(2**31)
    with ExitStack() as stack:
        if is_main():
            workdir.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(holding(workdir / LOCK, str(mark)))
            except BlockingIOError as error:
                raise _held_error(workdir) from error
        process = failing_process(_finds(workdir / LOCK, broadcast_from_main(mark)))
        if process is not None:
            raise UserError(
                f"{workdir} is not the same directory on process {process} as on process 0; put it "
                "on a filesystem that all hosts share"
            )
        yield


def check_free(workdir: Path) -> None:
    """Refuse a directory in which another process trains."""
    if is_held(workdir / LOCK):
        raise _held_error(workdir)


def _held_error(workdir: Path) -> UserError:
    return UserError(
        f"another process trains in {workdir}; wait for it, or choose another --workdir"
    )


def _finds(path: Path, mark: int) -> bool:
    """Return whether a file, which may appear late, contains the mark; wait at most a minute."""
    deadline = time.monotonic() + _SECONDS_TO_BE_SEEN
    while True:
        with suppress(OSError):
            if path.read_text().split()[:1] == [str(mark)]:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
