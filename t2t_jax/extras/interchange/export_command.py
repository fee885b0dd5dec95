"""The command `t2t-jax export`, which writes the model of a run in another format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.extras.interchange import formats

_HELP = formats.described_formats(formats.writable())


@dataclass(frozen=True)
class ExportCommand:
    """Export the model of a run to the format of another program.

    The output directory is written atomically.
    """

    examples: ClassVar = ("runs/base models/base --to ctranslate2",)
    workdir: OneRun = tyro.MISSING
    """Directory of the run."""
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")] = tyro.MISSING
    """Directory to write the model to."""
    to: Annotated[str, tyro.conf.arg(metavar="FORMAT", help=_HELP)] = tyro.MISSING
    dtype: str | None = None
    """Dtype of the parameters, such as float32 or int8; None is the default of the format."""
    average: int | None = None
    """Number of latest checkpoints to average; None is the moving average of a run with
    training.ema_decay, or else the run's checkpoint.average."""
    step: int | Literal["best"] | None = None
    """Step of the newest checkpoint to use, or best for the best dev score; None is the newest."""

    def run(self) -> int:
        """Export the model, and return exit code 0."""
        from t2t_jax.extras.interchange.portable import portable_model

        formats.check_written(self.to, self.dtype)
        model = portable_model(self.workdir, average=self.average, step=self.step)
        formats.write_model(model, self.to, self.output, self.dtype)
        readme = self.output / "README.md"
        print(
            f"{self.output} contains the model as {self.to}"
            + (f"; {readme} explains how to use it" if readme.is_file() else "")
        )
        return 0
