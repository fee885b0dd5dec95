"""Load the parameters of a run from its checkpoints or from an exported file."""

from numbers import Integral
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from t2t_jax.config import Config
from t2t_jax.errors import UserError, quote
from t2t_jax.modules.models import make_model
from t2t_jax.modules.names import parameters_of
from t2t_jax.modules.network import abstract_parameters
from t2t_jax.modules.parameters import Parameters
from t2t_jax.saved_model import check_vocabulary, read_parameters
from t2t_jax.system.hub import NEEDED_FILES
from t2t_jax.system.sums import check_sums
from t2t_jax.workdir import CHECKPOINTS, CONFIG, PARAMETERS, StoredRun


def reads_ema(config: Config, average: int | None) -> bool:
    """Return whether `load_parameters` reads the moving average of the parameters.

    Args:
      average: the argument of `load_parameters`.
    """
    return average is None and config.training.ema_decay is not None


def described_parameters(run: StoredRun, mesh: Mesh) -> Parameters:
    """Return a `jax.ShapeDtypeStruct` with a sharding for every parameter of a run."""
    return abstract_parameters(make_model(run.config, len(run.vocabulary), mesh), mesh)


def load_parameters(
    run: StoredRun,
    like: Parameters,
    *,
    average: int | None = None,
    step: int | Literal["best"] | None = None,
) -> tuple[Parameters, list[int]]:
    """Load the parameters of a run, averaged over its last checkpoints (section 6.1).

    Averages skip unscheduled checkpoints (`training.checkpoint`). If `average` is None and at most
    one scheduled checkpoint is left, the function loads the newest checkpoint. An exported run
    loads its file, unless it also has checkpoints and an argument is not None.

    If a running trainer removes a checkpoint during the read, this function retries.

    Args:
      like: the result of `described_parameters`.
      average: number of checkpoints to average, up to and including `step`. None loads the moving
        average (`training.ema_decay`), or else averages up to `checkpoint.average` checkpoints, or
        1 for "best".
      step: the training step of the last checkpoint, scheduled or not; None is the newest, "best"
        the checkpoint with the best dev score.

    Returns:
      The parameters, and the steps of their checkpoints.
    """
    average, step = _checked(average, step)
    prefers_file = (average, step) == (None, None) or not (run.workdir / CHECKPOINTS).is_dir()
    if prefers_file and (run.workdir / PARAMETERS).is_file():
        return _of_file(run, like, average, step)
    # A lazy import: Orbax imports slowly, and an exported run does not need it.
    from t2t_jax.training.averaging import average_checkpoints

    return average_checkpoints(run, like, average, step)


def _of_file(
    run: StoredRun, like: Parameters, average: int | None, step: int | str | None
) -> tuple[Parameters, list[int]]:
    file = run.workdir / PARAMETERS
    check_sums(run.workdir, NEEDED_FILES)
    saved = read_parameters(file)
    check_vocabulary(file, saved, run.vocabulary.fingerprint)
    count = None if reads_ema(run.config, None) else len(saved.steps)
    if average not in (None, count) or step not in (None, *saved.steps[-1:]):
        raise UserError(
            f"{run.workdir} is an exported run, whose parameters are the average of the steps "
            f"{list(saved.steps)}: average={average} step={step} asks for others; leave both out, "
            "or pass the run that it was exported from"
        )
    try:
        arrays = parameters_of(saved.arrays, like)
    except UserError as error:
        raise UserError(f"{file}: {error}; it belongs to a run with another {CONFIG}") from error
    return jax.tree.map(_placed, arrays, dict(like)), list(saved.steps)


def _placed(array: np.ndarray, like: jax.ShapeDtypeStruct) -> Array:
    return jax.make_array_from_callback(array.shape, like.sharding, lambda part: array[part])


def _checked(average: Any, step: Any) -> tuple[int | None, int | Literal["best"] | None]:
    for name, value, valid in (("average", average, (None,)), ("step", step, (None, "best"))):
        is_integer = isinstance(value, Integral) and not isinstance(value, bool)
        is_choice = isinstance(value, str | None) and value in valid
        if not is_integer and not is_choice:
            choices = " or ".join(["a whole number", *map(repr, valid)])
            raise UserError(f"{name}={quote(value)} is a {type(value).__name__}; give {choices}")
    average = None if average is None else int(average)
    return average, int(step) if isinstance(step, Integral) else step
