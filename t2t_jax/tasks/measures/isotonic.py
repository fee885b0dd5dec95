"""Isotonic regression, which finds the nondecreasing function that fits some points best."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Isotonic(NamedTuple):
    """A nondecreasing function: linear between its knots, and constant before and after them."""

    x: tuple[float, ...]
    """The places of the knots, in rising order."""
    y: tuple[float, ...]
    """The values of the function at the knots."""

    def __call__(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the values of the function at some places."""
        return np.interp(x, self.x, self.y)


def isotonic_regression(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Isotonic:
    """Fit the nondecreasing function with the least sum of squared errors at the points.

    Args:
      x: places of at least one point; points at the same place count with their mean.
      y: the values of the points.
    """
    from scipy import optimize  # slow to import

    places, of_point, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(of_point, weights=y) / counts
    fit = optimize.isotonic_regression(means, weights=counts)
    ends = np.unique([fit.blocks[:-1], fit.blocks[1:] - 1])
    return Isotonic(tuple(places[ends].tolist()), tuple(fit.x[ends].tolist()))
