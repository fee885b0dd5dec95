"""Load the parameters of a run, averaged over its last checkpoints (section 6.1) or its steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.system.records import Record
from t2t_jax.training import storage
from t2t_jax.training.origin import Identity, check_unaltered, read_origin
from t2t_jax.training.parameter_file import read_steps
from t2t_jax.training.parameters import reads_ema
from t2t_jax.training.step import Parameters
from t2t_jax.training.storage import Reader, UnreadableError, restore
from t2t_jax.workdir import BEST, CHECKPOINTS, PARAMETERS, StoredRun

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


def saved_steps(workdir: Path) -> list[int]:
    """List the steps at which the parameters of a run can be loaded, oldest first."""
    there = storage.steps_of_run(workdir, CHECKPOINTS)
    if there or not (workdir / PARAMETERS).is_file():
        return there
    return read_steps(workdir / PARAMETERS)[-1:]


def average_checkpoints(
    run: StoredRun, like: Parameters, average: int | None, step: int | Literal["best"] | None
) -> tuple[Parameters, list[int]]:
    """Load the mean of the parameters of checkpoints; see `parameters.load_parameters`."""
    identity = Identity(run.config, run.fingerprints)
    directory = run.workdir / (BEST if step == "best" else CHECKPOINTS)
    if not directory.is_dir():
        raise UserError(
            f"{run.workdir} has no {directory.name}/ directory and no {PARAMETERS}: nothing was "
            "saved there yet, or it was left out of a copy"
        )
    item = "ema" if reads_ema(identity.config, average) else "params"
    only_one = step == "best" or item == "ema"
    usual = 1 if only_one else identity.config.checkpoint.average
    for attempts_left in reversed(range(_ATTEMPTS)):
        there = storage.steps_in(directory)
        try:
            with storage.reading_checkpoints(directory) as manager:
                origin = cache(partial(read_origin, manager, directory, identity))
                counts = partial(_counts, origin, identity.config)
                chosen = _choose(there, average, step, directory, usual, counts)
                params = _mean(manager, directory, {s: origin(s) for s in chosen}, item, like)
            return params, chosen
        except UnreadableError as error:
            if attempts_left and _changes(directory, there):
                continue
            raise _damaged(error, there) from error
    raise AssertionError("the last attempt returns or raises")


def _damaged(error: UnreadableError, there: list[int]) -> UserError:
    before = [step for step in there if step < error.step]
    way_out = f"the one before it is step={before[-1]}" if before else "none is before it"
    return UserError(
        f"{error}; if config.json and vocabulary.model are still its own, it is damaged: {way_out}"
    )


def _changes(directory: Path, there: Sequence[int]) -> bool:
    """Return whether a directory gains or loses checkpoints within a moment."""
    latest = time.monotonic() + _SECONDS_FOR_A_CHANGE
    while time.monotonic() < latest:
        if storage.steps_in(directory) != list(there):
            return True
        time.sleep(0.05)
    return False


def _counts(origin: Callable[[int], Record], config: Config, step: int) -> bool:
    """Return whether averages may use a checkpoint: it is due, or not marked as for safety."""
    # A checkpoint for safety may be unreadable, as a trainer removes it or a kill left a part of
    # it. Where `checkpoint.every_steps` is given, an unreadable one that is not due counts as such.
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
    manager: Reader, directory: Path, origins: Mapping[int, Record], item: str, like: Parameters
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
