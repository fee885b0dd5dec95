"""Read and write checkpoints with Orbax, and turn its failures into errors of one line."""

import errno
import gc
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from t2t_jax.errors import UserError, in_one_line
from t2t_jax.parallel.message_board import leave, texts_under, wait_for_all
from t2t_jax.parallel.processes import agree, is_main
from t2t_jax.system.bucket import BucketPath, fetch_tree
from t2t_jax.system.mirror import COMMITTED, UNFINISHED, complete_in
from t2t_jax.system.quiet import orbax_kept_quiet
from t2t_jax.training.checkpoint_files import steps_in

_ATTEMPTS = 20
_LONGEST = 300  # characters of a reason in a message
_BY_ANOTHER = "another process could not write its part; see its error message"
_numbers = count()  # of the managers of all processes


class UnreadableError(UserError):
    """The checkpoint is damaged, or its arrays have other shapes than the network."""

    def __init__(self, path: Path, reason: str) -> None:
        """Make the message from the path of the checkpoint and the reason."""
        super().__init__(f"checkpoint {path} cannot be read ({reason})")
        self.step = int(path.name)


class BucketReader:
    """Read checkpoints from a bucket, with the interface of `ocp.CheckpointManager`."""

    def __init__(self, directory: BucketPath) -> None:
        """List the complete checkpoints in a directory of a bucket."""
        self._directory, self._steps = directory, steps_in(directory)

    def all_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, oldest first."""
        return self._steps

    def restore(self, step: int, args: ocp.args.Composite) -> ocp.args.Composite:
        """Download and read some items of a checkpoint.

        Raises:
          UserError: the download fails.
          Exception: any exception, if the checkpoint is missing or damaged.
        """
        path, item_names = self._directory / str(step), {name for name, _ in args.items()}
        with TemporaryDirectory(prefix="t2t_jax-") as folder:
            local_directory = Path(folder) / self._directory.name
            try:
                fetch_tree(path, local_directory / str(step), item_names)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise UserError(
                    f"checkpoint {path} cannot be fetched ({error.strerror or error}); it is not "
                    "damaged: try again"
                ) from error
            with closing(open_manager(local_directory, None, alone=True)) as manager:
                return manager.restore(step, args=args)

    def close(self) -> None:
        """Do nothing: `restore` leaves no file open."""


Reader: TypeAlias = ocp.CheckpointManager | BucketReader
"""An object that reads the checkpoints in a directory."""


def open_reader(directory: Path) -> Reader:
    """Open a reader of the checkpoints in a directory, for this process only."""
    if isinstance(directory, BucketPath):
        return BucketReader(directory)
    return open_manager(directory, None, alone=True)


def recover(workdir: Path, names: Sequence[str]) -> None:
    """Remove the incomplete checkpoints of a killed run before it resumes.

    Args:
      names: the checkpoint directories of the run.
    """
    # Orbax's manager would remove them in a background thread that nobody waits for.
    if is_main():
        for name in names:
            if isinstance(workdir, BucketPath):
                _recover_in_bucket(workdir / name)
                continue
            for unfinished in (workdir / name).glob(f"*{UNFINISHED}*"):
                shutil.rmtree(unfinished)
    agree(0)  # a barrier: the other processes wait for process 0


def _recover_in_bucket(directory: BucketPath) -> None:
    # Orbax would remove incomplete checkpoints, and mark complete ones with this file.
    complete_names = complete_in(directory)
    for path in directory.objects():
        name = path.parts[len(directory.parts)]
        if name.isdecimal() and name not in complete_names:
            path.unlink(missing_ok=True)
    for name in complete_names:
        (directory / name / COMMITTED).write_bytes(b"")


class _Barrier:
    """A barrier for Orbax's background saves, which fails on all processes if one fails."""

    def __init__(self, name: str) -> None:
        self._name, self._count, self._is_broken = name, 0, False

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        if self._is_broken:
            return
        self._count += 1
        # The count separates barriers, as another process may be one barrier ahead.
        key_prefix = f"{self._name}/{self._count}"
        is_saving = threading.current_thread() is not threading.main_thread()
        failed_here = is_saving and sys.exception() is not None  # Orbax calls it in `finally`
        if failed_here:
            leave(f"{key_prefix}/{jax.process_index()}", key)
        wait_for_all(self._name, timeout_ms)
        self._is_broken = bool(texts_under(key_prefix))
        if self._is_broken and not failed_here:
            raise OSError(errno.EIO, _BY_ANOTHER)


@orbax_kept_quiet()
def open_manager(directory: Path, keep: Any, *, alone: bool = False) -> ocp.CheckpointManager:
    """Open an Orbax manager of the checkpoints in a directory of a file system.

    All processes write together and synchronize through JAX's coordination service. Each process
    reads separately.

    Args:
      directory: contains one directory for each checkpoint, named by its step.
      keep: the Orbax preservation policy; None opens the manager read-only.
      alone: True if this process works without the other processes.
    """
    # By default Orbax runs barrier programs on the devices from its threads. Processes would start
    # them in different orders relative to the training steps, which can hang.
    process_index = jax.process_index()
    name = f"{directory.name}-{process_index if alone else next(_numbers)}"
    options = ocp.CheckpointManagerOptions(
        preservation_policy=keep,
        create=False,
        read_only=keep is None,
        cleanup_tmp_directories=False,  # see `recover`
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=process_index if alone else 0,
            active_processes={process_index} if alone else {*range(jax.process_count())},
            barrier_sync_key_prefix=name,
        ),
        async_options=ocp.AsyncOptions(barrier_sync_fn=None if alone else _Barrier(name)),
    )
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            # A string, because Orbax would take a `BucketPath` for a local path.
            return ocp.CheckpointManager(str(directory.absolute()), options=options)
        except (FileNotFoundError, NotADirectoryError):
            # A running trainer removed a checkpoint after Orbax listed it.
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def reading_checkpoints(directory: Path) -> Iterator[Reader]:
    """Open the checkpoints in a directory for this process to read, within a `with` block."""
    quiet_orbax, no_warnings = orbax_kept_quiet(), warnings.catch_warnings()
    with quiet_orbax, no_warnings, closing(open_reader(directory)) as manager:
        warnings.simplefilter("ignore", RuntimeWarning)  # from unawaited Orbax coroutines
        yield manager
        gc.collect()


@contextmanager
def writing_checkpoints(directory: Path) -> Iterator[None]:
    """Turn an error while saving into a one-line error with the path and a remedy.

    All processes enter this context together; if one process fails, all fail.

    Raises:
      UserError: a checkpoint cannot be written.
    """
    failure: Exception | None = None
    try:
        with orbax_kept_quiet():
            yield
    except Exception as error:  # Orbax raises exceptions of many classes
        failure = error
    if agree(int(failure is not None)) and failure is None:
        failure = OSError(errno.EIO, _BY_ANOTHER)
    if isinstance(failure, UserError):
        raise failure
    if failure is not None:
        remedy = "make room"
        if isinstance(directory, BucketPath):  # EREMOTEIO: the store may recover soon
            failure, remedy = OSError(errno.EREMOTEIO, reason_of(failure)), "check the store"
        raise UserError(
            f"a checkpoint in {directory} cannot be written ({reason_of(failure)}); the ones "
            f"before it are complete: {remedy}, and run the same command again to resume from them"
        ) from failure


@orbax_kept_quiet()
def restore(manager: Reader, directory: Path, step: int, **items: ocp.args.CheckpointArgs) -> Any:
    """Read some items of a checkpoint, such as its parameters.

    Raises:
      UnreadableError: the checkpoint is damaged, or has arrays of other shapes.
      UserError: this user has no permission to read the files.
    """
    path = directory / str(step)
    try:
        return manager.restore(step, args=ocp.args.Composite(**items))
    except (MemoryError, UserError):
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file.
        if isinstance(_root_cause(error), KeyboardInterrupt):  # raised in a thread of Orbax
            raise KeyboardInterrupt from error
        reason = reason_of(error)
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        if "permission denied" in reason.lower().replace("_", " "):
            raise UserError(
                f"checkpoint {path} may not be read ({reason}); it is not damaged: give this user "
                "read permission"
            ) from error
        raise UnreadableError(path, reason) from error


def restore_arrays(
    manager: Reader, directory: Path, step: int, like: Mapping[str, PyTree[jax.ShapeDtypeStruct]]
) -> dict[str, PyTree]:
    """Read the arrays of some checkpoint items, for `distribute`.

    If every device holds all arrays, only process 0 reads them, and the others return `like`.

    Args:
      like: a `jax.ShapeDtypeStruct` with a sharding for every array, by item.
    """
    # Orbax can broadcast one replica, but it sums floats, which loses the sign of -0.0. Orbax also
    # needs complete hosts as replicas, and after a damaged file the other processes would hang.
    if _is_read_once(like):
        if not is_main():
            return {**like}
        like = jax.tree.map(_zeros, like)  # Orbax then returns NumPy arrays
    arguments = {name: ocp.args.StandardRestore(item) for name, item in like.items()}
    restored = restore(manager, directory, step, **arguments)
    return {name: restored[name] for name in like}


def distribute(arrays: dict[str, PyTree], like: Mapping[str, PyTree]) -> Mapping[str, PyTree]:
    """Return the arrays of `restore_arrays` on the devices, and clear `arrays` to free host memory.

    All processes call this function together.
    """
    if not _is_read_once(like):
        return arrays
    # One array at a time: a device needs memory for one more array, and the host frees each array
    # that it has sent.
    pending, structure = jax.tree.flatten(arrays)
    arrays.clear()
    pending.reverse()
    placed = [_broadcast(pending.pop(), shape) for shape in jax.tree.leaves(like)]
    return jax.tree.unflatten(structure, placed)


def _is_read_once(like: Mapping[str, PyTree[jax.ShapeDtypeStruct]]) -> bool:
    """Return whether only process 0 reads, because each device needs all 4-byte arrays."""
    return jax.process_count() > 1 and all(
        x.sharding.is_fully_replicated and x.dtype.itemsize == 4 for x in jax.tree.leaves(like)
    )


def _zeros(like: jax.ShapeDtypeStruct) -> np.ndarray:
    return np.broadcast_to(np.zeros((), like.dtype), like.shape)


def _broadcast(x: np.ndarray | jax.ShapeDtypeStruct, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Send an array of process 0 to all devices; other processes pass any `x`."""
    host = np.asarray(x) if is_main() else _zeros(like)
    # Sent as integers: JAX broadcasts by a sum with zeros, which keeps the bits of integers.
    bits = np.asarray(multihost_utils.broadcast_one_to_all(host.view(np.uint32)))
    values = bits.view(like.dtype)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: values[index])


def _root_cause(error: BaseException) -> BaseException:
    while before := error.__cause__ or error.__context__:
        error = before
    return error


def reason_of(error: BaseException) -> str:
    """Describe the root cause of an error, without the settings that TensorStore dumps."""
    error = _root_cause(error)
    message = in_one_line(re.split(r" \[(?:tensorstore_spec|os_error_code)", str(error))[0])
    reason = message.rpartition('": ')[2]
    if len(reason) > _LONGEST:
        # The reason may come before or after long file names, so keep the start and the end.
        head, tail = reason[: _LONGEST // 2], reason[-_LONGEST // 2 :]
        reason = f"{head.rpartition(' ')[0]} ... {tail.partition(' ')[2]}"
    return reason or type(error).__name__
