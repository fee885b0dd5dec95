"""The command that compares a run with the paper, or writes a page on a grid."""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tyro

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.commands.tables import print_line, result_console
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole


@dataclass(frozen=True)
class ReportCommand:
    """Report every constant of the paper beside the run's, the cost, the curves and the scores.

    The report is printed, and written to `report.md` in the run directory. Of a grid, --html writes
    a page that any browser opens without a network: table, curves, configs and samples.
    """

    workdir: OneRun = tyro.MISSING
    """Directory of the run, or of a grid."""
    html: Path | None = None
    """File for the page on a grid, such as grid.html; an existing file is replaced."""
    sustained_tflops: float | None = None
    """Sustained TFLOP/s of one device, for the paper's estimate of the training cost; the paper
    takes 9.5 for a P100. None leaves that estimate out."""

    def run(self) -> int:
        """Print the report of a run, or write the page on a grid, and return the exit code."""
        from t2t_jax.sweep.directory import is_grid

        rate = self.sustained_tflops
        if rate is not None and not 0 < rate < math.inf:
            raise UserError(
                f"--sustained-tflops {rate} is no rate; give a number above 0, as 9.5 for a P100"
            )
        if is_grid(self.workdir):
            return self._report_grid()
        if self.html is not None:
            raise UserError(
                f"--html is for a grid, and {self.workdir} has no runs VARIANT/seedN; name the "
                "directory of a grid, or leave --html out"
            )
        from t2t_jax.run.report import build_report

        report = build_report(self.workdir, rate)
        result_console(highlight=False).print(report.terminal())
        with suppress(UserError):  # a published run cannot be written to
            write_whole(self.workdir / "report.md", report.markdown().encode())
        return 0

    def _report_grid(self) -> int:
        from t2t_jax.sweep.page import grid_page

        if self.html is None:
            raise UserError(
                f"{self.workdir} is the directory of a grid; give a file for a page on it, as "
                "--html grid.html, or name one of its runs"
            )
        if self.sustained_tflops is not None:
            raise UserError("--sustained-tflops is about a run, not a grid; leave it out")
        write_whole(self.html, grid_page(self.workdir).encode())
        print_line(f"{self.html} shows it; open it in a browser")
        return 0
