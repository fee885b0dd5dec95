"""The command that compares a run with the paper."""

import math
from contextlib import suppress
from dataclasses import dataclass

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.commands.tables import result_console
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole


@dataclass(frozen=True)
class ReportCommand:
    """Report every constant of the paper beside the run's, the cost, the curves and the scores.

    The report is printed, and written to `report.md` in the run directory.
    """

    workdir: OneRun = tyro.MISSING
    """Directory of the run."""
    sustained_tflops: float | None = None
    """Sustained TFLOP/s of one device, for the paper's estimate of the training cost; the paper
    takes 9.5 for a P100. None leaves that estimate out."""

    def run(self) -> int:
        """Print and write the report of a run, and return the exit code."""
        rate = self.sustained_tflops
        if rate is not None and not 0 < rate < math.inf:
            raise UserError(
                f"--sustained-tflops {rate} is no rate; give a number above 0, as 9.5 for a P100"
            )
        from t2t_jax.run.report import build_report

        report = build_report(self.workdir, rate)
        result_console(highlight=False).print(report.terminal())
        with suppress(UserError):  # a published run cannot be written to
            write_whole(self.workdir / "report.md", report.markdown().encode())
        return 0
