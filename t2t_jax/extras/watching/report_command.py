"""The command `report`: compare a run with the paper."""

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
    """Compare a run with the paper, and report its cost, time, curves and scores.

    The report is printed and written to `report.md` in the run directory. It divides the time from
    the first start to the last record into productive steps, repeated steps after a restart,
    startup, compilation, waiting for data, evaluation, checkpoints and the time between jobs.
    """

    workdir: OneRun = tyro.MISSING
    """Run directory; the run may still be training."""
    sustained_tflops: float | None = None
    """Sustained TFLOP/s of one device, to estimate the training cost as in the paper, which assumes
    9.5 for a P100. None omits the estimate."""
    price: float | None = None
    """Price of one device hour, in any currency, to report the cost of each part of the time. None
    omits the cost."""
    watts: float | None = None
    """Power of a device in watts, to report the energy of the jobs. None omits the energy."""
    json: bool = False
    """Print the time breakdown as one JSON object instead of the report."""
    output: Path | None = None
    """File to write a plot of the time to, in .svg or .png, with one bar per job."""

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
            read_config(self.workdir)  # raises an error if the directory has no run
            goodput = read_goodput(self.workdir)
            if goodput is None:
                raise UserError(
                    f"{self.workdir} has no record of its time (jobs/*.json), which training runs "
                    "write"
                )
            if self.output is not None:
                from t2t_jax.extras.watching.job_bars import job_bars

                write_picture(self.output, job_bars(goodput))
            if self.json:
                print(as_line(goodput.figures(self.price, self.watts)))
                return 0
        report = build_report(self.workdir, self.sustained_tflops, self.price, self.watts)
        result_console(highlight=False).print(report.terminal())
        with suppress(UserError):  # a published run is read-only
            write_whole(self.workdir / "report.md", report.markdown().encode())
        return 0
