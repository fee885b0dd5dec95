"""Retry after temporary storage faults, such as a full disk."""

import time
from collections.abc import Callable
from typing import TypeVar

from t2t_jax.errors import UserError, warn
from t2t_jax.system.exit_codes import may_pass

_T = TypeVar("_T")
PAUSES = 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0
"""Seconds before each retry: three minutes in all."""
_MOST_SECONDS = 200.0  # because an attempt may be slow if the store is unreachable


def with_retries(write: Callable[[], _T]) -> _T:
    """Call `write`, and retry for three minutes after temporary storage faults."""
    pauses, deadline = iter(PAUSES), time.monotonic() + _MOST_SECONDS
    while True:
        try:
            return write()
        except UserError as error:
            pause = next(pauses, None)
            if pause is None or time.monotonic() > deadline or not may_pass(error):
                raise
            warn(f"{error}; the run tries again in {pause:.3g} s")
            time.sleep(pause)
