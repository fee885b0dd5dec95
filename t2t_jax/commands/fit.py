"""The command that fits scaling laws to a grid."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.pictures import check_picture, write_picture
from t2t_jax.commands.tables import report_console
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import check_place, write_whole


@dataclass(frozen=True)
class FitCommand:
    """Fit scaling laws to a grid over sizes and tokens, and say what they advise for more FLOPs.

    The grid is one that sweep has trained, of cells that took equally many FLOPs with models of
    several sizes. Each family of networks has laws of its own; at equal FLOPs they are compared.
    """

    examples: ClassVar = (
        "runs/isoflop_small --flops 1e15 --figure isoflop_small.svg",
        "runs/isoflop_small --law parametric --hold-out '*-4.8e12'",
    )
    workdir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GRID")] = tyro.MISSING
    """Directory of the grid, with cells in VARIANT/seedN/."""
    flops: tuple[float, ...] = ()
    """Amounts of floating point operations of a whole training, such as 1e19, for which the best
    size and the best number of tokens are wanted."""
    law: Literal["both", "isoflop", "parametric"] = "both"
    """Parabolas over sizes for each budget, the law L(N, D) over all cells, or both."""
    count: Literal["total", "layers"] = "total"
    """Parameters that are N: all, or those without the vocabulary's (embeddings and output
    projection), which are a large part of a small model and a small part of a large one."""
    hold_out: tuple[str, ...] = ()
    """Variants, as names or patterns, that are not fitted, and whose losses L(N, D) predicts."""
    figure: Path | None = None
    """File for a picture of the laws, which ends in .svg or .png."""
    output: Path | None = None
    """File for the report as Markdown."""

    def run(self) -> int:
        """Fit the laws, draw and print what they say, and return the exit code."""
        self._check()
        from t2t_jax.sweep.scaling.cells import held_out, read_cells
        from t2t_jax.sweep.scaling.report import fit_families, scaling_report

        grid = read_cells(self.workdir)
        cells, held = held_out(grid.cells, self.hold_out)
        fits = fit_families(cells, held, self.law, self.count)
        title = f"Scaling laws of {self.workdir}"
        report = scaling_report(title, grid, fits, self.count, self.flops)
        if self.figure is not None:
            from t2t_jax.sweep.scaling.figure import scaling_figure

            write_picture(self.figure, scaling_figure(fits, self.count))
        if self.output is not None:
            write_whole(self.output, report.markdown().encode())
        report_console(120).print(report.terminal())
        return 0

    def _check(self) -> None:
        for flops in self.flops:
            if not 0 < flops < math.inf:
                raise UserError(f"--flops {flops} is no number of operations; give one, as 1e19")
        check_picture("figure", self.figure)
        if self.output is not None:
            check_place(self.output)
        if self.hold_out and self.law == "isoflop":
            raise UserError(
                "--hold-out asks for predicted losses, which --law isoflop has none of; use --law "
                "parametric or both"
            )
