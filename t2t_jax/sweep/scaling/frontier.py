"""What laws of every form say: the best N and D for an amount of operations, with intervals.

A figure has draws, an array whose first entry is the estimate, and whose other entries are the
estimates from data drawn anew (bootstrap). Their spread is the interval of the figure.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from t2t_jax.sweep.scaling.cells import Observations

DRAWS = 1000
"""The number of times that data are drawn anew."""
Draws = Float[np.ndarray, " draws"]
"""An estimate, and behind it those from data drawn anew."""


class CostLine(NamedTuple):
    """The operations of a training as a function of N and D: C = k N^gamma D.

    With k = 6 and gamma = 1 it is the rule of Hoffmann et al. 2022. For the cells of a grid k and
    gamma are fitted to the operations that the cost model counts.
    """

    log_k: float
    """The logarithm of k."""
    gamma: float
    """The exponent of N."""
    largest_error: float
    """The largest deviation of a cell's operations, as a share."""

    def log_d(self, log_n: Draws, log_c: float) -> Draws:
        """Return the logarithm of the tokens with which a model of some size takes C operations."""
        return log_c - self.log_k - self.gamma * log_n


class Frontier(NamedTuple):
    """The best sizes by operations: log N = log_n0 + a log C."""

    a: Draws
    """The exponent of C in the best N."""
    log_n0: Draws
    """The logarithm of the best N at C = 1."""
    cost: CostLine
    """The rule by which D follows from N and C."""

    @property
    def b(self) -> Draws:
        """Return the exponent of C in the best D."""
        return 1 - self.cost.gamma * self.a

    def log_n(self, log_c: float) -> Draws:
        """Return the logarithm of the best N for C operations."""
        return self.log_n0 + self.a * log_c


def cost_line(seen: Observations) -> CostLine:
    """Return the operations of the cells of one family as a function of N and D."""
    log_ratio = seen.log_c - seen.log_d
    middle = seen.log_n.mean()
    spread = seen.log_n - middle
    gamma = float((spread @ log_ratio) / (spread @ spread))
    log_k = float(log_ratio.mean() - gamma * middle)
    errors = np.expm1(np.abs(log_ratio - log_k - gamma * seen.log_n))
    return CostLine(log_k, gamma, float(errors.max()))


def interval(draws: Draws) -> tuple[float, float]:
    """Return the interval of a figure, which has 95% of the estimates from data drawn anew.

    An estimate that is not a number counts for none; one that is infinite may be an end.
    """
    drawn = draws[1:][~np.isnan(draws[1:])]
    if not len(drawn):
        return -np.inf, np.inf
    low, high = np.quantile(drawn, (0.025, 0.975), method="nearest")
    return float(low), float(high)
