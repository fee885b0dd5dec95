"""Which cases of a test run by default, and which in the thorough run alone."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest


def thorough_after(count: int, cases: Iterable[Any], unpacked: bool = False) -> list[Any]:
    """Return the cases of a test, of which those after the first are for the thorough run.

    Args:
      count: how many cases run by default.
      cases: the values of one argument of the test, or tuples with the values of several.
      unpacked: whether there are several arguments.
    """
    first, rest = (cases := list(cases))[:count], cases[count:]
    rest = rest if unpacked else [(case,) for case in rest]
    return [*first, *(pytest.param(*case, marks=pytest.mark.thorough) for case in rest)]


needs_cuda = pytest.mark.skipif(
    not any(find_spec(f"jax_plugins.xla_cuda{number}") for number in (12, 13))
    if find_spec("jax_plugins")
    else True,
    reason="needs the extra `cuda13`",
)
"""A mark of tests that compile for NVIDIA GPUs, which need not be there."""
