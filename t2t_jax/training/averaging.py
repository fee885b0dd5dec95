"""Load the parameters of a run, averaged over its last checkpoints (section 6.1) or its steps."""

import time
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jaxtyping import Array

from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.system.records import Record
from t2t_jax.training.origin import Identity, check_origin, check_unaltered, warn_of_age
from t2t_jax.training.step import Parameters
from t2t_jax.training.storage import UnreadableError, reading_checkpoints, restore, steps_in
from t2t_jax.workdir import BEST, CHECKPOINTS, read_config, read_fingerprints

# A trainer that replaces its checkpoints removes some while they are read here.
_ATTEMPTS, _SECONDS_FOR_A_CHANGE = 20, 1.0


def reads_ema(config: Config, average: int | None) -> bool:
    """Whether `load_parameters` reads the moving average that a run has kept of its parameters.

    Args:
      config: the config of the run.
      average: how many checkpoints to average, as it is asked for.
    """
    return average is None and config.training.ema_decay is not None


def load_parameters(
    workdir: Path,
    like: Parameters,
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
) -> tuple[Parameters, list[int]]:
    """The parameters of a run, averaged over its last checkpoints (section 6.1).

    Of a run with `training.ema_decay` they are instead the moving average that it has kept, unless
    `average` asks for checkpoints.

    The run may still be training: where a checkpoint is removed while it is read, the choice is
    made again among those that are there by then.

    Args:
      workdir: the run directory.
      like: a `jax.ShapeDtypeStruct` with a sharding for every parameter.
      average: how many checkpoints to average, up to and including `step`. None is the moving
        average, if the run keeps one, or else the number that its `checkpoint.average` says, or all
        if there are fewer. With "best" it is 1.
      step: the training step of the last of them; None is the newest, "best" the one with the best
        dev score.

    Returns:
      The parameters, and the steps they were averaged over, or after which the moving average was.

    Raises:
      UserError: `average` or `step` has another type, there are no such checkpoints, or one is
        damaged, or belongs to another step or to another run than its directory; or `workdir` is
        no run directory.
    """
    average, step = _checked(average, step)
    identity = Identity(read_config(workdir), read_fingerprints(workdir))
    directory = workdir / (BEST if step == "best" else CHECKPOINTS)
    if not directory.is_dir():
        raise UserError(
            f"{workdir} has no {directory.name}/ directory: nothing was saved there yet"
        )
    item = "ema" if reads_ema(identity.config, average) else "params"
    only_one = step == "best" or item == "ema"
    usual = 1 if only_one else identity.config.checkpoint.average
    for attempts_left in reversed(range(_ATTEMPTS)):
        there = steps_in(directory)
        chosen = _choose(there, average, step, directory, usual)
        try:
            return _mean(directory, chosen, item, like, identity), chosen
        except UnreadableError as error:
            if attempts_left and _changes(directory, there):
                continue
            damaged = next(s for s in chosen if str(directory / str(s)) in str(error))
            before = [s for s in there if s < damaged]
            way_out = f"the one before it is step={before[-1]}" if before else "none is before it"
            raise UserError(
                f"{error}; if config.json and vocabulary.model are still its own, it is damaged: "
                f"{way_out}"
            ) from error
    raise AssertionError("the last attempt returns or raises")


def _checked(average: Any, step: Any) -> tuple[int | None, int | Literal["best"] | None]:
    """The arguments as plain values of Python, once their types are checked."""
    for name, value, others in (("average", average, (None,)), ("step", step, (None, "best"))):
        is_number = isinstance(value, Integral) and not isinstance(value, bool)
        is_other = isinstance(value, str | None) and value in others
        if not is_number and not is_other:
            known = " or ".join(["a whole number", *map(repr, others)])
            raise UserError(f"{name}={value!r} is a {type(value).__name__}; give {known}")
    return (
        None if average is None else int(average),
        int(step) if isinstance(step, Integral) else step,
    )


def _changes(directory: Path, there: Sequence[int]) -> bool:
    """Whether checkpoints are added to a directory, or removed from it, within a moment."""
    latest = time.monotonic() + _SECONDS_FOR_A_CHANGE
    while time.monotonic() < latest:
        if steps_in(directory) != list(there):
            return True
        time.sleep(0.05)
    return False


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
    if step == "best":
        there = there[
            -1:
        ]  # the one before is kept for a run that has to go back to an earlier state
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


def _mean(
    directory: Path, chosen: Sequence[int], item: str, like: Parameters, identity: Identity
) -> Parameters:
    """The mean of one item of some checkpoints, each of which is checked to be the run's own."""
    total: Parameters | None = None
    with reading_checkpoints(directory) as manager:
        origins: dict[int, Record] = {}
        for one in chosen:  # before anything large is read
            stored = restore(manager, directory, one, origin=ocp.args.JsonRestore())["origin"]
            origins[one] = check_origin(stored, directory / str(one), identity)
        for one in chosen:
            restored = restore(manager, directory, one, **{item: ocp.args.StandardRestore(like)})
            check_unaltered(restored, origins[one], directory / str(one))
            params = restored[item]
            total = params if total is None else _add(total, params)
    warn_of_age(directory, origins.values(), identity)
    return _divide(total, len(chosen))


# Each is compiled as one small program for all arrays. To compile one for every shape would take
# longer than to read the arrays.


@jax.jit
def _add(a: Parameters, b: Parameters) -> Parameters:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _divide(params: Parameters, number: int | Array) -> Parameters:
    return jax.tree.map(lambda x: x / number, params)
