"""Scores of a task that no release has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A single figure."""

    best: float
