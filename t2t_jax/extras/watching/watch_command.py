"""The command that draws the curves of runs in the terminal."""

import math
from dataclasses import dataclass

import tyro

from t2t_jax.commands.flag_table import Runs
from t2t_jax.commands.tables import result_console
from t2t_jax.errors import UserError


@dataclass(frozen=True)
class WatchCommand:
    """Draw the curves of a run, or of several in the same axes: loss, dev, gradient norm, speed.

    The runs may be under way. The error of a failed run, and the reason of its end, are shown too.
    """

    workdir: Runs = tyro.MISSING
    """Directories of runs, or the directory of a grid, all of whose runs are drawn."""
    follow: bool = False
    """Draw again whenever a log has grown, until all runs have ended; of a grid, until Ctrl-C."""
    interval: float = 5.0
    """With --follow: seconds between two looks at the logs."""

    def run(self) -> int:
        """Draw the runs, and return the exit code: 128 + n if signal n ended the command."""
        if not 0 < self.interval < math.inf:
            raise UserError(f"--interval {self.interval} is no time; give seconds above 0, as 5")
        from t2t_jax.extras.watching.watch import follow_runs, show_runs

        console = result_console(markup=False, highlight=False)
        if not self.follow:
            show_runs(self.workdir, console)
            return 0
        signal = follow_runs(self.workdir, console, self.interval)
        return 128 + signal if signal else 0
