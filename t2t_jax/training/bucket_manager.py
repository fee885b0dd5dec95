"""Checkpoints in a bucket, with those methods of Orbax's manager that the program uses.

TensorStore's driver for S3 knows no other address than Amazon's, and Orbax cannot tell it one. So
Orbax writes a checkpoint on this machine, and its files are then sent, each under the name that it
has in a directory, so that a run can be copied from a bucket to a file system and back. The file
`_CHECKPOINT_METADATA` is sent last and removed first. A checkpoint that has it is whole, and one
that lacks it is ignored.

Process 0 writes, and other processes send it their parts of the arrays. JAX gathers an array on all
processes at once, so each process needs memory for the largest array, and process 0 for all arrays
(`training.step_memory.check_gathering`). Each process fetches by itself the files that it reads.
"""

import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from t2t_jax.errors import UserError
from t2t_jax.parallel.processes import agree, is_main
from t2t_jax.system.bucket import BucketPath, fetch_objects, remove, send_tree
from t2t_jax.system.quiet import orbax_kept_quiet

_LAST = "_CHECKPOINT_METADATA"


def steps_in_bucket(directory: BucketPath) -> list[int]:
    """List the steps of the checkpoints in a bucket that are whole, the oldest first.

    Args:
      directory: the place in the bucket with the objects of each checkpoint below its step.
    """
    marks = [path for path in directory.objects() if path.name == _LAST]
    names = [path.parent.name for path in marks if path.parent.parent == directory]
    return sorted(int(name) for name in names if name.isdecimal())


class BucketManager:
    """A manager that writes and reads the checkpoints in a bucket."""

    def __init__(
        self, directory: BucketPath, keep: Any, open_local: Callable[[Path, Any], Any]
    ) -> None:
        """Open the checkpoints; for writing, also remove the remains of an interrupted save.

        Args:
          keep: Orbax's policy of which checkpoints stay; None opens them for reading only.
          open_local: a function that opens Orbax's manager of a local directory, under a policy.
        """
        self._directory, self._keep, self._open_local = directory, keep, open_local
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._sent: Future[None] | None = None
        self._steps_to_be: list[int] | None = None  # once the save under way is complete
        self.reload()
        if keep is not None:
            if is_main():
                self._remove_unfinished()
            agree(0)  # until it is done

    def _remove_unfinished(self) -> None:
        whole = {str(step) for step in self._steps}
        depth = len(self._directory.parts)
        names = ((path, path.parts[depth]) for path in self._directory.objects())
        remove(path for path, name in names if name.isdecimal() and name not in whole)

    def reload(self) -> None:
        """List the checkpoints in the bucket anew."""
        self._steps = steps_in_bucket(self._directory)

    def all_steps(self) -> list[int]:
        """Return the steps of all checkpoints, the oldest first."""
        return list(self._steps)

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint; None if there is none."""
        return self._steps[-1] if self._steps else None

    def save(self, step: int, args: ocp.args.Composite, force: bool = True) -> bool:
        """Begin to write a checkpoint, and to remove those that the policy does not keep after it.

        Args:
          force: always true; Orbax's own manager has steps at which it does not save.
        """
        assert force
        self.wait_until_finished()
        items = {name: _gathered(item) for name, item in args.items()}
        steps = sorted({*self._steps, step})
        stays = self._keep.should_preserve([SimpleNamespace(step=s) for s in steps], context=None)
        self._steps_to_be = [s for s, stay in zip(steps, stays, strict=True) if stay]
        if is_main():
            folder = Path(tempfile.mkdtemp(prefix="t2t_jax-"))
            manager = self._open_local(folder / self._directory.name, self._keep)
            manager.save(step, args=ocp.args.Composite(**items), force=True)
            doomed = sorted({*steps} - {*self._steps_to_be})
            self._sent = self._sender.submit(self._send, manager, folder, step, doomed)
        return True

    @orbax_kept_quiet()
    def _send(self, manager: Any, folder: Path, step: int, doomed: list[int]) -> None:
        """Send a checkpoint once Orbax has written it, then remove others."""
        try:
            with closing(manager):
                manager.wait_until_finished()
            written = folder / self._directory.name / str(step)
            send_tree(written, self._directory / str(step), last=_LAST)
            for old in doomed:
                self._remove(old)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _remove(self, step: int) -> None:
        place = self._directory / str(step)
        (place / _LAST).unlink(missing_ok=True)
        place.remove_tree()

    def wait_until_finished(self) -> None:
        """Wait until the checkpoint that is being written is in the store.

        Raises:
          Exception: of any kind, if process 0 could not write it; a UserError in other processes.
        """
        if self._steps_to_be is None:
            return
        failure = self._sent.exception() if self._sent else None
        steps, self._steps_to_be, self._sent = self._steps_to_be, None, None
        worst = agree(int(failure is not None))
        if failure is not None:
            raise failure
        if worst:
            raise UserError(
                f"process 0 could not write a checkpoint in {self._directory}; see what it said"
            )
        self._steps = steps

    def restore(self, step: int, args: ocp.args.Composite) -> Any:
        """Read some items of a checkpoint.

        Raises:
          UserError: the items cannot be fetched from the store.
          Exception: of any kind, where the checkpoint is gone or damaged.
        """
        place = self._directory / str(step)
        depth, names = len(place.parts), {name for name, _ in args.items()}
        asked = [
            path
            for path in place.objects()
            if len(path.parts) == depth + 1 or path.parts[depth] in names
        ]
        with tempfile.TemporaryDirectory(prefix="t2t_jax-") as folder:
            local = Path(folder) / self._directory.name
            try:
                fetch_objects(asked, place, local / str(step))
            except FileNotFoundError:
                raise
            except OSError as error:
                raise UserError(
                    f"checkpoint {place} cannot be fetched ({error.strerror or error}); it is not "
                    "damaged: try again"
                ) from error
            with closing(self._open_local(local, None)) as manager:
                return manager.restore(step, args=args)

    def delete(self, step: int) -> None:
        """Remove a checkpoint."""
        if is_main():
            self._remove(step)
        self._steps.remove(step)

    def close(self) -> None:
        """End the thread that sends checkpoints; call `wait_until_finished` before."""
        self._sender.shutdown()


def _gathered(item: ocp.args.CheckpointArgs) -> ocp.args.CheckpointArgs:
    """Gather the arrays of an item in the memory of process 0, if several processes share them.

    Other processes, which write nothing, get an item with None in the place of each array.
    """
    if jax.process_count() == 1 or not isinstance(item, ocp.args.StandardSave):
        return item
    return ocp.args.StandardSave(jax.tree.map(_whole, item.item))


def _whole(x: Any) -> Any:
    if not isinstance(x, jax.Array):
        return x
    if x.is_fully_replicated:
        return np.array(x.addressable_data(0)) if is_main() else None
    whole = multihost_utils.process_allgather(x, tiled=True)
    return whole if is_main() else None  # so that it is freed before the next one comes
