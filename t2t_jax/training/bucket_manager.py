"""Checkpoints in a bucket, with the methods of Orbax's manager that the program uses.

On each process Orbax writes that process's part of the arrays to the local disk. The outbox
(`system.outbox`) uploads the files under their names in a directory, so that a run can be copied
from a bucket to a file system and back. Arrays are cut into files ("chunks") along the borders of
the parts: parts need no merging, and a reader fetches only the files with its part. A checkpoint
has the same format in every store. Orbax's S3 driver supports only Amazon's address, and would lose
parts in flight when the store is unreachable.

Process 0 uploads `_CHECKPOINT_METADATA` last, once each other process has uploaded a mark that its
part is there. It removes this file first. A checkpoint without it is incomplete and is ignored.

    checkpoints/7/…                the checkpoint
    checkpoints/.sent/7-3/1        the mark of process 1, while the third save is uploaded
"""

import math
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import jax
import orbax.checkpoint as ocp

from t2t_jax.errors import LostProcessError, UserError, warn
from t2t_jax.parallel.processes import agree, is_main, of_main
from t2t_jax.system.bucket import BucketPath, fetch_objects, remove, send_files
from t2t_jax.system.outbox import outbox_of
from t2t_jax.system.quiet import orbax_kept_quiet
from t2t_jax.training.chunks import files_to_read, is_chunk

LAST = "_CHECKPOINT_METADATA"
"""The file of a checkpoint that is written last."""
_SENT = ".sent"


def steps_in_bucket(directory: BucketPath) -> list[int]:
    """List the steps of the complete checkpoints in a bucket, oldest first.

    Args:
      directory: the prefix with the objects of each checkpoint below its step.
    """
    marks = [path for path in directory.objects() if path.name == LAST]
    names = [path.parent.name for path in marks if path.parent.parent == directory]
    return sorted(int(name) for name in names if name.isdecimal())


def recover_in_bucket(workdir: BucketPath, names: Sequence[str]) -> None:
    """Upload the checkpoints and the log that wait on this machine, and remove incomplete ones.

    Each machine uploads its part of a checkpoint. If a machine is gone, or the number of processes
    has changed, the checkpoint is incomplete.

    Args:
      names: the directories of the run with checkpoints.

    Raises:
      UserError: the store cannot be reached.
    """
    outbox = outbox_of(workdir)
    if not of_main(int(is_main() and outbox.is_of_this_run())):
        outbox.clear()
    for name in names:
        directory, waiting = workdir / name, outbox.place / _process() / name
        whole = steps_in_bucket(directory)
        agree(0)  # until all have seen which are whole
        if is_main():
            _remove_all_but(directory, whole)
        agree(0)  # until it is done
        steps = [int(path.name) for path in waiting.glob("*") if path.name.isdecimal()]
        parts = [_Part(directory, waiting, s) for s in sorted(steps) if s > max(whole, default=-1)]
        for part in parts:
            part.send()
        agree(0)  # until all parts are there
        if is_main():
            sent = [part.step for part in parts if part.is_complete()]
            for part in parts:
                if part.step in sent:
                    part.commit()
            if sent:
                warn(f"the checkpoints of steps {sent}, which had waited, are now in {directory}")
            _remove_all_but(directory, [*whole, *sent])
        agree(0)
    if is_main() and outbox.place.is_dir():
        outbox.send_log()
    outbox.clear(None if is_main() else _process())


def _process() -> str:
    """Return a name for the part of this process, unique to the number of processes."""
    return f"{jax.process_index()}-of-{jax.process_count()}"


def _remove_all_but(directory: BucketPath, steps: Sequence[int], below: float = math.inf) -> None:
    """Remove the checkpoints in a bucket, complete or not, except those of some steps.

    Args:
      below: remove only steps below it; without it, marks are removed too.
    """
    depth = len(directory.parts)

    def is_doomed(path: BucketPath) -> bool:
        name = path.parts[depth]
        if name == _SENT:
            return below == math.inf
        return name.isdecimal() and int(name) not in steps and int(name) < below

    doomed = [path for path in directory.objects() if is_doomed(path)]
    remove(path for path in doomed if path.name == LAST)
    remove(path for path in doomed if path.name != LAST)


@dataclass
class _Part:
    """The part of a checkpoint that this process has written on its machine."""

    directory: BucketPath
    waiting: Path
    step: int
    stays: Sequence[int] = ()
    """The steps of the checkpoints that stay once this one is whole."""
    count: int = 0
    """Which save of the run it is, as a step may be saved twice."""
    is_sent: bool = False
    is_doomed: bool = False
    """Whether nothing of it is to be sent any more."""
    instead: "_Part | None" = None
    """The part of the later checkpoint that is sent in the place of this one, if it is doomed."""

    @property
    def here(self) -> Path:
        return self.waiting / str(self.step)

    @property
    def there(self) -> BucketPath:
        return self.directory / str(self.step)

    @property
    def _marks(self) -> BucketPath:
        return self.directory / _SENT / f"{self.step}-{self.count}"

    def send(self) -> None:
        """Upload the chunks of this process, and from process 0 all other files but the last."""
        files = [path for path in self.here.rglob("*") if path.is_file() and path.name != LAST]
        send_files((p for p in files if is_main() or is_chunk(p)), self.here, self.there)
        if not is_main():
            (self._marks / str(jax.process_index())).write_bytes(b"")
        self.is_sent = True

    def is_complete(self) -> bool:
        others = jax.process_count() - 1
        return others == 0 or len(self._marks.objects()) == others

    def commit(self) -> None:
        (self.there / LAST).send(self.here / LAST)
        remove(self._marks.objects() if jax.process_count() > 1 else [])

    def forget(self, instead: "_Part | None" = None) -> None:
        """Remove the files on this machine; pending uploads are lost."""
        self.instead, self.is_doomed = instead, True
        shutil.rmtree(self.here, ignore_errors=True)


class BucketManager:
    """A manager that writes and reads the checkpoints in a bucket."""

    def __init__(
        self, directory: BucketPath, keep: Any, open_local: Callable[[Path, bool], Any]
    ) -> None:
        """Open the checkpoints; a run calls `recover_in_bucket` before.

        Args:
          keep: Orbax's policy of which checkpoints stay; None opens them for reading only.
          open_local: opens Orbax's manager of a local directory for this process, to write (True)
            or to read.
        """
        self._directory, self._keep, self._open_local = directory, keep, open_local
        self._outbox = outbox_of(directory.parent)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: Future[None] | None = None
        self._to_be: list[int] = []  # the steps that stay once the save under way is complete
        self._parts: dict[int, _Part] = {}
        self._count = 0
        self.reload()

    def reload(self) -> None:
        """List the checkpoints in the bucket again."""
        self._steps = steps_in_bucket(self._directory)

    def all_steps(self) -> list[int]:
        """Return the steps of all checkpoints, in order, including those still uploading."""
        return list(self._steps)

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, if there is one."""
        return self._steps[-1] if self._steps else None

    def save(self, step: int, args: ocp.args.Composite, force: bool = True) -> bool:
        """Begin to write a checkpoint, and to remove those that the policy drops after it.

        Args:
          force: always true; Orbax's own manager skips some steps without it.
        """
        assert force
        self.wait_until_finished()
        steps = sorted({*self._steps, step})
        stays = self._keep.should_preserve([SimpleNamespace(step=s) for s in steps], context=None)
        self._to_be = [s for s, stay in zip(steps, stays, strict=True) if stay]
        waiting = self._outbox.place / _process() / self._directory.name
        self._count += 1
        part = _Part(self._directory, waiting, step, self._to_be, self._count)
        self._parts[step] = part
        waiting.mkdir(parents=True, exist_ok=True)
        manager = self._open_local(waiting, True)
        manager.save(step, args=_of_one_process(args), force=True)
        self._written = self._writer.submit(self._finish, manager, part)
        return True

    @orbax_kept_quiet()
    def _finish(self, manager: Any, part: _Part) -> None:
        """Have a part uploaded once Orbax has written it."""
        with closing(manager):
            manager.wait_until_finished()
        self._outbox.put(partial(self._deliver, part))

    def _deliver(self, part: _Part) -> bool | None:
        """Upload a part and complete the checkpoint; return whether that worked, None if doomed.

        A later part replaces a doomed one. The log, which is uploaded next, records the checkpoint,
        so one to resume from must be in the store first.
        """
        while part.is_doomed:
            if part.instead is None:
                return None
            part = part.instead
        try:
            return self._make_whole(part)
        except Exception:
            if part.is_doomed:  # its files may be gone
                return False
            raise

    def _make_whole(self, part: _Part) -> bool:
        if not part.is_sent:
            part.send()
        if not is_main():
            is_whole = (part.there / LAST).exists()
        elif is_whole := part.is_complete():
            part.commit()
            _remove_all_but(self._directory, part.stays, below=part.step)
        if is_whole:
            part.forget()
        return is_whole

    def wait_until_finished(self) -> None:
        """Wait until the current checkpoint is complete on the machines.

        Raises:
          Exception: of any kind, if this process could not write it.
          LostProcessError: another process could not.
        """
        if self._written is None:
            return
        failure, self._written = self._written.exception(), None
        worst = agree(int(failure is not None))
        if failure is not None:
            raise failure
        if worst:
            raise LostProcessError(
                f"another process could not write its part of a checkpoint of {self._directory}; "
                "see what it said"
            )
        for step in sorted({*self._parts} - {*self._to_be}):
            later = [other for other in self._parts if other > step and other in self._to_be]
            self._parts.pop(step).forget(self._parts[min(later)] if later else None)
        self._steps = self._to_be

    def restore(self, step: int, args: ocp.args.Composite) -> Any:
        """Read some items of a checkpoint: of arrays, the parts that this process asks for.

        Raises:
          UserError: the items cannot be downloaded.
          Exception: of any kind, if the checkpoint is gone or damaged.
        """
        place = self._directory / str(step)
        with TemporaryDirectory(prefix="t2t_jax-") as folder:
            local = Path(folder) / self._directory.name
            try:
                first, chunks = files_to_read(place, {name for name, _ in args.items()})
                fetch_objects(first, place, local / str(step))
                fetch_objects(chunks(local / str(step), args), place, local / str(step))
            except FileNotFoundError:
                raise
            except OSError as error:
                raise UserError(
                    f"checkpoint {place} cannot be fetched ({error.strerror or error}); it is not "
                    "damaged: try again"
                ) from error
            with closing(self._open_local(local, False)) as manager:
                return manager.restore(step, args=args)

    def delete(self, step: int) -> None:
        """Remove a checkpoint."""
        if step in self._parts:
            self._parts.pop(step).forget()
        self._steps.remove(step)
        if is_main():
            self._outbox.put(partial(self._remove, step))

    def _remove(self, step: int) -> bool:
        place = self._directory / str(step)
        (place / LAST).unlink(missing_ok=True)
        place.remove_tree()
        return True

    def after_uploads(self, work: Callable[[], bool]) -> None:
        """Do work on the store once all complete checkpoints are uploaded."""
        self._outbox.put(work)

    def close(self) -> None:
        """Wait until everything the run has written is in the store; a reader does nothing.

        Raises:
          UserError: the store is unreachable; what waits stays on this machine.
        """
        self._writer.shutdown()
        if self._keep is not None:
            self._outbox.wait()
            self._outbox.clear(None if is_main() else _process())


def _of_one_process(args: ocp.args.Composite) -> ocp.args.Composite:
    """Return the items of a checkpoint in the form for a single-process manager."""
    items = {
        name: ocp.args.PyTreeSave(item.item) if isinstance(item, ocp.args.StandardSave) else item
        for name, item in args.items()
    }
    return ocp.args.Composite(**items)
