"""Gather the state of a grid's cells, and build tables from it."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from t2t_jax.config.file import Grid
from t2t_jax.sweep.budget import mean_budgets
from t2t_jax.sweep.cell import cells, num_seeds_in
from t2t_jax.sweep.cell_report import (
    LEFT_OUT,
    CellReport,
    cell_reports,
    left_out_note,
    results_by_variant,
)
from t2t_jax.sweep.plan import decided, score_at
from t2t_jax.sweep.rules import by_variant, recorded_plan
from t2t_jax.sweep.rung_table import rung_table
from t2t_jax.sweep.same_settings import devices_and_dtypes
from t2t_jax.sweep.stored_grid import rows_outside
from t2t_jax.sweep.tables import Beside
from t2t_jax.sweep.tuning import tuned_results
from t2t_jax.system.records import Record


class Gathered(NamedTuple):
    """The state of a grid's cells."""

    results: dict[str, list[Record]]
    """The results that are compared, by variant: of tuned variants those of the chosen values."""
    reports: Sequence[CellReport]
    """What became of each cell."""
    outside: Sequence[CellReport]
    """The state of the cells whose rows the directory's grid has and the given one lacks."""
    beside: Beside
    """What is said beside the scores."""
    unfinished: tuple[str, ...]
    """The names of the cells that are not trained as far as they are wanted."""


def gathered(grid: Grid, workdir: Path, seeds: int, only: Iterable[str]) -> Gathered:
    """Gather the state of a grid's cells, by the rules of its directory.

    Args:
      seeds: the requested seeds; results of further ones count too.
      only: the requested variants, as names or patterns; empty for all.

    Raises:
      UserError: the rules of the directory are damaged, or do not fit the grid.
    """
    planned = recorded_plan(grid, workdir, seeds, only)
    wanted, scores = decided(planned.for_reading)
    of_grid = cells(grid, workdir, max(seeds, planned.seeds, num_seeds_in(grid, workdir)))
    reports = cell_reports(wanted if planned.candidates else of_grid)
    results = results_by_variant(reports)
    given_up, over = rung_table(planned, wanted, scores)
    further = [given_up] if given_up else []
    broken = [cell for cell in wanted if math.inf in scores[cell.name].values()]
    diverged: dict[str, int] = Counter(cell.variant for cell in broken)
    if planned.candidates:
        found = {one.cell.name: one.result for one in reports if one.result is not None}
        results, diverged, values = tuned_results(planned, by_variant(wanted), scores, found)
        further = [values]
    outside = _outside(grid, workdir)
    notes = [*left_out_note(reports), *_outside_note(outside)]
    if trained_on := devices_and_dtypes(results):
        notes = [trained_on, *notes]
    if broken:
        names = ", ".join(cell.name for cell in broken)
        notes = [f"Diverged, and so worse than every other: {names}.", *notes]
    open_ones = tuple(c.name for c in wanted if score_at(scores[c.name], c.until) is None)
    beside = Beside(notes, further, over, diverged, mean_budgets(results, reports))
    return Gathered(results, reports, outside, beside, open_ones)


def _outside(grid: Grid, workdir: Path) -> list[CellReport]:
    """Return the state of the cells whose rows the directory has and the grid lacks."""
    lost = Grid(rows_outside(grid, workdir), {})
    found = cell_reports(cells(lost, workdir, num_seeds_in(lost, workdir)))
    return [one._replace(state=LEFT_OUT, reason="not in the config file") for one in found]


def _outside_note(outside: Sequence[CellReport]) -> list[str]:
    """Return a note on rows that the config file lacks, with their seeds and perplexities."""
    results, rows = results_by_variant(outside), []
    for row in dict.fromkeys(one.cell.variant for one in outside):
        own = [one["perplexity"] for one in results.get(row, [])]
        seeds = f"{len(own)} seed{'s' if len(own) > 1 else ''}"
        rows.append(f"{row} ({f'{seeds}, perplexity {fmean(own):.2f}' if own else 'no result'})")
    return [f"Not in the config file: {', '.join(rows)}."] if rows else []
