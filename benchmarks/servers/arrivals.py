"""When requests come, and what they ask for: drawn from a seed, the same for all systems."""

from typing import NamedTuple

import numpy as np


class Arrival(NamedTuple):
    """A request of a load."""

    at: float
    """When it comes, in seconds after the start of the load."""
    line: int
    """The number of the line that it has translated."""


def poisson_arrivals(rate: float, seconds: float, num_lines: int, seed: int) -> list[Arrival]:
    """The requests of a Poisson process: each comes independently of all others.

    Args:
      rate: how many come in a second, on average.
      seconds: how long requests come.
      num_lines: how many lines there are; each request has one of them, any with equal
        probability.
      seed: determines the times and the lines.
    """
    generator = np.random.default_rng(seed)
    arrivals: list[Arrival] = []
    at = generator.exponential(1 / rate)
    while at < seconds:
        arrivals.append(Arrival(float(at), int(generator.integers(num_lines))))
        at += generator.exponential(1 / rate)
    return arrivals
