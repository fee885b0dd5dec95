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
from t2t_jax.sweep.plan import decided, score_at
from t2t_jax.sweep.rules import GridRules, by_variant, planned_grid, record_rules, recorded_plan
from t2t_jax.sweep.run import run_cells
from t2t_jax.sweep.rung_table import unfinished
from t2t_jax.sweep.tuning import tuned_results
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
    unfinished: tuple[str, ...] = ()
    """The cells that are not trained as far as they are wanted."""


def run_grid(
    variants: Mapping[str, Config] | Grid,
    workdir: str | os.PathLike[str],
    *,
    seeds: int = 1,
    jobs: int = 1,
    only: Iterable[str] = (),
    launcher: Launcher | None = None,
    console: Console | None = None,
    rules: GridRules | None = None,
    max_hours: float | None = None,
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
      rules: the rules by which variants are halved or tuned; None is for those that the directory
        has, or else none.
      max_hours: the hours after which nothing more begins, and what runs on this machine stops with
        a checkpoint.

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
    check_hours(max_hours)
    workdir = as_path(workdir)
    planned = planned_grid(grid, workdir, chosen, seeds, rules or GridRules(), jobs)
    check_cells(planned.plan.cells({}))
    check_installed("train", "a grid", *OF_TRAINING)
    console, launcher = console or ProgressConsole(), launcher or Local(jobs)
    record_rules(planned, workdir)
    signal = run_cells(planned.plan, launcher, console, max_hours)
    return GridOutcome({}, [], signal) if signal else collect(grid, workdir, seeds, console, only)


def collect(
    grid: Grid, workdir: Path, seeds: int, console: Console, only: Iterable[str] = ()
) -> GridOutcome:
    """Write the table of the finished cells in a grid's directory, and train nothing.

    Results of further seeds than those asked for are in the table too. The console shows a line for
    each result that is left out, as it is damaged or of another config.

    Args:
      only: the variants that are asked for, as `run_grid` takes them.

    Raises:
      UserError: no cell is finished, or the results cannot be compared.
    """
    from t2t_jax.sweep.tables import write_tables

    planned = recorded_plan(grid, workdir)
    if planned is None:
        chosen = chosen_variants(grid, only)
        planned = planned_grid(grid, workdir, chosen, seeds, GridRules())
    wanted, scores, _ = decided(planned.plan)
    of_grid = cells(grid, workdir, max(seeds, planned.seeds, num_seeds_in(grid, workdir)))
    found: dict[str, dict[str, Record]] = {}
    left_out = []
    for cell in wanted if planned.candidates else of_grid:
        try:
            if (result := cell.result()) is not None:
                found.setdefault(cell.variant, {})[cell.name] = result
        except UserError as error:
            left_out.append(cell.name)
            line = f"{cell.name} is left out: {error}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    results = {name: list(own.values()) for name, own in found.items()}
    notes: list[str] = []
    if planned.candidates:
        results, notes = tuned_results(planned, by_variant(wanted), scores, found)
    lines, over = unfinished(planned, wanted, scores)
    notes += lines
    if left_out:
        notes.append(f"- Left out, as of another config or damaged: {', '.join(left_out)}.")
    rows = write_tables(grid, results, workdir, notes, over)
    open_ones = tuple(c.name for c in wanted if score_at(scores[c.name], c.until) is None)
    return GridOutcome(results, rows, unfinished=open_ones)


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


def check_hours(max_hours: float | None) -> None:
    """Refuse a limit of hours that is not positive."""
    if max_hours is not None and not max_hours > 0:
        raise UserError(f"max_hours={max_hours} is not positive; leave it out for no limit")
