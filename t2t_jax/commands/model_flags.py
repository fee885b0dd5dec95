"""Flags that select a model and its decoding settings."""

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
    """Flags that select checkpoints of a run and the devices to load them onto."""

    average: int | None = None
    """Number of latest checkpoints to average (section 6.1; base: 5, big: 20); None is the moving
    average of a run with training.ema_decay, or else the run's checkpoint.average."""
    step: int | Literal["best"] | None = None
    """Step of the newest checkpoint to use, or best for the best dev score; None is the newest."""
    parallel: MeshConfig = field(default_factory=MeshConfig)


def load_for(command: str, runs: Sequence[Path], flags: LoadFlags) -> "Translator":
    """Load one run, or several as an ensemble, after checking that the command supports each."""
    check_command(command, runs)
    from t2t_jax.run.loading import load

    return load(runs, average=flags.average, step=flags.step, parallel=flags.parallel)


@dataclass(frozen=True)
class RunFlags(LoadFlags):
    """Flags that select one trained model, with its directory as a positional argument."""

    workdir: OneRun = tyro.MISSING
    """Run directory."""


@dataclass(frozen=True)
class ModelFlags(LoadFlags):
    """Flags that select a trained model or an ensemble."""

    command: ClassVar[str]
    """Name of the command."""
    workdir: Runs = tyro.MISSING
    """Run directory; several form an ensemble, which averages their probabilities."""

    def load(self) -> "Translator":
        """Load the selected run, or an ensemble of the selected runs."""
        return load_for(self.command, self.workdir, self)


@dataclass(frozen=True)
class LanguageFlags(ModelFlags):
    """Flags that select a trained model, and the language pair of a multilingual model."""

    source_language: str | None = None
    """Source language, for a multilingual model; None is the language of the run."""
    target_language: str | None = None
    """Target language, for a multilingual model; None is the language of the run."""

    def load(self) -> "Translator":
        """Load the selected model, to translate from `source_language` to `target_language`."""
        translator = super().load()
        languages = self.source_language, self.target_language
        return translator.between(*languages) if any(languages) else translator


@dataclass(frozen=True)
class DecodingFlags(ModelFlags):
    """Flags that select a trained model and its decoding settings."""

    seed: int = 0
    """Random seed for sampling (temperature above 0)."""
    decoding: Annotated[DecodingConfig, BARE] = field(default_factory=DecodingConfig)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the seed and the decoding config, as keywords of `Translator.translate`."""
        return {"seed": self.seed, "decoding": self.decoding}
