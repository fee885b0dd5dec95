"""Iso-FLOP parabolas (Hoffmann et al. 2022, section 3.2): the best size at each of some budgets.

Cells that took equally many operations form a budget. Over log N, their losses have a parabola,
whose minimum is the best size for the budget; the best sizes have a line over log C. A parabola
approximates the loss near its minimum alone: sizes far from it, or on one side, bend the line.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from t2t_jax.errors import UserError
from t2t_jax.sweep.scaling.cells import Observations
from t2t_jax.sweep.scaling.frontier import DRAWS, Frontier, cost_line

_SAME_BUDGET = np.log(1.1)
_FEWEST_SIZES = 3  # of a parabola


class Parabola(NamedTuple):
    """The losses of one budget over log N, with draws as `frontier` describes them."""

    log_c: float
    """The logarithm of the budget: the mean of its cells'."""
    smallest: float
    """The logarithm of the least N that was tried."""
    largest: float
    """The logarithm of the largest N that was tried."""
    coefficients: Float[np.ndarray, "draws 3"]
    """The factors of 1, x and x^2, with x = log N - `middle`."""
    middle: float
    """The logarithm of N that is x = 0."""
    covariance: Float[np.ndarray, "3 3"]
    """The covariance of the coefficients for noise of variance 1."""

    @property
    def minimum(self) -> Float[np.ndarray, " draws"]:
        """Return the log N of the least loss; where a parabola has no minimum, it is infinite, on
        the side of the lower end."""
        _, slope, bend = self.coefficients.T
        with np.errstate(divide="ignore", invalid="ignore"):
            found = self.middle - slope / (2 * bend)
        ends = [self.loss(np.full(len(bend), end)) for end in (self.smallest, self.largest)]
        return np.where(bend > 0, found, np.where(ends[0] < ends[1], -np.inf, np.inf))

    @property
    def is_outside(self) -> bool:
        """Return whether the estimated minimum is outside the sizes that were tried."""
        return not self.smallest <= self.minimum[0] <= self.largest

    @property
    def least_loss(self) -> Float[np.ndarray, " draws"]:
        """Return the least loss on the parabola within the sizes that were tried."""
        return self.loss(np.clip(self.minimum, self.smallest, self.largest))

    @property
    def precision(self) -> Float[np.ndarray, " draws"]:
        """Return 1 over the variance of the minimum, for noise of variance 1, by its derivatives; 0
        where there is no minimum."""
        _, slope, bend = self.coefficients.T
        bend = np.maximum(bend, 1e-12)
        of_slope, of_bend = -1 / (2 * bend), slope / (2 * bend**2)
        _, (_, v11, v12), (_, _, v22) = self.covariance
        variance = of_slope**2 * v11 + 2 * of_slope * of_bend * v12 + of_bend**2 * v22
        return np.where(self.coefficients[:, 2] > 0, 1 / variance, 0.0)

    def loss(self, log_n: Float[np.ndarray, " draws"]) -> Float[np.ndarray, " draws"]:
        """Return the loss on the parabola of each draw at a size of its own."""
        x = log_n - self.middle
        return (self.coefficients * np.stack([np.ones_like(x), x, x**2], axis=-1)).sum(axis=-1)


class Isoflop(NamedTuple):
    """The parabolas of one family of networks, and the line through their minima."""

    parabolas: list[Parabola]
    """A parabola for each budget that has enough sizes, by budget."""
    noise: float
    """The standard deviation of a loss around its parabola, in nats."""
    frontier: Frontier
    """The best sizes by operations."""


def budgets(log_c: Float[np.ndarray, " cells"]) -> Int[np.ndarray, " cells"]:
    """Return the number of each cell's budget, from 0 for the least.

    A budget has the cells whose operations are at most 10% more than those of its first.
    """
    order = np.argsort(log_c)
    numbers = np.zeros(len(log_c), int)
    first, number = -np.inf, -1
    for cell in order:
        if log_c[cell] - first > _SAME_BUDGET:
            first, number = log_c[cell], number + 1
        numbers[cell] = number
    return numbers


def fit_isoflop(seen: Observations, *, draws: int = DRAWS, seed: int = 0) -> Isoflop:
    """Fit a parabola to each budget, and a line through the minima.

    The noise is taken to be alike in all budgets. Losses are drawn anew around the parabolas, with
    a variance that is drawn too, as few cells say little about it: the spread of minima is then
    that of Student's t.

    Args:
      seen: the cells of one family, with equally many operations in each budget.

    Raises:
      UserError: there are too few budgets, or too few sizes in them, or the losses are all equal.
    """
    numbers = budgets(seen.log_c)
    every = [numbers == number for number in range(numbers.max() + 1)]
    chosen = [own for own in every if len(np.unique(seen.log_n[own])) >= _FEWEST_SIZES]
    freedom = sum(int(own.sum()) - _FEWEST_SIZES for own in chosen)
    if len(chosen) < 2 or freedom < 1:
        raise UserError(
            f"{len(chosen)} budget(s) have cells of {_FEWEST_SIZES} sizes or more, with {freedom} "
            "cell(s) beyond those that a parabola takes; a line of best sizes needs 2 budgets, and "
            "4 sizes in one of them: train more cells, as configs/isoflop_small.py has them"
        )
    if np.ptp(seen.loss) == 0:
        raise UserError(f"all losses are {seen.loss[0]:.4f}; there is nothing to fit")
    random = np.random.default_rng(seed)
    designs = [_design(seen.log_n[own]) for own in chosen]
    fits = [
        np.linalg.lstsq(x, seen.loss[own])[0] for (x, _), own in zip(designs, chosen, strict=True)
    ]
    squares = sum(
        float(((seen.loss[own] - x @ fit) ** 2).sum())
        for (x, _), own, fit in zip(designs, chosen, fits, strict=True)
    )
    sd = np.sqrt(squares / random.chisquare(freedom, draws))
    parabolas = []
    for (x, middle), own, fit in zip(designs, chosen, fits, strict=True):
        noise = sd * random.standard_normal((len(x), draws))
        drawn = fit[:, None] + np.linalg.pinv(x) @ noise
        sizes = seen.log_n[own]
        parabolas.append(
            Parabola(
                float(seen.log_c[own].mean()),
                float(sizes.min()),
                float(sizes.max()),
                np.concatenate([fit[:, None], drawn], axis=1).T,
                middle,
                np.linalg.inv(x.T @ x),
            )
        )
    line = _line(parabolas)
    return Isoflop(parabolas, float(np.sqrt(squares / freedom)), Frontier(*line, cost_line(seen)))


def _design(log_n: Float[np.ndarray, " cells"]) -> tuple[Float[np.ndarray, "cells 3"], float]:
    middle = float(log_n.mean())
    return np.vander(log_n - middle, 3, increasing=True), middle


def _line(
    parabolas: list[Parabola],
) -> tuple[Float[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
    """Return slope and height of the line through the minima, weighted by their precision.

    Raises:
      UserError: fewer than two parabolas have a minimum.
    """
    log_c = np.array([each.log_c for each in parabolas])[:, None]
    weights = np.array([each.precision for each in parabolas])
    minima = np.where(weights > 0, [each.minimum for each in parabolas], 0.0)
    if (weights[:, 0] > 0).sum() < 2:
        raise UserError(
            "fewer than two budgets have a parabola with a minimum, so that no best size can be "
            "told from these sizes; train smaller and larger ones, or use --law parametric"
        )
    whole = weights.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = ((weights * each).sum(axis=0) / whole for each in (log_c, minima))
        a = (weights * (log_c - x) * (minima - y)).sum(axis=0)
        a /= (weights * (log_c - x) ** 2).sum(axis=0)
    return a, y - a * x
