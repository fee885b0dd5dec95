"""What a training leaves to its caller: the run, with its directory, its history and its model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from t2t_jax.config import MeshConfig
from t2t_jax.decoding.translator import Translator
from t2t_jax.run.history import History
from t2t_jax.run.loading import load


@dataclass(frozen=True)
class TrainedRun:
    """A run that was trained, to its end or until a signal stopped it."""

    directory: Path
    """The run directory, from which `t2t_jax.load` reads it too."""
    exit_code: int
    """What a program that trains ends with: 0 for a run that is at its end, 128 + n for one that
    signal n stopped, and that the same call goes on with."""
    history: History = field(repr=False)
    """The records of its log since its first step: `training`, `evaluations` (on dev), `warnings`,
    and `end`, why it ended. Each is a dictionary, as a line of `log.jsonl` is."""

    def load(
        self,
        *,
        average: int | None = None,
        step: int | Literal["best"] | None = None,
        parallel: MeshConfig | None = None,
    ) -> Translator:
        """The model of the run; see `t2t_jax.load`.

        Args:
          average: how many of the last checkpoints to average; None is as the config says.
          step: the last of these checkpoints; None is the newest, "best" the one with the best
            score on dev.
          parallel: the mesh of devices; None is all of this process, each with all parameters.

        Raises:
          UserError: there is no such checkpoint, or it is damaged, or the devices are others.
        """
        return load(self.directory, average=average, step=step, parallel=parallel)
