"""Checkpoints of a run, and parameters out of them.

    W/checkpoints/STEP/params       the parameters
    W/checkpoints/STEP/progress     optimiser moments and counters: what resuming needs besides
    W/best/STEP/params              the parameters with the best dev score so far
    W/best/STEP/score               that score
    */STEP/origin                   the step and the config that they are of, and their checksums
    W/damaged/STEP                  a checkpoint that could not be read

A checkpoint is written beside its place and renamed into it, so one that has its name is whole. It
says itself where it comes from, so that a copy from elsewhere is not taken for what its place says.

Several processes write a checkpoint together, each its own part of the arrays, and meet on the way.
They read on their own and agree afterwards, so that none waits for one that cannot read.
"""

import gc
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from logging import getLogger
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from jaxtyping import Array, UInt32

from t2t_jax.config import CheckpointConfig, Config, describe, differences, from_dict, to_dict
from t2t_jax.errors import UserError, warn
from t2t_jax.parallel.processes import agree, is_main, of_main
from t2t_jax.training.step import Parameters, TrainState
from t2t_jax.workdir import read_config

_CHECKPOINTS, _BEST, _DAMAGED = "checkpoints", "best", "damaged"
_T = TypeVar("_T")

# Orbax raises what goes wrong, and logs it as well, with the frames of its threads. The reads and
# writes that it leaves behind then complain once more, whenever they end or are collected.
logging.get_absl_logger().addFilter(lambda record: "orbax" not in record.pathname)
getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())


def _complain_unless_left_behind(
    unraisable: Any, complain: Callable[[Any], object] = sys.unraisablehook
) -> None:
    error = unraisable.exc_value
    files = [frame.filename for frame in traceback.extract_tb(unraisable.exc_traceback)]
    if str(error) != "Event loop is closed" and not any("orbax" in file for file in files):
        complain(unraisable)


sys.unraisablehook = _complain_unless_left_behind


class _UnreadableError(UserError):
    """A checkpoint is damaged, or of arrays of other shapes."""

    def __init__(self, place: Path, reason: str) -> None:
        super().__init__(f"checkpoint {place} cannot be read ({reason})")


def is_due(config: CheckpointConfig, step: int, seconds_since: float) -> bool:
    """Whether a checkpoint is to be written after a step, `seconds_since` the one before."""
    by_steps = config.every_steps is not None and step % config.every_steps == 0
    by_time = config.every_minutes is not None and seconds_since >= 60 * config.every_minutes
    return by_steps or by_time


@dataclass(frozen=True)
class _NewestAndDue:
    """Tells Orbax what to keep once a save is whole: the newest, and before it what was due.

    A checkpoint that was not due is there to go on from, and gives way to the next one.
    """

    config: CheckpointConfig

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        """For each checkpoint, from the oldest on, whether it stays."""
        del context
        steps = [checkpoint.step for checkpoint in checkpoints]
        counted = [s for s in steps if s == steps[-1] or is_due(self.config, s, math.inf)]
        return [step in counted[-self.config.keep :] for step in steps]


def _manager(
    directory: Path, keep: _NewestAndDue | ocp.checkpoint_managers.LatestN | None
) -> ocp.CheckpointManager:
    """The checkpoints in a directory; with nothing to say which to keep, they are only read.

    To write is a matter of all processes, who meet by JAX's coordinator: what Orbax would otherwise
    run on the devices, from threads of its own, would come between steps in another order on each.
    To read is a matter of the process itself.
    """
    read_only = keep is None
    options = ocp.CheckpointManagerOptions(
        preservation_policy=keep,
        create=False,
        read_only=read_only,
        cleanup_tmp_directories=not read_only,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index() if read_only else 0,
            active_processes={jax.process_index()} if read_only else {*range(jax.process_count())},
            barrier_sync_key_prefix=directory.name,
        ),
    )
    return ocp.CheckpointManager(directory.absolute(), options=options)


@contextmanager
def _reading(directory: Path) -> Iterator[ocp.CheckpointManager]:
    """The checkpoints in a directory, to be read by this process alone."""
    with warnings.catch_warnings(), closing(_manager(directory, None)) as manager:
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that nobody awaits any more
        yield manager
        gc.collect()


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Errors of a save, which come when it starts, or when the next one or the end waits for it."""
    try:
        yield
    except Exception as error:  # of many kinds
        raise UserError(
            f"a checkpoint in {directory} cannot be written ({_reason(error)}); the ones before it "
            "are whole: make room, and the same command goes on from them"
        ) from error


class Checkpoints:
    """The checkpoints of a run that is being trained.

    Written every so many steps (`checkpoint.every_steps`, and `every_minutes=None`), a run that was
    stopped and resumed any number of times ends with the checkpoints of one that never was, and so
    with the same average: what a stop wrote between those that are due goes with the next save.
    Written every so many minutes, which checkpoints there are depends on the clock.
    """

    def __init__(self, workdir: Path, config: Config) -> None:
        """Open the checkpoints of `workdir`; what an interrupted save left behind is removed."""
        self._workdir = workdir
        self._config = config
        self._last = self._open(_CHECKPOINTS, _NewestAndDue(config.checkpoint))
        self._best: ocp.CheckpointManager | None = None
        if config.checkpoint.keep_best:
            self._best = self._open(_BEST, ocp.checkpoint_managers.LatestN(1))

    def _open(
        self, name: str, keep: _NewestAndDue | ocp.checkpoint_managers.LatestN
    ) -> ocp.CheckpointManager:
        (self._workdir / name).mkdir(parents=True, exist_ok=True)
        return _manager(self._workdir / name, keep)

    def restore(self, like: TrainState) -> TrainState | None:
        """The newest state that all processes can read, laid out over devices as `like`.

        Newer ones that are damaged are moved to `W/damaged`, with a warning on stderr. A best score
        from a later step is forgotten: the run comes past that step again.

        Args:
          like: a `jax.ShapeDtypeStruct` with a sharding for every array of the state.

        Returns:
          The state; None when there is none.

        Raises:
          UserError: none of the checkpoints can be read, or one is of another step or another run.
        """
        directory = self._workdir / _CHECKPOINTS
        unreadable: dict[int, str] = {}
        state = None
        with _reading(directory) as reader:
            for step in _newest_first(reader.all_steps()):
                try:
                    state = self._read(reader, step, like)
                    break
                except _UnreadableError as error:
                    unreadable[step] = str(error)  # and none of what was read so far
        if state is None and unreadable:
            raise UserError(
                f"{next(iter(unreadable.values()))}, and {directory} has none before it that can; "
                "if config.json and vocabulary.model are still its own, bring back a copy of it, "
                "or start anew in another --workdir"
            )
        if state is not None and unreadable:
            self._set_aside(unreadable, int(state.step))
        self._forget_best_after(-1 if state is None else int(state.step))
        return state

    def _read(self, reader: ocp.CheckpointManager, step: int, like: TrainState) -> TrainState:
        """The state after a step, if all processes can read it."""
        directory = self._workdir / _CHECKPOINTS
        place = directory / str(step)
        arguments = ocp.args.Composite(
            params=ocp.args.StandardRestore(like.params),
            progress=ocp.args.StandardRestore(_progress(like)),
        )

        def read() -> tuple[Any, Mapping[str, list[int]]]:
            sums = _check_origin(reader, directory, step, self._config)
            return _restore(reader, directory, step, arguments), sums

        restored, sums = _together(place, read)
        _together(place, partial(_check_unaltered, restored, sums, place))
        return TrainState(params=restored["params"], **restored["progress"])

    def _set_aside(self, unreadable: dict[int, str], step: int) -> None:
        """Make room for the steps that the run takes again, and say so."""
        if is_main():
            (self._workdir / _DAMAGED).mkdir(exist_ok=True)
            for number, refusal in unreadable.items():
                place = _free_name(self._workdir / _DAMAGED / str(number))
                (self._workdir / _CHECKPOINTS / str(number)).rename(place)
                warn(f"{refusal}; it is now {place}, and the run goes on from step {step}")
        agree(0)  # until it is done
        self._last.reload()

    def _forget_best_after(self, step: int) -> None:
        if self._best:
            for best in self._best.all_steps():
                if best > step:
                    self._best.delete(best)

    def save(self, state: TrainState) -> None:
        """Write `state` in the background, unless its step is written already."""
        step = int(state.step)
        if step == self._last.latest_step():
            return
        arguments = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            progress=ocp.args.StandardSave(_progress(state)),
            origin=self._origin(step, params=state.params, progress=_progress(state)),
        )
        with _writing(self._workdir / _CHECKPOINTS):
            self._last.save(step, args=arguments, force=True)

    def save_if_best(self, state: TrainState, score: float, measure: dict[str, Any]) -> bool:
        """Keep the parameters apart if `score` is higher than that of those kept so far.

        Args:
          state: whose parameters were scored.
          score: higher is better. With several processes that of process 0 counts.
          measure: what defines the score. Scores by another measure do not count.
        """
        if self._best is None:
            return False
        with _writing(self._workdir / _BEST):
            self._best.wait_until_finished()
        wins = is_main() and score > _best_score(self._workdir / _BEST, measure)
        if not of_main(int(wins)):
            return False
        if int(state.step) in self._best.all_steps():  # by another measure, or damaged
            self._best.delete(int(state.step))
        arguments = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            score=ocp.args.JsonSave({"score": score, "measure": measure}),
            origin=self._origin(int(state.step), params=state.params),
        )
        with _writing(self._workdir / _BEST):
            return bool(self._best.save(int(state.step), args=arguments, force=True))

    def _origin(self, step: int, **items: Any) -> ocp.args.JsonSave:
        sums = {name: _checksums(arrays) for name, arrays in items.items()}
        return ocp.args.JsonSave({"step": step, "config": to_dict(self._config), "sums": sums})

    def __enter__(self) -> "Checkpoints":
        """Close them at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """After an error, one of several processes does not wait: the others may never come."""
        if error is None or jax.process_count() == 1:
            self.close()

    def close(self) -> None:
        """Wait until everything is written."""
        for manager in (self._last, self._best):
            if manager is not None:
                with _writing(self._workdir):
                    manager.wait_until_finished()
                    manager.close()


def load_parameters(
    workdir: Path,
    like: Parameters,
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
) -> tuple[Parameters, list[int]]:
    """The parameters of a run, averaged over its last checkpoints (section 6.1).

    Args:
      workdir: the run directory.
      like: a `jax.ShapeDtypeStruct` with a sharding for every parameter.
      average: how many checkpoints to average, up to and including `step`. None is what the run's
        `checkpoint.average` says, or all if there are fewer; of the best there is one.
      step: the last of them; None is the newest, "best" the one with the best dev score.

    Returns:
      The parameters, and the steps they were averaged over.

    Raises:
      UserError: there are no such checkpoints, or one is damaged, or of another step or another
        config than the run's; or `workdir` is not a run directory.
    """
    config = read_config(workdir)
    directory = workdir / (_BEST if step == "best" else _CHECKPOINTS)
    if not directory.is_dir():
        raise UserError(
            f"{workdir} has no {directory.name}/ directory: nothing was saved there yet"
        )
    usual = 1 if step == "best" else config.checkpoint.average
    arguments = ocp.args.Composite(params=ocp.args.StandardRestore(like))
    total: Parameters | None = None
    with _reading(directory) as manager:
        there = sorted(manager.all_steps())
        chosen = _choose(there, average, step, directory, usual)
        try:
            sums = {}
            for one in chosen:  # before anything large is read
                sums[one] = _check_origin(manager, directory, one, config)
            for one in chosen:
                restored = _restore(manager, directory, one, arguments)
                _check_unaltered(restored, sums[one], directory / str(one))
                params = restored["params"]
                total = params if total is None else _add(total, params)
        except _UnreadableError as error:
            before = [s for s in there if s < one]
            way_out = f"the one before it is step={before[-1]}" if before else "none is before it"
            raise UserError(
                f"{error}; if config.json and vocabulary.model are still its own, it is damaged: "
                f"{way_out}"
            ) from error
    return _divide(total, len(chosen)), chosen


# Each is one small program for all arrays: one for every shape takes longer than to read them.


@jax.jit
def _add(a: Parameters, b: Parameters) -> Parameters:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _divide(params: Parameters, number: int | Array) -> Parameters:
    return jax.tree.map(lambda x: x / number, params)


def _together(place: Path, work: Callable[[], _T]) -> _T:
    """Do work in all processes, each on its own, which succeeds only where it succeeds in all.

    Raises:
      _UnreadableError: in all of them if in one.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:  # which the others learn of, whatever it is
        failure = error
    unreadable = isinstance(failure, _UnreadableError)
    worst = agree(0 if failure is None else 1 if unreadable else 2)
    if failure is not None and not (unreadable and worst == 2):
        raise failure
    if worst == 2:
        raise UserError(f"another process refuses checkpoint {place}; see what it said")
    if worst == 1:
        raise _UnreadableError(place, "by another process, which says why")
    return cast(_T, result)


def _newest_first(steps: Sequence[int]) -> Iterator[int]:
    """The steps that process 0 sees: to the others, a filesystem may show them later."""
    step = of_main(max(steps, default=-1))
    while step >= 0:
        yield step
        step = of_main(max((s for s in steps if s < step), default=-1))


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.{n}") for n in count(1))
    return next(name for name in chain([path], names) if not name.exists())


def _choose(
    there: Sequence[int], average: int | None, step: int | str | None, directory: Path, usual: int
) -> list[int]:
    if average is not None and average < 1:
        raise UserError(f"average={average} is not a number of checkpoints; use 1 for the newest")
    if isinstance(step, int):
        if step not in there:
            raise UserError(f"{directory} has no step {step}; it has {list(there)}")
        there = [s for s in there if s <= step]
    if not there:
        raise UserError(f"{directory} is empty: nothing was saved there yet")
    if average is None:
        average = min(usual, len(there))
    if len(there) < average:
        way_out = "ask for fewer, or train with a larger checkpoint.keep"
        if step == "best":
            way_out = "of the best there is one; leave average out"
        raise UserError(
            f"{directory} has {len(there)} checkpoints {list(there)}, fewer than average={average}"
            f"; {way_out}"
        )
    return list(there[-average:])


def _check_origin(
    manager: ocp.CheckpointManager, directory: Path, step: int, config: Config
) -> Mapping[str, list[int]]:
    """Refuse a checkpoint that does not come from the step and the run whose place it has.

    Returns:
      The checksums of its items; none if they were not counted yet when it was written.
    """
    place = directory / str(step)
    arguments = ocp.args.Composite(origin=ocp.args.JsonRestore())
    stored = _restore(manager, directory, step, arguments)["origin"]
    if stored["step"] != step:
        raise UserError(
            f"checkpoint {place} is of step {stored['step']}: it is a copy of "
            f"{directory / str(stored['step'])}, or that one under another name; remove it, or "
            "give it its name back"
        )
    try:
        changed = differences(config, from_dict(stored["config"]), only_binding=True)
    except UserError as error:
        raise UserError(f"checkpoint {place}: {error}") from error
    if changed:
        raise UserError(
            f"checkpoint {place} is of a run with another config than config.json "
            f"({describe(changed)}); remove it, or put it back to where it came from"
        )
    return stored.get("sums", {})


def _checksums(arrays: Any) -> list[int]:
    return [int(each) for each in jax.device_get(_sums(arrays))]


@jax.jit
def _sums(arrays: Any) -> list[UInt32[Array, ""]]:
    return [_checksum(x) for x in jax.tree.leaves(arrays)]


def _checksum(x: Array) -> UInt32[Array, ""]:
    """A sum over an array's bits that any change of one element changes.

    Modulo 2**32 the order of the summands, and so the layout over devices, makes no difference. The
    weights are odd, and differ from place to place.
    """
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return (bits * (2 * place + 1)).sum(dtype=jnp.uint32)


def _check_unaltered(
    restored: Mapping[str, Any], sums: Mapping[str, list[int]], place: Path
) -> None:
    """Refuse what was read if it is not what was saved: TensorStore has no checksum of values."""
    for item, expected in sums.items():
        if item in restored and _checksums(restored[item]) != expected:
            raise _UnreadableError(place, f"other values in {item} than were saved")


def _best_score(directory: Path, measure: dict[str, Any]) -> float:
    """The score to beat; minus infinity if it was measured otherwise, or cannot be read."""
    arguments = ocp.args.Composite(score=ocp.args.JsonRestore())
    with closing(_manager(directory, None)) as reader:
        step = reader.latest_step()
        if step is None:
            return -math.inf
        try:
            stored = _restore(reader, directory, step, arguments)["score"]
        except _UnreadableError:
            return -math.inf
    return stored["score"] if stored.get("measure") == measure else -math.inf


def _progress(state: TrainState) -> dict[str, Any]:
    return {name: value for name, value in state._asdict().items() if name != "params"}


def _restore(
    manager: ocp.CheckpointManager, directory: Path, step: int, arguments: ocp.args.Composite
) -> Any:
    try:
        return manager.restore(step, args=arguments)
    except MemoryError:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file.
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        raise _UnreadableError(directory / str(step), _reason(error)) from error


def _reason(error: BaseException) -> str:
    """What went wrong first, without TensorStore's account of its settings."""
    while before := error.__cause__ or error.__context__:
        error = before
    words = " ".join(str(error).partition(" [tensorstore_spec")[0].split())
    return words[-300:] or type(error).__name__
