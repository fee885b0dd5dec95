"""Several processes as one program: how they connect, agree, and lock a run directory.

A process sees the devices of its host. Once it has joined the others, `jax.devices()` lists the
devices of all. A program on them runs when all processes start it, in the same order. So every
decision about the next program must be the same in all processes: these functions ensure that.
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
_LEAST_SILENCE = 10.0  # seconds, as a busy host may not run a thread for some
_LONGEST_NAME = 64
_BY_HAND = (
    "name the place by --coordinator, --num-processes and --process-id, as t2t-jax launch does, or "
    "train alone: --num-processes 1"
)


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    minutes: float = 30.0,
    hang_minutes: float | None = 10.0,
) -> None:
    """Connect to the other processes of this run; call it before JAX is asked for its devices.

    Without arguments the environment identifies them: Slurm, Open MPI, a TPU pod or a Kubernetes
    job, as far as JAX knows it. If it names no others, nothing happens. Slurm and Open MPI give
    each process one GPU of its host (JAX_LOCAL_DEVICE_IDS names others).

    Args:
      coordinator: HOST:PORT of process 0, where it listens and the others connect. Open MPI gives
        the other two arguments.
      num_processes: 1 trains in one process, whatever the environment says.
      process_id: index of this process, from 0.
      minutes: how long to wait for the others.
      hang_minutes: after half of this time without a sign of another process, the program ends.
    """
    if num_processes == 1:
        return
    devices = None
    if _tasks() > 1 and is_open_mpi_5() and num_processes is process_id is None:
        coordinator, num_processes, process_id = open_mpi_arguments(coordinator)
        if "JAX_LOCAL_DEVICE_IDS" not in os.environ:
            devices = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    if coordinator is not None and num_processes is not None and process_id is not None:
        _check_place(coordinator, num_processes, process_id)
    elif (coordinator, num_processes, process_id) != (None, None, None):
        raise UserError("--coordinator, --num-processes and --process-id go together; give all")
    elif not _has_others():
        return
    let_devices_wait()
    # JAX's own service would receive SIGTERM until the training loop does, and ignore it. JAX 0.6
    # has no such setting.
    with suppress(AttributeError):
        jax.config.update("jax_enable_preemption_service", False)
    settings = {
        "initialization_timeout": int(60 * minutes) + 3600,
        "shutdown_timeout_seconds": 60,  # how long a process waits that ends first
        # `liveness` notices a silent process before JAX does, which would abort the program.
        "heartbeat_timeout_seconds": int(60 * hang_minutes) + 600 if hang_minutes else 10**6,
    }
    accepted = inspect.signature(jax.distributed.initialize).parameters  # JAX 0.6: only the first
    settings = {name: value for name, value in settings.items() if name in accepted}
    initialize = partial(
        jax.distributed.initialize, coordinator, num_processes, process_id, devices
    )
    _meet(partial(initialize, **settings), coordinator, 60 * minutes)
    if jax.process_count() > 1:
        watch_processes(max(_LEAST_SILENCE, 30 * hang_minutes) if hang_minutes else None)


def _check_place(coordinator: str, num_processes: int, process_id: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--coordinator {coordinator} is not HOST:PORT, as in 10.0.0.1:8476")
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process-id {process_id} is not one of {num_processes} processes; they are counted "
            f"from 0 to {num_processes - 1}"
        )


def _has_others() -> bool:
    """Return whether the environment names several processes, without contacting any."""
    return _tasks() > 1 or _is_on_tpu_pod() or _is_in_kubernetes_job()


def _tasks() -> int:
    """Return the number of tasks of this Slurm step or Open MPI program.

    If Slurm starts a program for one task, others may use its job's port; and in the shell of an
    allocation SLURM_NTASKS counts tasks that nobody started.
    """
    counts = (os.environ.get(n, "") for n in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return max(int(count) if count.isdecimal() else 1 for count in counts)


def _is_on_tpu_pod() -> bool:
    # JAX puts `tpu` first where it finds chips and their library; elsewhere nothing is asked.
    if not (jax.config.values["jax_platforms"] or "").startswith("tpu"):
        return False
    hosts = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    if hosts:
        return "," in hosts or os.environ.get("MEGASCALE_NUM_SLICES", "1") != "1"
    return "TPU_SKIP_MDS_QUERY" not in os.environ  # JAX asks the machine's metadata server


def _is_in_kubernetes_job() -> bool:
    """Return whether this is a pod of an indexed job, for which JAX queries Kubernetes.

    A pod with TPUs learns of the others from its environment.
    """
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
    """Run `initialize` in a thread, which can be abandoned: JAX aborts the program on a timeout."""
    with RollCall() as roll_call:
        met = within(seconds, initialize)
    place = f"at {coordinator}" if coordinator else "where the environment says"
    if not met.done():
        raise LostProcessError(
            f"the processes did not meet {place} within {seconds / 60:g} min "
            f"(parallel.rendezvous_minutes): {roll_call.result()}; start all, each with its "
            "own --process-id, where they can reach that host and port"
        )
    if error := met.exception():  # of many kinds: the environment is not what JAX expects
        reason = in_one_line(error)
        if "Kubernetes API Error: 403" in reason:  # JAX's own words, of which the rest is long
            reason = "the service account of this pod may not read pods, services and jobs"
        raise UserError(
            f"cannot meet the other processes {place} ({reason}); {_BY_HAND}"
        ) from error


def is_main() -> bool:
    """Return whether this is process 0, the only one that writes shared files."""
    return jax.process_index() == 0


@cache
def _copies() -> tuple[NamedSharding, Callable[[jax.Array], jax.Array]]:
    """Return a sharding of one row a device, and a function that gives all devices all rows."""
    mesh = Mesh(np.asarray(jax.devices()), ("devices",))
    rows = NamedSharding(mesh, PartitionSpec("devices"))
    whole = NamedSharding(mesh, PartitionSpec())
    return rows, jax.jit(lambda x: x, out_shardings=whole)


def _start_exchange(numbers: Sequence[int]) -> jax.Array:
    """Start to send some numbers to all processes; the array is ready once all have called.

    It has a row for each device; all devices of a process have its numbers.
    """
    rows, copy = _copies()
    own = np.tile(np.asarray(numbers, np.int32), (jax.local_device_count(), 1))
    return copy(jax.make_array_from_process_local_data(rows, own))


def agree(proposal: int) -> int:
    """Return the largest of the processes' proposals.

    The call waits until every process has made it, so it is a barrier, too.

    Args:
      proposal: an int32 other than -2**31.
    """
    if jax.process_count() == 1:
        return proposal
    return int(np.asarray(_start_exchange([proposal])).max())


def of_main(value: int) -> int:
    """Return process 0's number on all processes; other numbers are ignored."""
    return agree(value if is_main() else 1 - 2**31)


def one_without(holds: bool) -> int | None:
    """Return the index of a process for which `holds` is False, if there is one."""
    found = agree(-1 if holds else jax.process_index())
    return None if found < 0 else found


class Agreement:
    """A form of `agree` that answers two calls late, so that no process waits for computations.

    Attributes:
      seconds: the `seconds` of each process, in order, in the last answered call; None before the
        first answer, and for a single process.
    """

    def __init__(self) -> None:
        """Start without proposals."""
        self._under_way: deque[jax.Array] = deque()
        owners = [device.process_index for device in jax.devices()]
        self._first_devices = np.unique(owners, return_index=True)[1]
        self.seconds: Float[np.ndarray, " processes"] | None = None

    def __call__(self, proposal: int, seconds: float = 0.0) -> int:
        """Return the largest proposal of two calls ago; 0 in the first two calls.

        A single process gets its number back at once. The answers to the last two calls are never
        returned: if they matter, call `agree`.

        Args:
          proposal: a number as for `agree`; 0 means no proposal.
          seconds: a time that all processes learn, up to half an hour, in steps of a microsecond.
        """
        if jax.process_count() == 1:
            return proposal
        self._under_way.append(_start_exchange([proposal, int(min(seconds, _LONGEST) * 1e6)]))
        if len(self._under_way) <= _LAG:
            return 0
        told = np.asarray(self._under_way.popleft())
        self.seconds = told[self._first_devices, 1] / 1e6
        return int(told[:, 0].max())


@cache
def hosts() -> tuple[str, ...]:
    """Return the name of each process's host.

    All processes make the first call together.
    """
    name = host_name().encode()[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0")
    own = np.frombuffer(name, np.uint8)
    rows = np.reshape(multihost_utils.process_allgather(own), (-1, _LONGEST_NAME))
    return tuple(bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows)


def check_same(facts: Mapping[str, str]) -> None:
    """Refuse to continue unless all processes have the same facts.

    Args:
      facts: texts by name; all processes have the same names in the same order.

    Raises:
      UserError: on every process, naming a fact and the first process that differs from process 0.
    """
    if jax.process_count() == 1:
        return
    digests = [np.frombuffer(hashlib.sha256(v.encode()).digest(), np.uint8) for v in facts.values()]
    gathered = np.asarray(multihost_utils.process_allgather(np.stack(digests)))
    differs = (gathered != gathered[0]).any(axis=-1)  # [processes, facts]
    if differs.any():
        process, fact = np.argwhere(differs)[0]
        raise UserError(
            f"{list(facts)[fact]} of process {process} is not that of process 0; give all "
            "processes the same command line and the same files"
        )


@contextmanager
def bound_together() -> Iterator[None]:
    """Turn the loss of another process within the context into an error of one line.

    The other processes learn of any other error at once.

    Raises:
      LostProcessError: another process is gone, which ends the run for all.
    """
    try:
        yield
    except Exception as error:
        watcher, signs = liveness(), ("Gloo", "NCCL", "coordination service", "heartbeat")
        # It is a ValueError where a program is dispatched.
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
            f"another process of this run is gone ({reason}); see what it said, and start all "
            "again: they go on from the last checkpoint"
        ) from error


_FIRST_PORT, _NUM_PORTS = 61440, 4096  # JAX takes the ports of jobs from this range


def is_open_mpi_5() -> bool:
    """Return whether `mpirun` of Open MPI 5 started this process, as one of several."""
    names = os.environ.keys()
    return {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= names and not any(
        name.startswith("OMPI_MCA_orte_") for name in names
    )


def open_mpi_arguments(coordinator: str | None) -> tuple[str, int, int]:
    """Return the coordinator, the number of processes and the index of this process.

    JAX itself reads the variables of Open MPI 4 only.

    Without a coordinator, process 0 has to run on the host of `mpirun`, whose name is in the name
    of the job, such as `prterun-node1-4711@1`.
    """
    size, rank = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("SIZE", "RANK"))
    if coordinator is None:
        job = os.environ.get("PMIX_NAMESPACE", "")
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
            host = "127.0.0.1"
        else:
            launcher = re.fullmatch(r"\w+-(.+)-\d+@\d+", job)
            host = launcher[1] if launcher else ""
        is_elsewhere = host.partition(".")[0] != socket.gethostname().partition(".")[0]
        if not job or not host or (rank == 0 and host != "127.0.0.1" and is_elsewhere):
            raise UserError(
                "Open MPI does not say where process 0 is; add --coordinator HOST:PORT with its "
                "host and a free port"
            )
        coordinator = f"{host}:{_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS}"
    return coordinator, size, rank


_CALL_SECONDS = 1.0
_MOST_NAMED = 16


class RollCall:
    """The processes that have connected so far, as JAX does not report whom it waits for.

    Process 0 listens on the port after the one of JAX's service, on the coordinator's address only.
    The others connect and send their index. This only serves the error that names the missing
    processes: if the port is unavailable, the error says less, and nothing else changes.
    """

    def __init__(self) -> None:
        """Start with no process present."""
        self._present: set[int] = set()  # with 0 once process 0 listens, or answers this one
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="roll call")

    def __enter__(self) -> "RollCall":
        """Start to listen, or to connect, once JAX knows the address of process 0."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening or connecting."""
        self._over.set()
        self._thread.join(2 * _CALL_SECONDS)

    def result(self) -> str:
        """Return which processes are missing, as far as this process knows."""
        count, own = global_state.num_processes, global_state.process_id
        if not global_state.coordinator_address:
            return "the place of process 0 is not known yet"
        if own != 0:
            if 0 in self._present:
                return "process 0 is there, and says who is missing"
            return f"process 0 does not answer process {own}"
        if 0 not in self._present:
            return f"process 0 waits for {count - 1} others"
        missing = sorted({*range(count)} - self._present)
        named = ", ".join(map(str, missing[:_MOST_NAMED])) or "none"
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        return f"{len(missing)} of {count} processes are missing: {named}{more}"

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
        if str(address[0]).startswith("127.0.1."):  # Debian's address of a host for itself only
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
                socket.create_connection((host, port), timeout=_CALL_SECONDS) as line,
            ):
                line.sendall(str(global_state.process_id).encode())
                self._present.add(0)


_SECONDS_TO_BE_SEEN = 60.0


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Create the directory if needed, and lock it within a block with `system.lock`.

    Process 0 holds the lock, and other processes check that they see the same directory.

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
                raise _is_held(workdir) from error
        blind = one_without(_finds(workdir / LOCK, of_main(mark)))
        if blind is not None:
            raise UserError(
                f"{workdir} is not the same directory on process {blind} as on process 0; put it "
                "on a filesystem that all hosts share"
            )
        yield


def check_free(workdir: Path) -> None:
    """Refuse a directory in which another process trains."""
    if is_held(workdir / LOCK):
        raise _is_held(workdir)


def _is_held(workdir: Path) -> UserError:
    return UserError(
        f"another process trains in {workdir}; wait for it, or choose another --workdir"
    )


def _finds(path: Path, mark: int) -> bool:
    """Return whether a file has the mark, or gets it soon: files of another host appear late."""
    latest = time.monotonic() + _SECONDS_TO_BE_SEEN
    while True:
        with suppress(OSError):
            if path.read_text().split()[:1] == [str(mark)]:
                return True
        if time.monotonic() > latest:
            return False
        time.sleep(0.1)
