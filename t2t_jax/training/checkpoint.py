"""Write and restore the checkpoints of a training run.

    W/checkpoints/STEP/params       the parameters
    W/checkpoints/STEP/progress     optimizer state and counters, which resuming also needs
    W/checkpoints/STEP/ema          the moving average of the parameters, if the run keeps one
    W/best/STEP/params, ema         the same files for the best dev score so far
    W/best/STEP/score               the best dev score
    */STEP/origin                   step, run and checksums; see `training.origin`
    */STEP/PARAMETERS_ONLY          marks a checkpoint without progress, which only averages read
    W/damaged/STEP                  a checkpoint that could not be read; the two newest stay

Orbax writes a checkpoint under a temporary name and renames the complete directory. Each process
writes its shards. Processes read separately and agree afterwards, so that no process waits for one
that cannot read.

Averages (section 6.1) use the states that the config schedules: after every
`checkpoint.every_steps` steps and after the last step. A timer or a signal may also write a state
between scheduled steps. The origin marks such a state as "for safety", averages skip it, and the
next save removes it. An interrupted run thus ends with the same average as an unbroken run.

After a step, the trainer writes the state, then the best parameters, then the log record. Each
write is on disk before the next one starts. A killed run resumes from the newest state, and scores
that step again if the log has no record of it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from t2t_jax.config import Config
from t2t_jax.errors import UserError, warn
from t2t_jax.parallel.processes import agree, broadcast_from_main, is_main
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.exit_codes import may_pass
from t2t_jax.system.records import NUMBER, Record, schema
from t2t_jax.system.retries import with_retries
from t2t_jax.training import checkpoint_files, origin, storage
from t2t_jax.training.averaging import is_due, is_kept_for_good
from t2t_jax.training.origin import Identity
from t2t_jax.training.state import TrainState
from t2t_jax.training.storage import Reader, UnreadableError
from t2t_jax.workdir import BEST, CHECKPOINTS

_DAMAGED = "damaged"
_NUM_DAMAGED = 2
# If the newest state is damaged, the run resumes from the one before it.
_NUM_WHOLE = 2
_SCORE = schema({"score": NUMBER}, {"measure": dict})
_T = TypeVar("_T")


@dataclass(frozen=True)
class _NewestAndDue:
    """Orbax preservation policy: keep the newest state and the last scheduled states.

    The policy also keeps the states of `checkpoint.keep_every`.
    """

    config: Config

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
        settings = self.config.checkpoint
        # Without `checkpoint.every_steps`, all states count as scheduled.
        due_steps = [s for s in steps if settings.every_steps is None or is_due(self.config, s)]
        permanent_steps = [s for s in due_steps if is_kept_for_good(self.config, s)]
        preserved = {*due_steps[-settings.keep :], steps[-1], *permanent_steps}
        return [step in preserved for step in steps]


class Checkpoints:
    """Save and restore the checkpoints of a training run.

    Attributes:
      window: the sums since the last log record in the newest state restored or saved.
    """

    def __init__(self, workdir: Path, identity: Identity) -> None:
        """Open the checkpoints of `workdir`, and remove the files of an interrupted save."""
        self._workdir = workdir
        self._identity = identity
        storage.recover(workdir, (CHECKPOINTS, BEST))
        self._last = self._open(CHECKPOINTS)
        self._reduced: set[int] = set()  # steps that `_drop_progress` has handled
        self._best: ocp.CheckpointManager | None = None
        self._best_score: Record | None = None  # only process 0 reads it
        self._lost: UserError | None = None  # the error of the last save into a bucket
        self.window = origin.Window()
        if identity.config.checkpoint.keep_best:
            self._best = self._open(BEST)

    def _open(self, name: str) -> ocp.CheckpointManager:
        (self._workdir / name).mkdir(parents=True, exist_ok=True)
        is_best, config = name == BEST, self._identity.config
        keep = ocp.checkpoint_managers.LatestN(1) if is_best else _NewestAndDue(config)
        return storage.open_manager(self._workdir / name, keep)

    def _open_again(self, name: str) -> ocp.CheckpointManager:
        # The manager failed, so the new one starts without its unfinished saves.
        directory = self._workdir / name
        with storage.writing_checkpoints(directory):
            directory.mkdir(parents=True, exist_ok=True)
            if is_main():  # process 0 creates the directories of the next save
                for path in directory.glob(f"*{storage.UNFINISHED}*"):
                    checkpoint_files.remove_tree(path)
        # All processes get here or none does: managers are numbered alike on every process.
        with storage.writing_checkpoints(directory):
            return self._open(name)

    def restore(self, like: TrainState) -> TrainState | None:
        """Restore the newest state that all processes can read, with the shardings of `like`.

        Damaged newer states move to `W/damaged`, with a warning on stderr. Best parameters of a
        later step are removed, because the run repeats that step.

        Args:
          like: a `jax.ShapeDtypeStruct` with a sharding for every array of the state.

        Raises:
          UserError: no checkpoint can be read, or one belongs to another step or run.
        """
        directory = self._workdir / CHECKPOINTS
        reasons: dict[int, str] = {}
        state, lacks_progress = None, False
        with storage.reading_checkpoints(directory) as reader:
            for step in _newest_first(reader.all_steps()):
                has_progress = checkpoint_files.has_progress(directory / str(step))
                if not broadcast_from_main(int(has_progress)):
                    lacks_progress = True
                    continue
                try:
                    state = self._read(reader, step, like)
                    break
                except UnreadableError as error:
                    reasons[step] = str(error)  # discards all parts that were read
        if state is None and reasons:
            raise UserError(
                f"{next(iter(reasons.values()))}, and {directory} has no older readable one; "
                "if config.json and vocabulary.model are unchanged, restore a copy of it, "
                "or start a new run in another --workdir"
            )
        if state is None and lacks_progress:
            raise UserError(
                f"the checkpoints in {directory} hold parameters for averages only, without the "
                "state of the optimizer: restore a copy of a newer one, or train in another "
                "--workdir with training.init_from"
            )
        if state is not None and reasons:
            self._set_aside(reasons, int(state.step))
        self._forget_best_after(-1 if state is None else int(state.step))
        if is_main():
            self._best_score = self._stored_score()  # now, as a store may be unreachable later
        return state

    def _read(self, reader: Reader, step: int, like: TrainState) -> TrainState:
        """Read the state after a step; every process fails if one process cannot read it."""
        directory = self._workdir / CHECKPOINTS
        path = directory / str(step)
        items = _items(like)

        def read() -> tuple[dict[str, PyTree], Record]:
            record = origin.read_origin(reader, directory, self._identity, step)
            return storage.restore_arrays(reader, directory, step, items), record

        local_arrays, record = _together(path, read)
        restored = storage.distribute(local_arrays, items)
        _together(path, partial(origin.check_unaltered, restored, record, path))
        no_steps = origin.Window()
        self.window = origin.Window(record.get("window", no_steps.losses), record.get("pairs", {}))
        arrays = {name: restored[name] for name in items if name != "progress"}
        return TrainState(**arrays, **restored["progress"])

    def _set_aside(self, reasons: dict[int, str], step: int) -> None:
        """Move damaged checkpoints to `W/damaged`, and warn that the run resumes earlier."""
        if is_main():
            damaged = self._workdir / _DAMAGED
            damaged.mkdir(exist_ok=True)
            for unreadable_step, reason in reasons.items():
                names = chain([f"{unreadable_step}"], (f"{unreadable_step}.{n}" for n in count(1)))
                new_path = next(damaged / name for name in names if not (damaged / name).exists())
                (self._workdir / CHECKPOINTS / str(unreadable_step)).rename(new_path)
                warn(f"{reason}; it is now {new_path}, and the run resumes from step {step}")
            for older in _by_step(damaged)[:-_NUM_DAMAGED]:
                checkpoint_files.remove_tree(older)
        agree(0)  # until it is done
        self._last.reload()

    def _forget_best_after(self, step: int) -> None:
        if self._best:
            for best in self._best.all_steps():
                if best > step:
                    self._best.delete(best)

    def save(self, state: TrainState, window: origin.Window | None = None) -> int | None:
        """Write `state` in the background, unless its step is already saved.

        After a temporary storage fault, this call blocks and retries for some minutes. Several
        processes that write into a bucket retry once and continue without this state. `close`
        raises the error if no later save succeeds.

        Args:
          window: sums over the steps since the last log record; see `run.meter`. None reuses the
            `window` of the last save.

        Returns:
          The step of the newest state on the disk, if there is one.

        Raises:
          UserError: a state could not be written.
        """
        step, attempt_counter = int(state.step), count()
        self.window = window or self.window

        def write() -> int | None:
            if is_retry := next(attempt_counter) > 0 or self._lost is not None:
                self._last = self._open_again(CHECKPOINTS)
            newest = self.wait()
            if step != newest:
                self._begin_to_save(step, state)
                if is_retry:
                    newest = self.wait()
            return newest

        if not isinstance(self._workdir, BucketPath):
            return with_retries(write)
        for _ in range(2 if self._lost is None else 1):
            try:
                newest, self._lost = write(), None
                return newest
            except UserError as error:
                if not may_pass(error):
                    raise
                if self._lost is None:
                    warn(f"{error}; the training continues without it until the next save")
                self._lost = error
        return None

    def _begin_to_save(self, step: int, state: TrainState) -> None:
        self._drop_progress()
        for_safety = not is_due(self._identity.config, step)
        items = _items(state)
        record = origin.make_origin(
            self._identity, step, items, for_safety=for_safety, window=self.window
        )
        with storage.writing_checkpoints(self._workdir / CHECKPOINTS):
            self._last.save(step, args=_arguments(items, record), force=True)

    def _drop_progress(self) -> None:
        """Remove the optimizer state of complete checkpoints that only averages will read."""
        config = self._identity.config
        if config.checkpoint.average == 1 or not is_main():
            return
        for step in {*self._last.all_steps()[:-_NUM_WHOLE]} - self._reduced:
            self._reduced.add(step)
            if not is_kept_for_good(config, step):
                checkpoint_files.drop_progress(self._workdir / CHECKPOINTS / str(step))

    def wait(self) -> int | None:
        """Wait until every state is on the disk, and return the newest step, if any.

        Raises:
          UserError: a state could not be written.
        """
        with storage.writing_checkpoints(self._workdir / CHECKPOINTS):
            self._last.wait_until_finished()
        return cast(int | None, self._last.latest_step())

    def save_if_best(self, state: TrainState, score: float, measure: Record) -> bool:
        """Save the parameters if `score` is the best so far, and return whether they were saved.

        On return, the parameters and all earlier states are on the disk. A temporary storage fault
        only gives a warning.

        Args:
          score: higher is better. Only the score of process 0 counts.
          measure: the settings that define the score. Scores of other measures are not compared.

        Raises:
          UserError: the parameters cannot be written.
        """
        self.wait()
        if self._best is None:
            return False
        step = int(state.step)
        is_best = is_main() and score > self._score_to_beat(measure)
        if not broadcast_from_main(int(is_best)):
            return False
        if step in self._best.all_steps():  # saved for another measure, or damaged
            self._best.delete(step)
        items = {name: item for name, item in _items(state).items() if name != "progress"}
        score_argument = ocp.args.JsonSave(origin.seal({"score": score, "measure": measure}))
        record = origin.make_origin(self._identity, step, items)
        arguments = _arguments(items, record, score=score_argument)
        try:
            with storage.writing_checkpoints(self._workdir / BEST):
                is_saved = bool(self._best.save(step, args=arguments, force=True))
                self._best.wait_until_finished()
        except UserError as error:
            if not may_pass(error):
                raise
            warn(f"{error}; the training continues without these best parameters")
            self._best = with_retries(partial(self._open_again, BEST))
            return False
        self._best_score = {"score": score, "measure": measure}
        return is_saved

    def _score_to_beat(self, measure: Record) -> float:
        if self._best_score is None:
            self._best_score = self._stored_score()
        stored = self._best_score
        is_comparable = stored.get("measure") == measure and stored.get("score") is not None
        return float(stored["score"]) if is_comparable else -math.inf

    def _stored_score(self) -> Record:
        step = self._best.latest_step() if self._best else None
        if step is None:
            return {}
        directory = self._workdir / BEST
        with closing(storage.open_reader(directory)) as reader:
            try:
                stored = storage.restore(reader, directory, step, score=ocp.args.JsonRestore())
                return origin.unseal(stored["score"], _SCORE, directory / str(step))
            except UnreadableError:
                return {}

    def __enter__(self) -> "Checkpoints":
        """Return this object."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Close the checkpoints, unless an error ends one of several processes."""
        # After an error, a save could wait forever for the other processes.
        if error is None or jax.process_count() == 1:
            self.close()

    def close(self) -> None:
        """Wait until all checkpoints are written, and close the managers."""
        if self._lost is not None:
            raise self._lost
        self.wait()
        self._drop_progress()
        for manager in (self._last, self._best):
            if manager is not None:
                with storage.writing_checkpoints(self._workdir):
                    manager.wait_until_finished()
                    manager.close()


def _together(path: Path, work: Callable[[], _T]) -> _T:
    """Run `work` in each process, and return its result if all processes succeed.

    Args:
      path: the checkpoint that `work` reads, for error messages.

    Raises:
      UnreadableError: in all processes, if one of them cannot read.
      UserError: another process fails otherwise.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:  # of any kind: `agree` reports it to the other processes
        failure = error
    is_unreadable = isinstance(failure, UnreadableError)
    worst = agree(0 if failure is None else 1 if is_unreadable else 2)
    if failure is not None and not (is_unreadable and worst == 2):
        raise failure
    if worst == 2:
        raise UserError(f"another process refuses checkpoint {path}; see its error message")
    if worst == 1:
        raise UnreadableError(path, "by another process, whose error gives the reason")
    return cast(_T, result)


def _newest_first(steps: Sequence[int]) -> Iterator[int]:
    """Yield the checkpoint steps of process 0 on all processes, newest first.

    All iterate together. On a shared disk, the `steps` of other processes may be fewer.
    """
    step = broadcast_from_main(max(steps, default=-1))
    while step >= 0:
        yield step
        step = broadcast_from_main(max((s for s in steps if s < step), default=-1))


def _by_step(directory: Path) -> list[Path]:
    """List directories named STEP or STEP.NUMBER, sorted by step and then by number."""
    paths = [path for path in directory.iterdir() if path.name.replace(".", "", 1).isdecimal()]
    return sorted(paths, key=lambda path: [int(part) for part in path.name.split(".")])


def _items(state: TrainState) -> dict[str, PyTree]:
    progress = state._asdict()
    items = {"params": progress.pop("params"), "progress": progress}
    ema = progress.pop("ema")
    return items if ema is None else items | {"ema": ema}


def _arguments(
    items: dict[str, PyTree], record: Record, score: ocp.args.JsonSave | None = None
) -> ocp.args.Composite:
    arrays = {name: ocp.args.StandardSave(item) for name, item in items.items()}
    scores = {} if score is None else {"score": score}
    return ocp.args.Composite(**arrays, **scores, origin=ocp.args.JsonSave(record))
