"""The command `figures`: draw the figures of the paper."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t2t_jax.commands.flag_table import RunToRead
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class FiguresCommand:
    """Draw the figures of the paper from the code of the model, as SVG and PNG.

    The figures show the architecture with shapes and parameter counts, positional encodings, the
    learning rate schedule, softmax saturation, label smoothing, masks, the cost of long sequences,
    and attention.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = tyro.MISSING
    """Directory to write the figures to; existing files with the same names are replaced."""
    workdir: Annotated[RunToRead | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Directory of the run to draw; None is the base model of the paper, without attention."""
    text: str | None = None
    """Sentence to draw attention for; None is "No devices were found."."""

    def run(self) -> int:
        """Draw the figures, print their names, and return the exit code."""
        from t2t_jax.extras.inspect.figures.write import SENTENCE, write_figures
        from t2t_jax.workdir import is_run

        if is_run(self.directory):
            raise UserError(
                f"{self.directory} is a run; name the directory for the figures before the run"
            )
        sentence = SENTENCE if self.text is None else self.text
        paths = write_figures(self.directory, self.workdir, sentence)
        names = ", ".join(path.stem for path in paths if path.suffix == ".svg")
        print(f"wrote to {self.directory}, each as SVG and PNG: {names}")
        return 0
