"""Which cases of a test run by default, and which in the thorough run alone."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest


def thorough_after(count: int, cases: Iterable[Any], unpacked: bool = False) -> list[Any]:
    """Return the cases of a test, of which those after the first are for the thorough run.

    Args:
      count: how many cases run by default.
      cases: the values of one argument of the test, or tuples with the values of several; also
        as `pytest.param` returns them.
      unpacked: whether there are several arguments.
    """
    first, rest = (cases := list(cases))[:count], cases[count:]
    return [*first, *(_thorough(case, unpacked) for case in rest)]


def _thorough(case: Any, unpacked: bool) -> Any:
    marks = [pytest.mark.thorough]
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=[*marks, *case.marks], id=case.id)
    return pytest.param(*(case if unpacked else [case]), marks=marks)


needs_cuda = pytest.mark.skipif(
    not any(find_spec(f"jax_plugins.xla_cuda{number}") for number in (12, 13))
    if find_spec("jax_plugins")
    else True,
    reason="needs the extra `cuda13`",
)
"""A mark of tests that compile for NVIDIA GPUs, which need not be there."""
