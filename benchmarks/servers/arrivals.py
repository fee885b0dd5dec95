"""The times and the lines of requests, drawn from a seed, the same for all systems."""

from typing import NamedTuple

import numpy as np


class Arrival(NamedTuple):
    """A request of a load."""

    at: float
    """The time of the request, in seconds after the start of the load."""
    line: int
    """The number of the line to translate."""


def poisson_arrivals(rate: float, seconds: float, num_lines: int, seed: int) -> list[Arrival]:
    """Draw the requests of a Poisson process: each comes independently of all others.

    Args:
      rate: the mean number of requests in a second.
      seconds: the time in which requests come.
      num_lines: the number of lines, each of which a request has with equal probability.
      seed: determines the times and the lines.
    """
    generator = np.random.default_rng(seed)
    arrivals: list[Arrival] = []
    at = generator.exponential(1 / rate)
    while at < seconds:
        arrivals.append(Arrival(float(at), int(generator.integers(num_lines))))
        at += generator.exponential(1 / rate)
    return arrivals
