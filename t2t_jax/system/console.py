"""Consoles that programs print to, and their behaviour once the reader has gone (`| head`)."""

import os
import sys

from rich.console import Console


class ResultConsole(Console):
    """A console for results: once its reader has gone, `BrokenPipeError` ends the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error for `program.run`; rich would end the program with exit code 1."""
        raise


class ProgressConsole(Console):
    """A console for progress: once its reader has gone, the work continues silently."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on, and discard what Python still flushes."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere:  # Python flushes stdout once more at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
