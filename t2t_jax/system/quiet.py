"""Silence Orbax warnings, and errors that this package reports in one line.

Orbax also logs each error with thread stacks. Unfinished reads and writes report the error again.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import LogRecord, getLogger
from typing import Any, TypeAlias

_lock = threading.Lock()
_num_users = 0
_Hook: TypeAlias = Callable[[Any], object]
_previous_hook: _Hook = sys.__unraisablehook__
_own_hook: _Hook | None = None


@contextmanager
def orbax_kept_quiet() -> Iterator[None]:
    """Silence Orbax within a `with` block or a decorated function.

    The block changes loggers and a hook of the process, which the last active block restores.
    """
    global _num_users
    from absl import logging

    keep_orbax_quiet()
    try:
        yield
    finally:
        with _lock:
            _num_users -= 1
            if not _num_users:
                logging.get_absl_logger().removeFilter(_is_not_by_orbax)
                getLogger("asyncio").removeFilter(_is_not_about_orbax)
                if sys.unraisablehook is _own_hook:  # else another hook wraps it
                    sys.unraisablehook = _previous_hook


def keep_orbax_quiet() -> None:
    """Silence Orbax permanently; only programs call this function, never an import."""
    global _num_users, _previous_hook, _own_hook
    from absl import logging

    with _lock:
        if not _num_users:
            logging.get_absl_logger().addFilter(_is_not_by_orbax)
            getLogger("asyncio").addFilter(_is_not_about_orbax)
            _previous_hook = sys.unraisablehook
            _own_hook = sys.unraisablehook = _without_orbax(_previous_hook)
        _num_users += 1


def _is_not_by_orbax(record: LogRecord) -> bool:
    return "orbax" not in record.pathname


def _is_not_about_orbax(record: LogRecord) -> bool:
    # TensorStore reads and writes for Orbax, and its errors name only TensorStore.
    return not any(name in record.getMessage() for name in ("orbax", "tensorstore"))


def _without_orbax(previous_hook: _Hook) -> _Hook:
    """Make a hook that drops errors of unfinished Orbax work; the previous hook gets other errors.

    Another library may wrap our earlier hook. Each call returns a new hook, to avoid a cycle.
    """

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        files = [frame.filename for frame in traceback.extract_tb(unraisable.exc_traceback)]
        if str(error) != "Event loop is closed" and not any("orbax" in file for file in files):
            previous_hook(unraisable)

    return hook
