"""Isotonic regression: the nondecreasing function that fits some points best."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Isotonic(NamedTuple):
    """A nondecreasing function: linear between its knots, and constant before and after them."""

    x: tuple[float, ...]
    """Where the knots are, in rising order."""
    y: tuple[float, ...]
    """The values there."""

    def __call__(self, x: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The values of the function at some places."""
        return np.interp(x, self.x, self.y)


def isotonic_regression(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Isotonic:
    """The nondecreasing fit with the least sum of squared errors at the points.

    Pool adjacent violators (Ayer et al. 1955): points come in one by one, from the left, and as
    long as the last block's mean is not above that of the block before, the two become one.

    Args:
      x: places of the points, at least one; of points at the same place, the mean is fitted.
      y: their values.
    """
    places, of_point, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(of_point, weights=y) / counts
    blocks: list[tuple[float, int, int, int]] = []  # mean, weight, first place and last
    for i, (mean, count) in enumerate(zip(means.tolist(), counts.tolist(), strict=True)):
        block = (mean, count, i, i)
        while blocks and blocks[-1][0] >= block[0]:
            before = blocks.pop()
            weight = before[1] + block[1]
            mean = (before[0] * before[1] + block[0] * block[1]) / weight
            block = (mean, weight, before[2], i)
        blocks.append(block)
    knots = {float(places[i]): mean for mean, _, *ends in blocks for i in ends}
    return Isotonic(tuple(knots), tuple(knots.values()))
