"""A trained model apart from its run, which formats are written from and read into."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from t2t_jax.config import Config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.interchange.names import Arrays, named_arrays
from t2t_jax.run.loading import load


@dataclass(frozen=True)
class PortableModel:
    """A trained model: its config, its vocabulary and its parameters on the host."""

    config: Config
    """The config of the run that trained the model. The moving average of parameters is off: the
    model has one set of parameters, which may be that average."""
    vocabulary: Vocabulary
    """The vocabulary of sources and targets."""
    arrays: Arrays
    """The parameters, as `interchange.names` names them."""
    steps: tuple[int, ...]
    """The training steps of the checkpoints that the parameters are the mean of; () if unknown."""


def portable_model(
    workdir: Path, *, average: int | None = None, step: int | Literal["best"] | None = None
) -> PortableModel:
    """Return the model of a run, from the checkpoints that `t2t_jax.load` would take.

    Raises:
      UserError: `workdir` is not a run directory, or its checkpoints are missing or damaged.
    """
    translator = load(workdir, average=average, step=step)
    return PortableModel(
        translator.config.replace({"training.ema_decay": None}),
        translator.vocabulary,
        named_arrays(translator.params),
        translator.steps,
    )
