"""Consoles that programs print to, and what each does once its reader has gone (`| head`)."""

import os
import sys

from rich.console import Console


class ResultConsole(Console):
    """A console for results: where its reader has gone, `BrokenPipeError` ends the program."""

    def on_broken_pipe(self) -> None:
        """Raise the error on to `program.run`; rich would end the program with exit code 1."""
        raise


class ProgressConsole(Console):
    """A console for progress: where its reader has gone, the work goes on in silence."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on, and send what Python still flushes to nowhere."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere:  # Python flushes stdout once more at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
