"""Set context variables within a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def with_value(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Set a context variable within a block, and restore its previous value afterwards."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
