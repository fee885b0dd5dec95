"""Functions that train and score every variant of a grid, and compare them in a table."""

import fnmatch
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from t2t_jax.config import Config
from t2t_jax.config.file import Grid, checked_grid
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.sweep.cell import cells, check_cells, num_seeds_in
from t2t_jax.sweep.launchers import Launcher, Local
from t2t_jax.sweep.plan import WholeGrid
from t2t_jax.sweep.run import run_cells
from t2t_jax.system.bucket import as_path
from t2t_jax.system.console import ProgressConsole
from t2t_jax.system.installed import OF_TRAINING, check_installed
from t2t_jax.system.records import Record

if TYPE_CHECKING:
    from t2t_jax.sweep.comparison import VariantRow


class GridOutcome(NamedTuple):
    """The outcome of a grid: the results of the cells that are finished, and their table."""

    results: dict[str, list[Record]]
    """The results of the finished seeds, by variant; variants without a result are left out. Empty
    after a signal."""
    rows: "list[VariantRow]"
    """The table: a row for each variant with results. Empty after a signal."""
    signal: int = 0
    """The number of the signal that stopped the training, for which the cells under way on this
    machine wrote a checkpoint; 0 if no signal came."""


def run_grid(
    variants: Mapping[str, Config] | Grid,
    workdir: str | os.PathLike[str],
    *,
    seeds: int = 1,
    jobs: int = 1,
    only: Iterable[str] = (),
    launcher: Launcher | None = None,
    console: Console | None = None,
) -> GridOutcome:
    """Train and score every variant of a grid, and write a table that compares them.

    Each variant under each seed is a process with a run directory `workdir/VARIANT/seedN` of its
    own. Finished ones are skipped, interrupted ones go on where they were, and one that fails
    does not stop the others. Then `table.md`, `table.csv` and `table.png` are written into
    `workdir`: perplexity and BLEU on dev, the differences from the variant `base` (or else from the
    first), and whether these differences are within the noise.

    Args:
      variants: configs by name; or a grid that `t2t_jax.config.file.load_grid` has read.
      workdir: the directory of the grid.
      seeds: how many seeds of each variant, counted from its own `training.seed`.
      jobs: processes at once on this machine, each with its share of the cores and GPUs of its own;
        at most as many as there are GPUs, if there are any.
      only: the variants to train, as names or patterns such as `A-*`; empty for all. The table has
        the other variants too, if they have results.
      launcher: the launcher of the processes; None is this machine, with `jobs` at once.
      console: the console that shows the progress; None is the standard output.

    Returns:
      The results and the table of everything that is finished in `workdir`.

    Raises:
      UserError: before anything begins, if an argument is refused, or a package of the extra
        `train` is missing, or a cell's directory holds something else than a run of its config; at
        the end, if no cell is finished, so that there is nothing to make a table of.
    """
    grid = variants if isinstance(variants, Grid) else checked_grid(variants, {}, "the grid")
    chosen = chosen_variants(grid, only)
    check_seeds(seeds)
    workdir = as_path(workdir)
    wanted = [cell for cell in cells(grid, workdir, seeds) if cell.variant in chosen]
    check_cells(wanted)
    check_installed("train", "a grid", *OF_TRAINING)
    console = console or ProgressConsole()
    signal = run_cells(WholeGrid(wanted), launcher or Local(jobs), console)
    return GridOutcome({}, [], signal) if signal else collect(grid, workdir, seeds, console)


def collect(grid: Grid, workdir: Path, seeds: int, console: Console) -> GridOutcome:
    """Write the table of the finished cells in a grid's directory, and train nothing.

    Results of further seeds than those asked for are in the table too. The console shows a line for
    each result that is left out, as it is damaged or of another config.

    Raises:
      UserError: no cell is finished, or the results cannot be compared.
    """
    from t2t_jax.sweep.tables import write_tables

    results: dict[str, list[Record]] = {}
    left_out = []
    for cell in cells(grid, workdir, max(seeds, num_seeds_in(grid, workdir))):
        try:
            if (result := cell.result()) is not None:
                results.setdefault(cell.variant, []).append(result)
        except UserError as error:
            left_out.append(cell.name)
            line = f"{cell.name} is left out: {error}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    return GridOutcome(results, write_tables(grid, results, workdir, left_out))


def chosen_variants(grid: Grid, patterns: Iterable[str]) -> list[str]:
    """Return the variants that names or patterns such as `A-*` choose, in the grid's order.

    A pattern that chooses none is refused.

    Raises:
      UserError: a pattern matches no variant.
    """
    patterns = list(patterns)
    for pattern in patterns:
        if not fnmatch.filter(grid.variants, pattern):
            hint = did_you_mean(pattern, grid.variants, f"it has {', '.join(grid.variants)}")
            raise UserError(f"no variant of the grid is called {pattern!r}; {hint}")
    return [
        name
        for name in grid.variants
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def check_seeds(seeds: int) -> None:
    """Refuse a number of seeds that is not positive."""
    if seeds < 1:
        raise UserError(f"seeds={seeds} is not positive")
