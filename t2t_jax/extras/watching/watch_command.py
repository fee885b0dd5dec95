"""The command `watch`: plot training curves in the terminal."""

import math
from dataclasses import dataclass

import tyro

from t2t_jax.commands.flag_table import Runs
from t2t_jax.commands.tables import result_console
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class WatchCommand:
    """Plot training curves in the terminal: loss, dev scores, gradient norm and speed.

    Several runs share the same axes. The runs may still be training. For a run that ended early,
    the reason or the error is printed too.
    """

    workdir: Runs = tyro.MISSING
    """Run directories, or the directory of a sweep, to plot all of its runs."""
    follow: bool = False
    """Redraw when a log grows, until all runs have ended; for a sweep, until Ctrl-C."""
    interval: float = 5.0
    """With --follow, the seconds between two reads of the logs."""

    def run(self) -> int:
        """Plot the runs, and return the exit code: 128 + n if signal n ended the command."""
        if not 0 < self.interval < math.inf:
            raise UserError(f"--interval {self.interval} is invalid; give seconds > 0, such as 5")
        from t2t_jax.extras.watching.watch import follow_runs, show_runs

        console = result_console(markup=False, highlight=False)
        if not self.follow:
            show_runs(self.workdir, console)
            return 0
        signal = follow_runs(self.workdir, console, self.interval)
        return 128 + signal if signal else 0
