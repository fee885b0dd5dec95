"""Keeps Orbax from printing what this package says itself, in one line.

Orbax warns of everything it is asked for. It raises what goes wrong, and logs it as well, with the
frames of its threads. The reads and writes that it leaves behind then complain once more, whenever
they end or are collected as garbage.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import LogRecord, getLogger
from typing import Any

_changing = threading.Lock()
_num_users = 0
_hook_before: Callable[[Any], object] = sys.__unraisablehook__


@contextmanager
def orbax_kept_quiet() -> Iterator[None]:
    """Print nothing of Orbax's own within a `with` block, or a function that this decorates.

    The loggers and the hook that this concerns are those of the whole process; they are put back at
    the end of the last such block, where several are entered at once.
    """
    keep_orbax_quiet()
    try:
        yield
    finally:
        _let_orbax_speak()


def keep_orbax_quiet() -> None:
    """Print nothing of Orbax's own from now on: for a program, never for an import."""
    global _num_users, _hook_before
    from absl import logging

    with _changing:
        if not _num_users:
            logging.get_absl_logger().addFilter(_is_not_by_orbax)
            getLogger("asyncio").addFilter(_is_not_about_orbax)
            _hook_before, sys.unraisablehook = sys.unraisablehook, _complain_unless_left_behind
        _num_users += 1


def _let_orbax_speak() -> None:
    global _num_users
    from absl import logging

    with _changing:
        _num_users -= 1
        if not _num_users:
            logging.get_absl_logger().removeFilter(_is_not_by_orbax)
            getLogger("asyncio").removeFilter(_is_not_about_orbax)
            if sys.unraisablehook is _complain_unless_left_behind:  # else another one wraps it
                sys.unraisablehook = _hook_before


def _is_not_by_orbax(record: LogRecord) -> bool:
    return "orbax" not in record.pathname


def _is_not_about_orbax(record: LogRecord) -> bool:
    return "orbax" not in record.getMessage()


def _complain_unless_left_behind(unraisable: Any) -> None:
    error = unraisable.exc_value
    files = [frame.filename for frame in traceback.extract_tb(unraisable.exc_traceback)]
    if str(error) != "Event loop is closed" and not any("orbax" in file for file in files):
        _hook_before(unraisable)
