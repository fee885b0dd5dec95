"""Filters that keep Orbax from printing errors which this package reports in one line.

Orbax prints many warnings. It raises an error, and also logs it with its threads' stacks.
Unfinished reads and writes report the error again when they end or are garbage-collected.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import LogRecord, getLogger
from typing import Any, TypeAlias

_changing = threading.Lock()
_num_users = 0
_Hook: TypeAlias = Callable[[Any], object]
_hook_before: _Hook = sys.__unraisablehook__
_own_hook: _Hook | None = None


@contextmanager
def orbax_kept_quiet() -> Iterator[None]:
    """Keep Orbax from printing within a `with` block or a decorated function.

    It changes loggers and a hook of the whole process, and restores them at the end of the last
    active block.
    """
    global _num_users
    from absl import logging

    keep_orbax_quiet()
    try:
        yield
    finally:
        with _changing:
            _num_users -= 1
            if not _num_users:
                logging.get_absl_logger().removeFilter(_is_not_by_orbax)
                getLogger("asyncio").removeFilter(_is_not_about_orbax)
                if sys.unraisablehook is _own_hook:  # else another hook wraps it
                    sys.unraisablehook = _hook_before


def keep_orbax_quiet() -> None:
    """Keep Orbax from printing from now on: for a program, never for an import."""
    global _num_users, _hook_before, _own_hook
    from absl import logging

    with _changing:
        if not _num_users:
            logging.get_absl_logger().addFilter(_is_not_by_orbax)
            getLogger("asyncio").addFilter(_is_not_about_orbax)
            _hook_before = sys.unraisablehook
            _own_hook = sys.unraisablehook = _without_orbax(_hook_before)
        _num_users += 1


def _is_not_by_orbax(record: LogRecord) -> bool:
    return "orbax" not in record.pathname


def _is_not_about_orbax(record: LogRecord) -> bool:
    # TensorStore reads and writes for Orbax, and its errors name it alone.
    return not any(name in record.getMessage() for name in ("orbax", "tensorstore"))


def _without_orbax(before: _Hook) -> _Hook:
    """Return a hook that drops Orbax's unfinished work, and passes all else to `before`.

    Each call makes a new hook. Another library's hook may wrap an earlier one; the new hook calls
    it, and so the earlier one, which must not call the new one again.
    """

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        files = [frame.filename for frame in traceback.extract_tb(unraisable.exc_traceback)]
        if str(error) != "Event loop is closed" and not any("orbax" in file for file in files):
            before(unraisable)

    return hook
