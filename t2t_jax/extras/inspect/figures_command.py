"""The command that draws the paper's pictures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t2t_jax.commands.flag_table import RunToRead
from t2t_jax.commands.tables import print_line
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class FiguresCommand:
    """Draw the paper's pictures, computed by the code of the model, as SVG and PNG.

    The pictures show the architecture with shapes and numbers of parameters, positions, the
    schedule, softmax saturation, label smoothing, masks, the cost of long rows, and attention.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = tyro.MISSING
    """Directory for the files, which is made if missing; files of the same names are replaced."""
    workdir: Annotated[RunToRead | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Directory of the run to draw; None is the paper's base model, without attention."""
    text: str | None = None
    """Sentence whose attention is drawn; None is "No devices were found."."""

    def run(self) -> int:
        """Draw everything, print where it is, and return the exit code."""
        from t2t_jax.extras.inspect.figures.write import SENTENCE, write_figures
        from t2t_jax.workdir import is_run

        if is_run(self.directory):
            raise UserError(
                f"{self.directory} is a run; name the directory for the pictures ahead of it"
            )
        sentence = SENTENCE if self.text is None else self.text
        paths = write_figures(self.directory, self.workdir, sentence)
        names = ", ".join(path.stem for path in paths if path.suffix == ".svg")
        print_line(f"{self.directory} has, each as SVG and PNG: {names}")
        return 0
