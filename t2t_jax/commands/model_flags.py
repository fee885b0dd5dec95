"""The flags by which commands choose a model, and the settings of its decoding."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from t2t_jax.commands.flag_table import BARE, OneRun, Runs
from t2t_jax.commands.groups import check_command
from t2t_jax.config import DecodingConfig, MeshConfig

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator


@dataclass(frozen=True)
class LoadFlags:
    """Flags that choose checkpoints of a run, and the devices that they are loaded onto."""

    average: int | None = None
    """Number of the last checkpoints to average (section 6.1; base: 5, big: 20); None is the
    moving average of a run with training.ema_decay, or else the run's checkpoint.average."""
    step: int | Literal["best"] | None = None
    """Step of the last checkpoint, or best for the best dev score; None is the newest."""
    parallel: MeshConfig = field(default_factory=MeshConfig)


def load_for(command: str, runs: Sequence[Path], flags: LoadFlags) -> "Translator":
    """Load a run, or the several runs of an ensemble, for a command that is not for all models."""
    check_command(command, runs)
    from t2t_jax.run.loading import load

    return load(runs, average=flags.average, step=flags.step, parallel=flags.parallel)


@dataclass(frozen=True)
class RunFlags(LoadFlags):
    """Flags that choose a trained model, with its directory as an argument without a flag."""

    workdir: OneRun = tyro.MISSING
    """Directory of the run."""


@dataclass(frozen=True)
class ModelFlags(LoadFlags):
    """Flags that choose a trained model."""

    command: ClassVar[str]
    """Name of the command."""
    workdir: Runs = tyro.MISSING
    """Directory of the run; several are an ensemble, which predicts their mean probabilities."""

    def load(self) -> "Translator":
        """Load the run, or the several runs of an ensemble, as one translator."""
        return load_for(self.command, self.workdir, self)


@dataclass(frozen=True)
class LanguageFlags(ModelFlags):
    """Flags that choose a trained model, and two languages of a model of several, such as NLLB."""

    source_language: str | None = None
    """Source language, for a model of several; None is the run's."""
    target_language: str | None = None
    """Target language, for a model of several; None is the run's."""

    def load(self) -> "Translator":
        """Load the model, for these languages."""
        translator = super().load()
        languages = self.source_language, self.target_language
        return translator.between(*languages) if any(languages) else translator


@dataclass(frozen=True)
class DecodingFlags(ModelFlags):
    """Flags that choose a trained model, and the settings of its decoding."""

    seed: int = 0
    """Seed of sampling (temperature above 0)."""
    decoding: Annotated[DecodingConfig, BARE] = field(default_factory=DecodingConfig)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `Translator.translate`."""
        return {"seed": self.seed, "decoding": self.decoding}
