"""Read and write checkpoints with Orbax, and turn its failures into errors of one line."""

import errno
import gc
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
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
from t2t_jax.system.bucket import BucketPath, fetch_tree, remove
from t2t_jax.system.mirror import COMMITTED, PARAMETERS_ONLY, UNFINISHED, complete_in
from t2t_jax.system.quiet import orbax_kept_quiet

_ATTEMPTS = 20
_LONGEST = 300  # characters of a reason in a message
_BY_ANOTHER = "another process could not write its part, and says why"
_numbers = count()  # of the managers of all processes


class UnreadableError(UserError):
    """The error for a checkpoint that is damaged, or whose arrays have other shapes."""

    def __init__(self, place: Path, reason: str) -> None:
        """Make the message from the path of the checkpoint and the reason."""
        super().__init__(f"checkpoint {place} cannot be read ({reason})")
        self.step = int(place.name)


def steps_in(directory: Path) -> list[int]:
    """List the steps of the complete checkpoints in a directory, oldest first."""
    if isinstance(directory, BucketPath):
        return sorted(int(name) for name in complete_in(directory) if name.isdecimal())
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def steps_of_run(run: Path, name: str) -> list[int]:
    """List the steps of the complete checkpoints in a directory of a run; [] if it is missing."""
    return steps_in(run / name) if (run / name).is_dir() else []


def has_progress(place: Path) -> bool:
    """Return whether training may resume from a checkpoint; `drop_progress` marks the others."""
    return not (place / PARAMETERS_ONLY).exists()


def drop_progress(place: Path) -> None:
    """Remove the optimizer state of a complete checkpoint, in process 0.

    The mark comes first, so that a kill in between leaves no checkpoint that seems damaged.
    """
    with suppress(OSError):  # the checkpoint stays larger than it needs to be
        if (place / "progress").is_dir():
            (place / PARAMETERS_ONLY).write_bytes(b"")
            remove_tree(place / "progress")


def remove_tree(path: Path) -> None:
    """Remove a directory, or all objects below a name in a bucket."""
    if isinstance(path, BucketPath):
        remove(path.objects())
    else:
        shutil.rmtree(path, ignore_errors=True)


class BucketReader:
    """The checkpoints in a bucket, with the methods of Orbax's manager that readers use."""

    def __init__(self, directory: BucketPath) -> None:
        """List the checkpoints in a directory."""
        self._directory, self._steps = directory, steps_in(directory)

    def all_steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in order."""
        return self._steps

    def restore(self, step: int, args: ocp.args.Composite) -> ocp.args.Composite:
        """Read some items of a checkpoint, of which only their files are fetched.

        Raises:
          UserError: the items cannot be downloaded.
          Exception: of any kind, if the checkpoint is gone or damaged.
        """
        place, items = self._directory / str(step), {name for name, _ in args.items()}
        with TemporaryDirectory(prefix="t2t_jax-") as folder:
            local = Path(folder) / self._directory.name
            try:
                fetch_tree(place, local / str(step), items)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise UserError(
                    f"checkpoint {place} cannot be fetched ({error.strerror or error}); it is not "
                    "damaged: try again"
                ) from error
            with closing(open_manager(local, None, alone=True)) as manager:
                return manager.restore(step, args=args)

    def close(self) -> None:
        """Do nothing: nothing is open between two calls of `restore`."""


Reader: TypeAlias = ocp.CheckpointManager | BucketReader
"""A manager that reads the checkpoints in a directory."""


def open_reader(directory: Path) -> Reader:
    """Open a manager that reads the checkpoints in a directory, for this process only."""
    if isinstance(directory, BucketPath):
        return BucketReader(directory)
    return open_manager(directory, None, alone=True)


def recover(workdir: Path, names: Sequence[str]) -> None:
    """Remove the incomplete checkpoints of a killed run before it resumes.

    Orbax's manager would do so in a thread that nobody waits for, unless it saves.

    Args:
      names: the directories of the run with checkpoints.

    Raises:
      OSError: a checkpoint cannot be removed.
    """
    if is_main():
        for name in names:
            if isinstance(workdir, BucketPath):
                _recover_in_bucket(workdir / name)
                continue
            for unfinished in (workdir / name).glob(f"*{UNFINISHED}*"):
                shutil.rmtree(unfinished)
    agree(0)  # until it is done


def _recover_in_bucket(directory: BucketPath) -> None:
    """Remove incomplete checkpoints, and mark the others as Orbax does."""
    complete = complete_in(directory)
    for path in directory.objects():
        name = path.parts[len(directory.parts)]
        if name.isdecimal() and name not in complete:
            path.unlink(missing_ok=True)
    for name in complete:
        (directory / name / COMMITTED).write_bytes(b"")


class _Barrier:
    """The barrier of Orbax's background saves: if one process fails, all do."""

    def __init__(self, name: str) -> None:
        self._name, self._count, self._is_broken = name, 0, False

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        if self._is_broken:
            return
        self._count += 1
        place = f"{self._name}/{self._count}"  # as another process may be one barrier ahead
        is_saving = threading.current_thread() is not threading.main_thread()
        has_failed = is_saving and sys.exception() is not None  # Orbax calls it in `finally`
        if has_failed:
            leave(f"{place}/{jax.process_index()}", key)
        wait_for_all(self._name, timeout_ms)
        self._is_broken = bool(texts_under(place))
        if self._is_broken and not has_failed:
            raise OSError(errno.EIO, _BY_ANOTHER)


@orbax_kept_quiet()
def open_manager(directory: Path, keep: Any, *, alone: bool = False) -> ocp.CheckpointManager:
    """Open Orbax's manager of the checkpoints in a directory of a file system.

    All processes write together, and agree through JAX's coordinator. By default Orbax would run
    programs on the devices from its threads, which would come between training steps in another
    order on each process. Each process reads by itself.

    Args:
      directory: has one directory for each checkpoint, named by its step.
      keep: Orbax's policy of which checkpoints stay; None only reads.
      alone: whether this process works without the others.
    """
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
            # As text, since a path in a bucket is one of the local file system to Orbax.
            return ocp.CheckpointManager(str(directory.absolute()), options=options)
        except (FileNotFoundError, NotADirectoryError):
            # A trainer has removed a checkpoint since it was listed.
            if not attempts_left:
                raise
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def reading_checkpoints(directory: Path) -> Iterator[Reader]:
    """Open the checkpoints in a directory for reading by this process only, within a block."""
    quiet, unheard = orbax_kept_quiet(), warnings.catch_warnings()
    with quiet, unheard, closing(open_reader(directory)) as manager:
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that nobody awaits any more
        yield manager
        gc.collect()


@contextmanager
def writing_checkpoints(directory: Path) -> Iterator[None]:
    """Turn errors of Orbax in saving into an error of one line with the path and a remedy.

    All processes enter this together, and if one fails, all do. A save raises its error when it
    starts, or when the next save or the end of training waits.

    Raises:
      UserError: a checkpoint cannot be written.
    """
    failure: Exception | None = None
    try:
        with orbax_kept_quiet():
            yield
    except Exception as error:  # of many kinds
        failure = error
    if agree(int(failure is not None)) and failure is None:
        failure = OSError(errno.EIO, _BY_ANOTHER)
    if isinstance(failure, UserError):
        raise failure
    if failure is not None:
        way_out = "make room"
        if isinstance(directory, BucketPath):  # a store that may be back soon
            failure, way_out = OSError(errno.EREMOTEIO, reason_of(failure)), "check the store"
        raise UserError(
            f"a checkpoint in {directory} cannot be written ({reason_of(failure)}); the ones "
            f"before it are whole: {way_out}, and the same command goes on from them"
        ) from failure


@orbax_kept_quiet()
def restore(manager: Reader, directory: Path, step: int, **items: ocp.args.CheckpointArgs) -> Any:
    """Read some items of a checkpoint, such as its parameters.

    Raises:
      UnreadableError: the checkpoint is damaged, or has arrays of other shapes.
      UserError: the checkpoint's files are not readable for this user.
    """
    place = directory / str(step)
    try:
        return manager.restore(step, args=ocp.args.Composite(**items))
    except (MemoryError, UserError):
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file.
        if isinstance(_first(error), KeyboardInterrupt):  # in a thread of Orbax's
            raise KeyboardInterrupt from error
        reason = reason_of(error)
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        if "permission denied" in reason.lower().replace("_", " "):
            raise UserError(
                f"checkpoint {place} may not be read ({reason}); it is not damaged: give this user "
                "the right to read it"
            ) from error
        raise UnreadableError(place, reason) from error


def restore_arrays(
    manager: Reader, directory: Path, step: int, like: Mapping[str, PyTree[jax.ShapeDtypeStruct]]
) -> dict[str, PyTree]:
    """Read the arrays of some items of a checkpoint, for `distribute`.

    If every device holds all arrays, process 0 reads them, and the others return `like`.

    Args:
      like: a `jax.ShapeDtypeStruct` with a sharding for every array, by item.

    Raises:
      UserError: as `restore`.
    """
    # Orbax has a handler for this, but it adds floats, which loses the sign of -0.0. It also needs
    # whole hosts as replicas, and a damaged file would leave the other processes waiting.
    if _is_read_once(like):
        if not is_main():
            return {**like}
        like = jax.tree.map(_zeros, like)  # for which Orbax returns arrays in the host's memory
    arguments = {name: ocp.args.StandardRestore(item) for name, item in like.items()}
    restored = restore(manager, directory, step, **arguments)
    return {name: restored[name] for name in like}


def distribute(arrays: dict[str, PyTree], like: Mapping[str, PyTree]) -> Mapping[str, PyTree]:
    """Return the arrays of `restore_arrays` on the devices; all processes call this together.

    It empties `arrays`.
    """
    if not _is_read_once(like):
        return arrays
    # One at a time, so that devices need room for one more array, and hosts for none that was sent.
    waiting, structure = jax.tree.flatten(arrays)
    arrays.clear()
    waiting.reverse()
    sent = [_sent(waiting.pop(), place) for place in jax.tree.leaves(like)]
    return jax.tree.unflatten(structure, sent)


def _is_read_once(like: Mapping[str, PyTree[jax.ShapeDtypeStruct]]) -> bool:
    """Return whether every device of several processes holds all arrays, of 4-byte numbers."""
    return jax.process_count() > 1 and all(
        x.sharding.is_fully_replicated and x.dtype.itemsize == 4 for x in jax.tree.leaves(like)
    )


def _zeros(like: jax.ShapeDtypeStruct) -> np.ndarray:
    """Return an array of zeros that takes no memory."""
    return np.broadcast_to(np.zeros((), like.dtype), like.shape)


def _sent(x: np.ndarray | jax.ShapeDtypeStruct, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Return an array of process 0 on all devices; `x` counts only there."""
    host = np.asarray(x) if is_main() else _zeros(like)
    # As integers, whose sum with zeros has the same bits.
    bits = np.asarray(multihost_utils.broadcast_one_to_all(host.view(np.uint32)))
    values = bits.view(like.dtype)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: values[index])


def _first(error: BaseException) -> BaseException:
    """Return the first error of a chain of errors, which caused all others."""
    while before := error.__cause__ or error.__context__:
        error = before
    return error


def reason_of(error: BaseException) -> str:
    """Describe the first error of a chain, without TensorStore's dump of its settings and paths."""
    error = _first(error)
    words = in_one_line(re.split(r" \[(?:tensorstore_spec|os_error_code)", str(error))[0])
    reason = words.rpartition('": ')[2]
    if len(reason) > _LONGEST:
        # The reason may stand before the names of files, or after them.
        first, last = reason[: _LONGEST // 2], reason[-_LONGEST // 2 :]
        reason = f"{first.rpartition(' ')[0]} ... {last.partition(' ')[2]}"
    return reason or type(error).__name__
