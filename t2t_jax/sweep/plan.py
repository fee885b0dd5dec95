"""The seam between what a grid decides and what trains its cells."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import Cell

Scores = Mapping[str, Mapping[int, float]]
"""The perplexities on dev by the name of a cell and by the step; lower is better."""


def score_at(scores: Mapping[int, float], step: int) -> float | None:
    """Return a cell's perplexity at a step; inf if it diverged before, None without a score."""
    return scores.get(step, math.inf if math.inf in scores.values() else None)


def mean_of(scores: Iterable[float | None]) -> float | None:
    """Return the mean of scores; None if one of them is missing."""
    found = [*scores]
    known = [score for score in found if score is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


@runtime_checkable
class GridPlan(Protocol):
    """A rule for which cells of a grid are trained, and until which step each.

    The answer follows from what lies in the grid's directory and from nothing else. So a sweep that
    was killed and started again goes on as if nothing had happened, and several sweeps agree.
    """

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells so far, each with the step until which it is to be trained by now.

        A cell that has its score at that step waits for a later decision, or is over. With more
        scores, a cell never leaves the plan, and its step never becomes an earlier one.
        """


class WholeGrid:
    """The plan of a grid of which every cell is trained to its end."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Keep the cells, in the order in which they are trained."""
        self._cells = cells

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells, whatever their scores are."""
        return self._cells


class Prioritized:
    """A plan of which some rows are trained ahead of the others. What it decides is the same."""

    def __init__(
        self, plan: GridPlan, ahead: Sequence[str], variants: Callable[[], Mapping[str, str]]
    ) -> None:
        """Keep the plan, the variants that are ahead, the first one first, and the function that
        returns the variants of the rows so far, by the name of the row."""
        self._plan, self._variants = plan, variants
        self._places = {name: place for place, name in enumerate(dict.fromkeys(ahead))}

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return the cells of the plan, those of the rows ahead first."""
        cells, last, variants = self._plan.cells(scores), len(self._places), self._variants()
        return sorted(cells, key=lambda cell: self._places.get(variants[cell.variant], last))


def decided(plan: GridPlan) -> tuple[Sequence[Cell], Scores]:
    """Return what a plan decides by what lies in the directories of its cells.

    Returns:
      All cells so far, each with the step until which it is to be trained by now; and their
      scores, of which a cell has none where they cannot be read.
    """
    scores: dict[str, Mapping[int, float]] = {}
    while new := [cell for cell in plan.cells(scores) if cell.name not in scores]:
        for cell in new:
            scores[cell.name] = {}
            with suppress(UserError):
                scores[cell.name] = cell.scores()
    return plan.cells(scores), scores
