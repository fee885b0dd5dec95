"""The command that says what the time of a run went to."""

import math
from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.commands.pictures import check_picture, write_picture
from t2t_jax.commands.tables import report_console
from t2t_jax.errors import UserError
from t2t_jax.system.records import as_line


@dataclass(frozen=True)
class GoodputCommand:
    """Say what the time of a run went to, over all its restarts: steps, repeated steps, waits.

    The time from the first start to the last record is divided into productive steps, steps that
    were repeated after a restart, start, compilation, waiting for data, evaluation, checkpoints and
    the time between jobs. The run may be under way.
    """

    workdir: OneRun = tyro.MISSING
    """Directory of the run."""
    price: float | None = None
    """Price of a device hour, in any currency, for the cost of each part; None leaves it out."""
    watts: float | None = None
    """Power of a device in watts, for the energy of the jobs; None leaves it out."""
    json: bool = False
    """Print one JSON object instead of tables."""
    output: Path | None = None
    """File for a picture with a bar for each job, which ends in .svg or .png."""

    def run(self) -> int:
        """Draw and print what the time went to, and return the exit code."""
        for flag, value in (("price", self.price), ("watts", self.watts)):
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"--{flag} {value} is not a number above 0; give one, or leave it")
        check_picture("output", self.output)
        from t2t_jax.run.goodput import read_goodput
        from t2t_jax.run.report import RunReport
        from t2t_jax.run.report.goodput import goodput_sections
        from t2t_jax.workdir import read_config

        read_config(self.workdir)  # which refuses what is no run
        found = read_goodput(self.workdir)
        if found is None:
            raise UserError(
                f"{self.workdir} has no accounts of its time (jobs/*.json), which trainings "
                "keep from release 0.2.0 on; a run begins to keep them when it goes on"
            )
        if self.output is not None:
            from t2t_jax.inspect.figures.jobs import job_bars

            write_picture(self.output, job_bars(found))
        if self.json:
            print(as_line(found.figures(self.price, self.watts)))
        else:
            sections = goodput_sections(found, self.price, self.watts)
            report = RunReport(f"What the time of {self.workdir} went to", sections)
            report_console(120).print(report.terminal())
        return 0
