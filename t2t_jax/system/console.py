"""Where programs print: what happens once nobody reads it any more (`| head`)."""

import os
import sys

from rich.console import Console


class ResultConsole(Console):
    """A console for results: where its reader has gone, `BrokenPipeError` ends the program."""

    def on_broken_pipe(self) -> None:
        """Leave it to `program.run`; rich would end the program with exit code 1."""
        raise


class ProgressConsole(Console):
    """A console for what is told on the way: where its reader has gone, the work goes on."""

    def on_broken_pipe(self) -> None:
        """Be silent from now on."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere:  # Python flushes stdout once more at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
