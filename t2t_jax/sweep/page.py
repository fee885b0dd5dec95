"""A page of HTML, in one file, on a grid: its table, its curves, and two rows side by side.

`system.offline_page` puts `page.html`, `page.css` and `page.js` beside this file together. What a
page shows is bounded, so that a browser opens that of a large grid too: curves of many records are
thinned, and of the translations some are shown.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from t2t_jax.config import Config, walk
from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.errors import UserError
from t2t_jax.run.figures import figures_of, unit_of
from t2t_jax.sweep.cell_report import DONE, WAITING, CellReport, left_out_note, results_by_variant
from t2t_jax.sweep.comparison import compare, student
from t2t_jax.sweep.directory import read_grid_directory
from t2t_jax.sweep.gathering import gathered
from t2t_jax.sweep.rules import has_rules
from t2t_jax.sweep.stored_grid import stored_rows
from t2t_jax.sweep.tables import Beside, GridTable, grid_table
from t2t_jax.system.offline_page import offline_page
from t2t_jax.version import __version__

_MOST_POINTS = 400
"""The points of a curve, at most."""
_ALL_POINTS = 400_000
"""The points of all curves, about; with more curves, each has fewer points, down to 20."""
_MOST_SAMPLES = 50
"""The sentences whose translations are shown, at most."""
_ALL_CHARACTERS = 4_000_000
"""The characters of all translations, about; with more variants, fewer sentences are shown."""
_LONGEST = 1000
"""The characters of a translation, at most."""


def grid_page(directory: Path) -> str:
    """Return a page on the grid in a directory, which may be under way.

    Raises:
      UserError: no run of the directory has a config that can be read, or results were scored on
        different sentences.
    """
    grid, reports = read_grid_directory(directory)
    comparison = _comparison(directory)
    known = [one for one in reports if one.cell.variant in grid.variants]
    table = _table(grid, reports)
    variants = list(grid.variants)
    most_seeds = max(Counter(one.cell.variant for one in known).values())
    data = {
        "variants": variants,
        "base": grid.base,
        "caption": table.caption,
        "heads": table.heads,
        "rows": table.rows,
        "notes": table.notes,
        "comparison": comparison,
        "unfinished": [
            [one.cell.name, one.state, f"{one.steps:,}", one.reason]
            for one in reports
            if one.state not in (DONE, WAITING)
        ],
        "fields": _fields(grid.variants),
        "student": [round(student(freedom), 4) for freedom in range(1, most_seeds)],
        **_curves(variants, known),
        **_samples(variants, results_by_variant(known)),
        "made": f"t2t-jax {__version__}, {time.strftime('%d %B %Y %H:%M UTC', time.gmtime())}",
    }
    return offline_page(__package__, "page", f"Grid {directory.resolve().name}", data)


def _table(grid: Grid, reports: Sequence[CellReport]) -> GridTable:
    """Return the table, in which a variant without a result has a row without figures."""
    results = results_by_variant(reports)
    if results:
        table = grid_table(grid, compare(grid, results), results, Beside(left_out_note(reports)))
    else:
        table = GridTable("No cell has a result yet.", ["variant", "differs in"], [], [])
    rows = {row[0]: row for row in table.rows}
    for name, config in grid.variants.items():
        blank = [""] * (len(table.heads) - 2)
        difference = describe_difference(grid.variants[grid.base], config)
        rows.setdefault(name, [name, difference, *blank])
    return table._replace(rows=[rows[name] for name in grid.variants])


def _comparison(directory: Path) -> Sequence[GridTable]:
    """Return the tables of a grid that was halved or tuned, whose rows are not all comparable."""
    try:
        grid = stored_rows(directory) if has_rules(directory) else None
        if grid is None:
            return []
        results, _, beside, _ = gathered(grid, directory)
        if not results:
            return beside.tables
        rows = compare(grid, results, beside.diverged)
        return [grid_table(grid, rows, results, beside), *beside.tables]
    except UserError as error:
        return [GridTable(f"It is left out: {error}.", [], [], [])]


def _fields(variants: Mapping[str, Config]) -> dict[str, list[str]]:
    """Return the fields in which any two configs differ: the value of each variant, as text."""
    by_variant = [{path: str(value) for path, _, value in walk(c)} for c in variants.values()]
    paths = dict.fromkeys(path for values in by_variant for path in values)
    fields = {path: [values.get(path, "") for values in by_variant] for path in paths}
    return {path: values for path, values in fields.items() if len(set(values)) > 1}


def _curves(variants: Sequence[str], reports: Sequence[CellReport]) -> dict[str, Any]:
    """Return the curves of all cells, by figure; curves with the same steps share them."""
    unit = unit_of(one.cell.config for one in reports)
    figures = figures_of([one.history for one in reports], unit)
    most = max(20, min(_MOST_POINTS, _ALL_POINTS // (len(figures) * len(reports))))
    axes: dict[tuple[float, ...], int] = {}
    drawn, is_thinned = [], False
    for figure in figures:
        lines = []
        for one in reports:
            if points := figure.points(one.history):
                last = max(one.cell.config.training.num_train_steps, points[-1][0])
                steps, values = thinned(np.array(points, np.float64).T, most, last)
                is_thinned = is_thinned or len(steps) < len(points)
                lines.append(
                    {
                        "variant": variants.index(one.cell.variant),
                        "seed": one.cell.config.training.seed,
                        "axis": axes.setdefault(tuple(_rounded(steps)), len(axes)),
                        "values": _rounded(values),
                    }
                )
        if lines:
            drawn.append({"title": figure.title, "lines": lines})
    return {"figures": drawn, "axes": list(axes), "thinned": most if is_thinned else 0}


def thinned(
    points: Float[np.ndarray, "2 n"], most: int, last: float
) -> Float[np.ndarray, "2 thinned"]:
    """Return the steps and values of a curve, or of a long one the means of neighbouring records.

    The records that become one lie between the same steps in every curve of as many steps, so that
    the curves of several seeds stay comparable point by point.

    Args:
      points: the steps, rising from 1 at least, and the finite values.
      most: how many points are left, at most.
      last: the last step that the curve can have.
    """
    if points.shape[1] <= most:
        return points
    parts = np.clip(np.ceil(points[0] * (most / last)).astype(int), 1, most)
    _, firsts, counts = np.unique(parts, return_index=True, return_counts=True)
    return np.add.reduceat(points, firsts, axis=1) / counts


def _rounded(values: Iterable[float]) -> list[float]:
    """Return numbers with the six digits that a picture can show."""
    return [float(f"{value:.6g}") for value in values]


def _samples(variants: Sequence[str], results: Mapping[str, Any]) -> dict[str, Any]:
    """Return some hypotheses of each variant's first seed, with their references.

    The sentences are spread over the split. Those of most tasks are the same for every variant.
    """
    size = max((len(seeds[0]["references"]) for seeds in results.values()), default=0)
    least = math.ceil(_ALL_CHARACTERS / (_LONGEST * max(1, len(results))))
    places = range(0, size, max(1, math.ceil(size / min(_MOST_SAMPLES, least))))
    references: dict[tuple[str, ...], int] = {}
    samples = {}
    for name, (first, *_) in results.items():
        chosen = [place for place in places if place < len(first["references"])]
        cut = {
            kind: tuple(_cut(first[kind][place]) for place in chosen)
            for kind in ("references", "hypotheses")
        }
        samples[variants.index(name)] = {
            "seed": first["config"]["training"]["seed"],
            "references": references.setdefault(cut["references"], len(references)),
            "hypotheses": cut["hypotheses"],
        }
    return {"samples": samples, "references": list(references), "places": [*places]}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
