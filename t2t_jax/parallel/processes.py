"""Several processes as one program: how they connect, and how they agree.

A process sees the devices of its host. Once it has joined the others, `jax.devices()` lists the
devices of all. A program on them runs when all processes start it, in the same order. So every
decision about the next program must be the same in all processes: these functions ensure that.
"""

import hashlib
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from t2t_jax.errors import LostProcessError, UserError, in_one_line, needs_extra
from t2t_jax.parallel.liveness import liveness, watch_processes
from t2t_jax.parallel.open_mpi import is_open_mpi_5, open_mpi_arguments
from t2t_jax.parallel.roll_call import RollCall
from t2t_jax.system.host import host_name, let_devices_wait

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

    Raises:
      UserError: the arguments do not fit, or the processes did not connect.
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

    Raises:
      UserError: the package for JAX's query is missing, so every pod would train separately.
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
    failures: list[Exception] = []

    def attempt() -> None:
        try:
            initialize()
        except Exception as error:  # of many kinds: the environment is not what JAX expects
            failures.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    with RollCall() as roll_call:
        thread.join(seconds)
    place = f"at {coordinator}" if coordinator else "where the environment says"
    if thread.is_alive():
        raise LostProcessError(
            f"the processes did not meet {place} within {seconds / 60:g} min "
            f"(parallel.rendezvous_minutes): {roll_call.result()}; start all, each with its "
            "own --process-id, where they can reach that host and port"
        )
    if failures:
        reason = in_one_line(failures[0])
        if "Kubernetes API Error: 403" in reason:  # JAX's own words, of which the rest is long
            reason = "the service account of this pod may not read pods, services and jobs"
        raise UserError(
            f"cannot meet the other processes {place} ({reason}); {_BY_HAND}"
        ) from failures[0]


def is_main() -> bool:
    """Return whether this is process 0, the only one that writes shared files."""
    return jax.process_index() == 0


@cache
def _copies() -> tuple[Any, Callable[[Any], Any]]:
    """Return a sharding of one row a device, and a function that gives all devices all rows."""
    mesh = Mesh(np.asarray(jax.devices()), ("devices",))
    rows = NamedSharding(mesh, PartitionSpec("devices"))
    whole = NamedSharding(mesh, PartitionSpec())
    return rows, jax.jit(lambda x: x, out_shardings=whole)


@cache
def _first_devices() -> Int[np.ndarray, " processes"]:
    return np.unique([device.process_index for device in jax.devices()], return_index=True)[1]


def _start_exchange(numbers: Sequence[int]) -> Any:
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
        self._under_way: deque[Any] = deque()
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
        self.seconds = told[_first_devices(), 1] / 1e6
        return int(told[:, 0].max())


@cache
def hosts() -> tuple[str, ...]:
    """Return the name of each process's host.

    All processes make the first call together.
    """
    own = np.zeros(_LONGEST_NAME, np.uint8)
    encoded = host_name().encode()[:_LONGEST_NAME]
    own[: len(encoded)] = np.frombuffer(encoded, np.uint8)
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
