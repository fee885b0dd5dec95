"""Expect a refusal, which is an error of one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from t2t_jax.errors import UserError


@contextmanager
def refused(
    text: str = "", *, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """Expect a `UserError` of one line that has a text, or matches a regular expression."""
    with pytest.raises(UserError, match=match or re.escape(text) or None) as refusal:
        yield refusal
    assert len(str(refusal.value).splitlines()) == 1
