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
from t2t_jax.saved_model import read_steps
from t2t_jax.system.records import Record
from t2t_jax.training import checkpoint_files, storage
from t2t_jax.training.origin import Identity, check_unaltered, read_origin
from t2t_jax.training.parameters import reads_ema
from t2t_jax.training.step import Parameters
from t2t_jax.training.storage import Reader, UnreadableError, restore
from t2t_jax.workdir import BEST, CHECKPOINTS, PARAMETERS, StoredRun

# A running trainer may remove a checkpoint while this process reads it, so reads are retried.
_ATTEMPTS, _SECONDS_FOR_A_CHANGE = 20, 1.0


def is_due(config: Config, step: int) -> bool:
    """Return whether averaging needs a checkpoint of `step`.

    It needs the last step and all multiples of `checkpoint.every_steps`.
    """
    every_steps = config.checkpoint.every_steps
    by_steps = every_steps is not None and step % every_steps == 0
    return by_steps or step == config.training.num_train_steps


def is_kept_for_good(config: Config, step: int) -> bool:
    """Return whether `checkpoint.keep_every` includes a step."""
    every = config.checkpoint.keep_every
    return every is not None and step % every == 0


def check_average(config: Config) -> None:
    """Refuse a config that averages checkpoints but schedules none."""
    checkpoint = config.checkpoint
    if checkpoint.every_steps is None and checkpoint.average > 1 and not reads_ema(config, None):
        raise UserError(
            f"checkpoint.average={checkpoint.average} averages checkpoints that are "
            "checkpoint.every_steps apart, which is None (averages skip checkpoints that are "
            "written at time intervals); set checkpoint.every_steps, or checkpoint.average=1"
        )


def saved_steps(workdir: Path) -> list[int]:
    """List the steps whose parameters a run can load, oldest first."""
    steps = checkpoint_files.steps_of_run(workdir, CHECKPOINTS)
    if steps or not (workdir / PARAMETERS).is_file():
        return steps
    return read_steps(workdir / PARAMETERS)[-1:]


def average_checkpoints(
    run: StoredRun, like: Parameters, average: int | None, step: int | Literal["best"] | None
) -> tuple[Parameters, list[int]]:
    """Return the mean parameters of checkpoints, and the steps of these checkpoints.

    The arguments are those of `parameters.load_parameters`.
    """
    identity = Identity(run.config, run.fingerprints)
    directory = run.workdir / (BEST if step == "best" else CHECKPOINTS)
    if not directory.is_dir():
        raise UserError(
            f"{run.workdir} has no {directory.name}/ directory and no {PARAMETERS}: the run has "
            "saved nothing yet, or a copy of it left the directory out"
        )
    item = "ema" if reads_ema(identity.config, average) else "params"
    is_single = step == "best" or item == "ema"
    default_count = 1 if is_single else identity.config.checkpoint.average
    for attempts_left in reversed(range(_ATTEMPTS)):
        available = checkpoint_files.steps_in(directory)
        try:
            with storage.reading_checkpoints(directory) as manager:
                origin_of = cache(partial(read_origin, manager, directory, identity))
                is_averaged = partial(_is_averaged, origin_of, identity.config)
                steps = _choose(available, average, step, directory, default_count, is_averaged)
                params = _mean(manager, directory, {s: origin_of(s) for s in steps}, item, like)
            return params, steps
        except UnreadableError as error:
            if attempts_left and _list_changes(directory, available):
                continue
            raise _damaged(error, available) from error
    raise AssertionError("the last attempt returns or raises")


def _damaged(error: UnreadableError, available: list[int]) -> UserError:
    earlier = [step for step in available if step < error.step]
    remedy = f"the one before it is step={earlier[-1]}" if earlier else "none is before it"
    return UserError(
        f"{error}; if config.json and vocabulary.model are unchanged, it is damaged: {remedy}"
    )


def _list_changes(directory: Path, listed_steps: Sequence[int]) -> bool:
    """Return whether a directory's checkpoints stop matching `listed_steps` within a second."""
    deadline = time.monotonic() + _SECONDS_FOR_A_CHANGE
    while time.monotonic() < deadline:
        if checkpoint_files.steps_in(directory) != list(listed_steps):
            return True
        time.sleep(0.05)
    return False


def _is_averaged(origin_of: Callable[[int], Record], config: Config, step: int) -> bool:
    """Return whether averages use a step's checkpoint: one that is scheduled, or not for safety."""
    # An unscheduled checkpoint may be unreadable: the trainer removes it, or a kill left a part of
    # it. If `checkpoint.every_steps` is set, averages skip such a checkpoint.
    if is_due(config, step):
        return True
    try:
        return not origin_of(step).get("for_safety", False)
    except UnreadableError:
        if config.checkpoint.every_steps is None:
            raise
        return False


def _choose(
    available: Sequence[int],
    average: int | None,
    step: int | str | None,
    directory: Path,
    default_count: int,
    is_averaged: Callable[[int], bool],
) -> list[int]:
    """Choose the steps of the checkpoints to average, oldest first.

    Args:
      available: the steps of the saved checkpoints, oldest first.
      average: the number of checkpoints; None takes up to `default_count`.
      step: the newest step to use, or None for the last; "best" takes the last one only.
    """
    if average is not None and average < 1:
        raise UserError(f"average={average} is not a number of checkpoints; use 1 for the newest")
    if isinstance(step, int):
        if step not in available:
            raise UserError(f"{directory} has no step {step}; it has {list(available)}")
        available = [s for s in available if s <= step]
    if not available:
        raise UserError(f"{directory} is empty: nothing was saved there yet")
    if step == "best":
        available = available[-1:]  # an older one serves a run that resumes from an earlier state
    num_averaged = default_count if average is None else average
    if num_averaged == 1:
        return list(available[-1:])
    newest = [available[-1]] if isinstance(step, int) else []  # averaged even if it is unscheduled
    earlier = (s for s in reversed(available) if s not in newest and is_averaged(s))
    steps = [*reversed([*newest, *islice(earlier, num_averaged - len(newest))])]
    if average is None:
        return steps if len(steps) > 1 else list(available[-1:])
    if len(steps) < average:
        remedy = "ask for fewer, or train with a larger checkpoint.keep"
        if step == "best":
            remedy = "there is only one best checkpoint; leave average out"
        raise UserError(
            f"{directory} has {len(steps)} checkpoints to average, {steps}, fewer than "
            f"average={average}; {remedy}"
        )
    return steps


def _mean(
    manager: Reader, directory: Path, origins: Mapping[int, Record], item: str, like: Parameters
) -> Parameters:
    """Average an item, such as `params`, over the checkpoints whose steps are keys of `origins`."""
    total: Parameters | None = None
    for step, origin in origins.items():
        restored = restore(manager, directory, step, **{item: ocp.args.StandardRestore(like)})
        check_unaltered(restored, origin, directory / str(step))
        total = restored[item] if total is None else _add(total, restored[item])
    return _divide(total, len(origins))


# Each function is compiled once for the whole tree: a program for every array shape would take
# longer to compile than the arrays take to read.
_add: Callable[..., Parameters] = jax.jit(partial(jax.tree.map, jnp.add))
_divide: Callable[..., Parameters] = jax.jit(
    lambda params, n: jax.tree.map(lambda x: x / n, params)
)
