"""Checkpoints of a run, and parameters out of them.

    W/checkpoints/STEP/params       the parameters
    W/checkpoints/STEP/progress     optimiser moments and counters: what resuming needs besides
    W/best/STEP/params              the parameters with the best dev score so far
    W/best/STEP/score               that score
    */STEP/origin                   the step and the config that they are of

A checkpoint is written beside its place and renamed into it, so one that has its name is whole. It
says itself where it comes from, so that a copy from elsewhere is not taken for what its place says.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging

from t2t_jax.config import CheckpointConfig, Config, differences, from_dict, to_dict
from t2t_jax.errors import UserError
from t2t_jax.training.step import Parameters, TrainState
from t2t_jax.workdir import read_config

_CHECKPOINTS, _BEST = "checkpoints", "best"


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
    """The checkpoints in a directory; with nothing to say which to keep, they are only read."""
    read_only = keep is None
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # Orbax warns of being read-only
    try:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=keep,
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
        )
        return ocp.CheckpointManager(directory.absolute(), options=options)
    finally:
        logging.set_verbosity(verbosity)


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
        self._last = _manager(workdir / _CHECKPOINTS, _NewestAndDue(config.checkpoint))
        self._best: ocp.CheckpointManager | None = None
        if config.checkpoint.keep_best:
            self._best = _manager(workdir / _BEST, ocp.checkpoint_managers.LatestN(1))

    def restore(self, like: TrainState) -> TrainState | None:
        """The newest state, laid out over devices as `like`; None when there is none.

        A best score from a later step is forgotten: the run comes past that step again.

        Args:
          like: a `jax.ShapeDtypeStruct` with a sharding for every array of the state.

        Raises:
          UserError: the checkpoint is damaged, or of another step or another run.
        """
        step = self._last.latest_step()
        state = None if step is None else self._restore(step, like)
        if self._best:
            for best in self._best.all_steps():
                if step is None or best > step:
                    self._best.delete(best)
        return state

    def _restore(self, step: int, like: TrainState) -> TrainState:
        arguments = ocp.args.Composite(
            params=ocp.args.StandardRestore(like.params),
            progress=ocp.args.StandardRestore(_progress(like)),
        )
        directory = self._workdir / _CHECKPOINTS
        _check_origin(self._last, directory, step, self._config)
        restored = _restore(self._last, directory, step, arguments)
        return TrainState(params=restored["params"], **restored["progress"])

    def save(self, state: TrainState) -> None:
        """Write `state` in the background, unless its step is written already."""
        step = int(state.step)
        if step == self._last.latest_step():
            return
        arguments = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            progress=ocp.args.StandardSave(_progress(state)),
            origin=self._origin(step),
        )
        with _writing(self._workdir / _CHECKPOINTS):
            self._last.save(step, args=arguments, force=True)

    def save_if_best(self, state: TrainState, score: float, measure: dict[str, Any]) -> bool:
        """Keep the parameters apart if `score` is higher than that of those kept so far.

        Args:
          state: whose parameters were scored.
          score: higher is better.
          measure: what defines the score. Scores by another measure do not count.
        """
        if self._best is None or _best_score(self._best, self._workdir, measure) >= score:
            return False
        if int(state.step) in self._best.all_steps():  # by another measure, or damaged
            self._best.delete(int(state.step))
        arguments = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            score=ocp.args.JsonSave({"score": score, "measure": measure}),
            origin=self._origin(int(state.step)),
        )
        with _writing(self._workdir / _BEST):
            return bool(self._best.save(int(state.step), args=arguments, force=True))

    def _origin(self, step: int) -> ocp.args.JsonSave:
        return ocp.args.JsonSave({"step": step, "config": to_dict(self._config)})

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
    with closing(_manager(directory, None)) as manager:
        chosen = _choose(sorted(manager.all_steps()), average, step, directory, usual)
        for one in chosen:  # before anything large is read
            _check_origin(manager, directory, one, config)
        for one in chosen:
            params = _restore(manager, directory, one, arguments)["params"]
            total = params if total is None else jax.tree.map(jnp.add, total, params)
    return jax.tree.map(lambda x: x / len(chosen), total), chosen


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
) -> None:
    """Refuse a checkpoint that does not come from the step and the run whose place it has."""
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
        listed = ", ".join(f"{path}={its!r}, not {own!r}" for path, (own, its) in changed.items())
        raise UserError(
            f"checkpoint {place} is of a run with another config than config.json ({listed}); "
            "remove it, or put it back to where it came from"
        )


def _best_score(best: ocp.CheckpointManager, workdir: Path, measure: dict[str, Any]) -> float:
    """The score to beat; minus infinity if it was measured otherwise, or cannot be read.

    Orbax waits for a save under way before it reads.
    """
    step = best.latest_step()
    if step is None:
        return -math.inf
    arguments = ocp.args.Composite(score=ocp.args.JsonRestore())
    try:
        stored = _restore(best, workdir / _BEST, step, arguments)["score"]
    except UserError:
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
        raise UserError(
            f"checkpoint {directory / str(step)} cannot be read ({_reason(error)}); if config.json "
            "and vocabulary.model are still its own, it is damaged: move that directory away to go "
            "on from the one before it"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
