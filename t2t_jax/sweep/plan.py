"""The interface between the rules of a grid and the training of its cells."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
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
    all_scores = [*scores]
    known = [score for score in all_scores if score is not None]
    return statistics.fmean(known) if len(known) == len(all_scores) else None


@runtime_checkable
class GridPlan(Protocol):
    """A rule that decides which cells of a grid are trained, and up to which step each.

    The decision depends only on the files in the grid's directory. So a killed sweep resumes
    unchanged, and several sweeps agree.
    """

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells so far, each with the step up to which it is to be trained now.

        A cell that has its score at that step waits for a later decision, or is finished. With more
        scores, a cell never leaves the plan, and its step never decreases.
        """


class WholeGrid:
    """The plan of a grid whose cells are all trained to their end."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Keep the cells in training order."""
        self._cells = cells

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells, regardless of their scores."""
        return self._cells


def decided(plan: GridPlan) -> tuple[Sequence[Cell], Scores]:
    """Return the decision of a plan, from the files in its cells' directories.

    Returns:
      All cells so far, each with the step up to which it is to be trained now; and their scores,
      which a cell lacks if they are unreadable.
    """
    scores: dict[str, Mapping[int, float]] = {}
    while new := [cell for cell in plan.cells(scores) if cell.name not in scores]:
        for cell in new:
            scores[cell.name] = {}
            with suppress(UserError):
                scores[cell.name] = cell.scores(cell.result())
    return plan.cells(scores), scores
