"""The report of checks of a student's function: points, and hints on what is wrong."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from t2t_jax.errors import quote, reason_of


@dataclass(frozen=True)
class Report:
    """The results of all checks of a function; prints as one line for each check."""

    function: str
    """Name of the function."""
    hints: Mapping[str, str]
    """What is wrong, by the name of the check; "" if the function passed it."""

    @property
    def points(self) -> int:
        """Return the number of checks that the function passed."""
        return sum(not hint for hint in self.hints.values())

    def __repr__(self) -> str:
        """Return the points, and a line for each check."""
        lines = [f"{self.function}: {self.points} of {len(self.hints)} points"]
        lines += [f"  {name}: {hint or 'right'}" for name, hint in self.hints.items()]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the report as JSON for an autograder, with a point for each check."""
        checks = [{"name": n, "points": int(not h), "hint": h} for n, h in self.hints.items()]
        total = {"points": self.points, "max_points": len(checks)}
        return json.dumps({"function": self.function, **total, "checks": checks})


def difference(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    arguments: Sequence[Any],
    mistakes: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> str:
    """Compare a function with a reference, and return a hint, or "" if the results are equal.

    Args:
      function: returns an array.
      reference: returns the right array.
      arguments: the arguments of all functions.
      mistakes: functions with common mistakes. If the result equals one of theirs, the hint is
        its key.
    """
    expected = np.asarray(reference(*arguments))
    try:
        result = function(*arguments)
        if result is None or isinstance(result, tuple):
            return f"returns {quote(type(result).__name__)}; return one array"
        result = np.asarray(result, np.float64)
    except Exception as error:  # code of a student may raise any error
        return f"raises {reason_of(error)}"
    if result.shape != expected.shape:
        return f"the result has shape {[*result.shape]}; return {[*expected.shape]}"
    if not np.isfinite(result).all():
        return "the result has NaN or infinite values"
    for hint, candidate in {"": lambda *_: expected, **mistakes}.items():
        if np.allclose(result, candidate(*arguments), rtol=1e-3, atol=1e-4):
            return hint
    index = np.unravel_index(abs(result - expected).argmax(), expected.shape)
    return f"{[*map(int, index)]} is {result[index]:.4f}; it should be {expected[index]:.4f}"
