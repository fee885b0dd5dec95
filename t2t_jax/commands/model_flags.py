"""The flags by which commands choose a model, and how it decodes."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from t2t_jax.commands.groups import check_fits
from t2t_jax.commands.streams import reading
from t2t_jax.config import DecodingConfig

if TYPE_CHECKING:
    from t2t_jax.decoding.translator import Translator


def load_for(
    command: str,
    runs: Sequence[Path],
    average: int | None,
    step: int | Literal["best"] | None,
    **devices: int,
) -> "Translator":
    """Open a run, or the several runs of an ensemble, for a command that is not for all models.

    Args:
      command: the name of the command.
      runs: the run directories.
      average: how many of the last checkpoints to average; see `run.loading.load`.
      step: the last of them.
      devices: `fsdp` and `tensor`; see `run.loading.load`.

    Raises:
      UserError: the command is not for such a model, or it cannot be loaded.
    """
    check_fits(command, runs)
    from t2t_jax.run.loading import load

    return load(runs, average=average, step=step, **devices)


@dataclass(frozen=True)
class ModelFlags:
    """Flags that choose a trained model."""

    command: ClassVar[str]
    """Name of the command."""
    workdir: tuple[Path, ...] = tyro.MISSING
    """Directory of the run; several are an ensemble, which predicts their mean probabilities."""
    average: int | None = None
    """How many of the last checkpoints to average (section 6.1; base: 5, big: 20); None is the
    moving average of a run with training.ema_decay, or else the run's checkpoint.average."""
    step: int | Literal["best"] | None = None
    """Step of the last of them, or best for the best dev score; None is the newest."""
    fsdp: int = 1
    """Devices that share one copy of the parameters, for a model that one device does not hold."""
    tensor: int = 1
    """Devices that share the work on the same sentences: heads, d_ff and vocabulary are split."""

    def load(self) -> "Translator":
        """Open the run, or the several runs of an ensemble, as one translator."""
        devices = {"fsdp": self.fsdp, "tensor": self.tensor}
        return load_for(self.command, self.workdir, self.average, self.step, **devices)

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of an evaluation: how the model decodes, if the flags say so."""
        return {}


@dataclass(frozen=True)
class DecodingFlags(ModelFlags):
    """Flags that choose a trained model, and how it decodes."""

    seed: int = 0
    """Seed of sampling (temperature above 0)."""
    decoding: Annotated[DecodingConfig, tyro.conf.arg(name="")] = field(
        default_factory=DecodingConfig
    )

    def check_lines(self, translator: "Translator", path: Path | None) -> None:
        """Refuse a file for a line in it that is too long, before any line of it is decoded.

        Of a pipe, and of the standard input, each few thousand lines are seen together.
        """
        if self.decoding.long_lines == "split" or path is None or not path.is_file():
            return
        done = 0
        with reading(path) as chunks:
            for texts in chunks:
                settings = dataclasses.asdict(self.decoding)
                translator.check_lines(texts, first_line=done + 1, **settings)
                done += len(texts)

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of `Translator.translate`."""
        return {"seed": self.seed, **dataclasses.asdict(self.decoding)}
