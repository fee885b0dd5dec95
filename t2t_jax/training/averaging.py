"""Load the parameters of a run, averaged over its last checkpoints (section 6.1) or its steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Array

from t2t_jax.config import Config
from t2t_jax.errors import UserError, quote
from t2t_jax.modules.names import parameters_of
from t2t_jax.system.hub import NEEDED_FILES
from t2t_jax.system.records import Record
from t2t_jax.system.sums import check_sums
from t2t_jax.training.origin import Identity, check_origin, check_unaltered
from t2t_jax.training.parameter_file import check_vocabulary, read_parameters, read_steps
from t2t_jax.training.step import Parameters
from t2t_jax.training.storage import (
    Manager,
    UnreadableError,
    reading_checkpoints,
    restore,
    steps_in,
    steps_of_run,
)
from t2t_jax.workdir import BEST, CHECKPOINTS, CONFIG, PARAMETERS, read_config, read_fingerprints

# A trainer that replaces its checkpoints removes some while they are read here.
_ATTEMPTS, _SECONDS_FOR_A_CHANGE = 20, 1.0


def is_due(config: Config, step: int) -> bool:
    """Return whether the config asks for a checkpoint for averages after a step."""
    every_steps = config.checkpoint.every_steps
    by_steps = every_steps is not None and step % every_steps == 0
    return by_steps or step == config.training.num_train_steps


def is_kept_for_good(config: Config, step: int) -> bool:
    """Return whether `checkpoint.keep_every` includes a step."""
    every = config.checkpoint.keep_every
    return every is not None and step % every == 0


def check_average(config: Config) -> None:
    """Refuse a config that averages checkpoints but writes none for averages."""
    checkpoint = config.checkpoint
    if checkpoint.every_steps is None and checkpoint.average > 1 and not reads_ema(config, None):
        raise UserError(
            f"checkpoint.average={checkpoint.average} averages checkpoints that are "
            "checkpoint.every_steps apart, which is None (those by the clock are for safety "
            "alone); give the steps, or checkpoint.average=1"
        )


def reads_ema(config: Config, average: int | None) -> bool:
    """Return whether `load_parameters` reads the moving average of a run's parameters.

    Args:
      average: the argument of `load_parameters`.
    """
    return average is None and config.training.ema_decay is not None


def saved_steps(workdir: Path) -> list[int]:
    """List the steps at which the parameters of a run can be loaded, oldest first."""
    there = steps_of_run(workdir, CHECKPOINTS)
    if there or not (workdir / PARAMETERS).is_file():
        return there
    return read_steps(workdir / PARAMETERS)[-1:]


def load_parameters(
    workdir: Path,
    like: Parameters,
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
) -> tuple[Parameters, list[int]]:
    """Load the parameters of a run, averaged over its last checkpoints (section 6.1).

    Averages leave out checkpoints that a clock or a signal wrote for safety (see
    `training.checkpoint`), so an interrupted run has the same average as an unbroken one. If at
    most one checkpoint remains and `average` is None, the newest of all is loaded.

    A run with `training.ema_decay` loads its moving average, unless `average` asks for checkpoints.
    An exported run loads its file, unless it has checkpoints and the arguments ask for some.

    The run may still be training: if it removes a checkpoint during the read, this function chooses
    again from the remaining ones.

    Args:
      like: a `jax.ShapeDtypeStruct` with a sharding for every parameter.
      average: how many checkpoints to average, up to and including `step`. None is the moving
        average, if the run keeps one, or else as many as `checkpoint.average` says, or all if
        there are fewer. With "best" it is 1.
      step: the training step of the last checkpoint, also one for safety; None is the newest,
        "best" the one with the best dev score.

    Returns:
      The parameters, and the steps of their checkpoints.

    Raises:
      UserError: an argument has a wrong type, or a checkpoint is missing, damaged or foreign.
    """
    average, step = _checked(average, step)
    identity = Identity(read_config(workdir), read_fingerprints(workdir))
    if _is_in_a_file(workdir, average, step):
        return _of_file(workdir, identity, like, average, step)
    directory = _directory(workdir, step)
    item = "ema" if reads_ema(identity.config, average) else "params"
    only_one = step == "best" or item == "ema"
    usual = 1 if only_one else identity.config.checkpoint.average
    for attempts_left in reversed(range(_ATTEMPTS)):
        there = steps_in(directory)
        try:
            with reading_checkpoints(directory) as manager:
                origin = cache(partial(_origin, manager, directory, identity))
                counts = partial(_counts, origin, identity.config)
                chosen = _choose(there, average, step, directory, usual, counts)
                params = _mean(manager, directory, {s: origin(s) for s in chosen}, item, like)
            return params, chosen
        except UnreadableError as error:
            if attempts_left and _changes(directory, there):
                continue
            raise _damaged(error, there) from error
    raise AssertionError("the last attempt returns or raises")


def _directory(workdir: Path, step: int | str | None) -> Path:
    directory = workdir / (BEST if step == "best" else CHECKPOINTS)
    if not directory.is_dir():
        raise UserError(
            f"{workdir} has no {directory.name}/ directory and no {PARAMETERS}: nothing was saved "
            "there yet, or it was left out of a copy"
        )
    return directory


def _is_in_a_file(workdir: Path, average: int | None, step: int | str | None) -> bool:
    if not (workdir / PARAMETERS).is_file():
        return False
    return (average, step) == (None, None) or not (workdir / CHECKPOINTS).is_dir()


def _of_file(
    workdir: Path,
    identity: Identity,
    like: Parameters,
    average: int | None,
    step: int | str | None,
) -> tuple[Parameters, list[int]]:
    file = workdir / PARAMETERS
    check_sums(workdir, NEEDED_FILES)
    saved = read_parameters(file)
    check_vocabulary(file, saved, identity.fingerprints["vocabulary"])
    number = None if reads_ema(identity.config, None) else len(saved.steps)
    if average not in (None, number) or step not in (None, *saved.steps[-1:]):
        raise UserError(
            f"{workdir} is an exported run, whose parameters are the average of the steps "
            f"{list(saved.steps)}: average={average} step={step} asks for others; leave both out, "
            "or name the run that it was exported from"
        )
    try:
        arrays = parameters_of(saved.arrays, like)
    except UserError as error:
        raise UserError(f"{file}: {error}; it is of a run with another {CONFIG}") from error
    return jax.tree.map(_placed, arrays, dict(like)), list(saved.steps)


def _placed(array: np.ndarray, like: jax.ShapeDtypeStruct) -> Array:
    return jax.make_array_from_callback(array.shape, like.sharding, lambda part: array[part])


def _damaged(error: UnreadableError, there: list[int]) -> UserError:
    before = [step for step in there if step < error.step]
    way_out = f"the one before it is step={before[-1]}" if before else "none is before it"
    return UserError(
        f"{error}; if config.json and vocabulary.model are still its own, it is damaged: {way_out}"
    )


def _checked(average: Any, step: Any) -> tuple[int | None, int | Literal["best"] | None]:
    for name, value, others in (("average", average, (None,)), ("step", step, (None, "best"))):
        is_number = isinstance(value, Integral) and not isinstance(value, bool)
        is_other = isinstance(value, str | None) and value in others
        if not is_number and not is_other:
            known = " or ".join(["a whole number", *map(repr, others)])
            raise UserError(f"{name}={quote(value)} is a {type(value).__name__}; give {known}")
    return (
        None if average is None else int(average),
        int(step) if isinstance(step, Integral) else step,
    )


def _changes(directory: Path, there: Sequence[int]) -> bool:
    """Return whether a directory gains or loses checkpoints within a moment."""
    latest = time.monotonic() + _SECONDS_FOR_A_CHANGE
    while time.monotonic() < latest:
        if steps_in(directory) != list(there):
            return True
        time.sleep(0.05)
    return False


def _origin(manager: Manager, directory: Path, identity: Identity, step: int) -> Record:
    """Read the record of a checkpoint's origin, and refuse one that belongs to another run."""
    stored = restore(manager, directory, step, origin=ocp.args.JsonRestore())["origin"]
    return check_origin(stored, directory / str(step), identity)


def _counts(origin: Callable[[int], Record], config: Config, step: int) -> bool:
    """Return whether averages may use a checkpoint: it is due, or not marked as for safety.

    A checkpoint for safety may be unreadable, as a trainer removes it or a kill left a part of it.
    Where `checkpoint.every_steps` is given, an unreadable one that is not due counts as such.
    """
    if is_due(config, step):
        return True
    try:
        return not origin(step).get("for_safety", False)
    except UnreadableError:
        if config.checkpoint.every_steps is None:
            raise
        return False


def _choose(
    there: Sequence[int],
    average: int | None,
    step: int | str | None,
    directory: Path,
    usual: int,
    counts: Callable[[int], bool],
) -> list[int]:
    """Return the steps of the checkpoints to average, oldest first."""
    if average is not None and average < 1:
        raise UserError(f"average={average} is not a number of checkpoints; use 1 for the newest")
    if isinstance(step, int):
        if step not in there:
            raise UserError(f"{directory} has no step {step}; it has {list(there)}")
        there = [s for s in there if s <= step]
    if not there:
        raise UserError(f"{directory} is empty: nothing was saved there yet")
    if step == "best":
        there = there[-1:]  # the one before is for a run that has to go back to an earlier state
    wanted = usual if average is None else average
    if wanted == 1:
        return list(there[-1:])
    named = [there[-1]] if isinstance(step, int) else []  # it counts, whatever it was written for
    others = (s for s in reversed(there) if s not in named and counts(s))
    chosen = [*reversed([*named, *islice(others, wanted - len(named))])]
    if average is None:
        return chosen if len(chosen) > 1 else list(there[-1:])
    if len(chosen) < average:
        way_out = "ask for fewer, or train with a larger checkpoint.keep"
        if step == "best":
            way_out = "of the best there is one; leave average out"
        raise UserError(
            f"{directory} has {len(chosen)} checkpoints to average, {chosen}, fewer than "
            f"average={average}; {way_out}"
        )
    return chosen


def _mean(
    manager: Manager, directory: Path, origins: Mapping[int, Record], item: str, like: Parameters
) -> Parameters:
    """Compute the mean of one item over checkpoints.

    Args:
      origins: the records of the checkpoints' origins by step.
    """
    total: Parameters | None = None
    for step, origin in origins.items():
        restored = restore(manager, directory, step, **{item: ocp.args.StandardRestore(like)})
        check_unaltered(restored, origin, directory / str(step))
        total = restored[item] if total is None else _add(total, restored[item])
    return _divide(total, len(origins))


# Each is compiled as one small program for all arrays. To compile one for every shape would take
# longer than to read the arrays.
_add: Callable[..., Parameters] = jax.jit(partial(jax.tree.map, jnp.add))
_divide: Callable[..., Parameters] = jax.jit(
    lambda params, n: jax.tree.map(lambda x: x / n, params)
)
