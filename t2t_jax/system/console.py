"""Output of programs: consoles, whose reader may have gone (`| head`), and rows of Markdown."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

_NO_WIDTH = 100_000  # columns, which rich needs a number of


class _StreamConsole(Console):
    """A console as wide as its terminal; files and pipes have no width."""

    def __init__(self, **settings: Any) -> None:
        """Make a console with settings of rich."""
        super().__init__(**settings)
        if "width" not in settings and not self.is_jupyter and not self.file.isatty():
            self.width = _NO_WIDTH


def markdown_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table, with `|` escaped in its cells."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


class ResultConsole(_StreamConsole):
    """A console for results: once its reader has gone, `BrokenPipeError` ends the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error for `program.run`; rich would end the program with exit code 1."""
        raise


class ProgressConsole(_StreamConsole):
    """A console for progress: once its reader has gone, the work continues silently."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on, and discard what Python still flushes."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere:  # Python flushes stdout once more at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
