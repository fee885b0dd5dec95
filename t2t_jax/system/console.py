"""Consoles that handle a closed pipe (`| head`), and rows of Markdown tables."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

_NO_WIDTH = 100_000  # columns, which rich needs a number of


class _StreamConsole(Console):
    """A console that wraps lines at the terminal width, but not in files and pipes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if "width" not in settings and not self.is_jupyter and not self.file.isatty():
            self.width = _NO_WIDTH


def markdown_row(cells: Sequence[str]) -> str:
    """Format a row of a Markdown table, with `|` escaped in its cells."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


class ResultConsole(_StreamConsole):
    """A console for results: a closed pipe ends the program with `BrokenPipeError`."""

    def on_broken_pipe(self) -> None:
        """Re-raise the error for `program.run`; rich would exit with code 1."""
        raise


class ProgressConsole(_StreamConsole):
    """A console for progress: after a closed pipe, the program continues silently."""

    def on_broken_pipe(self) -> None:
        """Stop printing, and discard the buffered output."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere:  # Python flushes stdout once more at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
