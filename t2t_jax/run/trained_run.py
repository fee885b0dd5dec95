"""The result of a training: the run, with its directory, its history and its model."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from t2t_jax.config import MeshConfig
from t2t_jax.config.cost import num_parameters
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.run.history import History, score_at
from t2t_jax.run.loading import load
from t2t_jax.workdir import read_config, read_vocabulary


@dataclass(frozen=True)
class TrainedRun:
    """A run that was trained: to its end, to a pause, or until a signal."""

    directory: Path
    """The run directory, from which `t2t_jax.load` reads it too."""
    exit_code: int
    """The exit code of a program that trains: 0 for a run that is at its end or at a pause, 128 + n
    for a run that signal n stopped, and that the same call resumes."""
    history: History = field(repr=False)
    """The records of the log since the first step: `training`, `evaluations` (on dev), `warnings`,
    and `end`, why the run ended. Each is a dictionary, as a line of `log.jsonl` is."""

    def __repr__(self) -> str:
        """Return the directory, size, step and score on dev."""
        size = "unknown"
        with suppress(UserError, OSError):  # the directory may be gone since the training
            config, vocabulary = read_config(self.directory), read_vocabulary(self.directory)
            size = f"{num_parameters(config.model, len(vocabulary)):,}"
        step = max((record["step"] for record in self.history.training), default=0)
        score = score_at(self.history.evaluations)
        return f"<TrainedRun: {self.directory}, {size} parameters, step {step:,}{score}>"

    def load(
        self,
        *,
        average: int | None = None,
        step: int | Literal["best"] | None = None,
        parallel: MeshConfig | None = None,
    ) -> Translator:
        """Load the model of the run; see `t2t_jax.load`.

        Raises:
          UserError: the checkpoint is missing or damaged, or the mesh does not fit.
        """
        return load(self.directory, average=average, step=step, parallel=parallel)
