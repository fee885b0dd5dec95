"""The command that compares a run with the paper."""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.commands.tables import check_picture, result_console, write_picture
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import as_line


@dataclass(frozen=True)
class ReportCommand:
    """Report the constants of the paper beside the run's, the cost, the time, curves and scores.

    The report is printed, and written to `report.md` in the run directory. Its time, from the first
    start to the last record, is divided into productive steps, steps that a restart repeated,
    start, compilation, waiting for data, evaluation, checkpoints and the time between jobs.
    """

    workdir: OneRun = tyro.MISSING
    """Directory of the run, which may be under way."""
    sustained_tflops: float | None = None
    """Sustained TFLOP/s of one device, for the paper's estimate of the training cost; the paper
    takes 9.5 for a P100. None leaves that estimate out."""
    price: float | None = None
    """Price of a device hour, in any currency, for the cost of each part of the time; None leaves
    it out."""
    watts: float | None = None
    """Power of a device in watts, for the energy of the jobs; None leaves it out."""
    json: bool = False
    """Print the figures of time as one JSON object, instead of the report."""
    output: Path | None = None
    """File for a picture of the time, in .svg or .png; it has a bar for each job."""

    def run(self) -> int:
        """Print and write the report of a run, and return the exit code."""
        for name in ("sustained_tflops", "price", "watts"):
            value, flag = getattr(self, name), name.replace("_", "-")
            if value is not None and not 0 < value < math.inf:
                raise UserError(
                    f"--{flag} {value} is not a number above 0; give one, or leave it out"
                )
        check_picture("output", self.output)
        from t2t_jax.extras.watching.report import build_report
        from t2t_jax.run.job import read_goodput
        from t2t_jax.workdir import read_config

        if self.json or self.output is not None:
            read_config(self.workdir)  # refuses a directory without a run
            goodput = read_goodput(self.workdir)
            if goodput is None:
                raise UserError(
                    f"{self.workdir} has no accounts of its time (jobs/*.json); trainings write "
                    "them"
                )
            if self.output is not None:
                from t2t_jax.extras.watching.job_bars import job_bars

                write_picture(self.output, job_bars(goodput))
            if self.json:
                print(as_line(goodput.figures(self.price, self.watts)))
                return 0
        report = build_report(self.workdir, self.sustained_tflops, self.price, self.watts)
        result_console(highlight=False).print(report.terminal())
        with suppress(UserError):  # a published run cannot be written to
            write_whole(self.workdir / "report.md", report.markdown().encode())
        return 0
