"""Save the state of the whole process, and restore it after foreign code has run."""

import contextlib
import fcntl
import os
import signal
import sys
import threading
import warnings
from typing import Any

from t2t_jax.system import signals

_STREAMS = ("stdin", "stdout", "stderr")
_OUT_OF_REACH = 512  # beyond what is closed by the habit of daemons, `os.closerange(3, 256)`


class ProcessState:
    """The standard streams, the working directory, the signal handlers, the warning filters."""

    def __init__(self) -> None:
        """Save the current state."""
        self._streams = {name: getattr(sys, name) for name in _STREAMS}
        self._filters = warnings.filters[:]
        self._directory: int | None = None
        with contextlib.suppress(OSError):
            self._directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._copies: dict[int, int] = {}
        for number in (0, 1, 2, *signals.descriptors()):
            with contextlib.suppress(OSError, ValueError):
                self._copies[number] = _copied(number)
        self._handlers = {number: signal.getsignal(number) for number in signals.ENDING}

    def put_back(self) -> None:
        """Restore the saved state, and let pending signals take effect."""
        # New filters that turn warnings into errors go; other new ones stay.
        filters: Any = warnings.filters
        kept = [one for one in filters if one[0] != "error" or one in self._filters]
        warnings.resetwarnings()  # which tells Python that they change
        filters[:] = kept
        if self._directory is not None:
            with contextlib.suppress(OSError):
                os.fchdir(self._directory)
                os.close(self._directory)
        for number, copy in self._copies.items():
            with contextlib.suppress(OSError):  # the copy was closed as well
                if not _is_same(number, copy):
                    os.dup2(copy, number, inheritable=number <= 2)
                os.close(copy)
        for number, (name, stream) in enumerate(self._streams.items()):
            setattr(sys, name, _reopened(stream, number))
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                if handler is not None:  # None: of somebody who is not Python
                    signal.signal(number, handler)
        signals.settle()


def _copied(number: int) -> int:
    """Duplicate a file descriptor, with a number as large as the system allows."""
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_REACH)
    except OSError:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)


def _is_same(number: int, copy: int) -> bool:
    original = os.fstat(copy)
    try:
        return os.path.samestat(os.fstat(number), original)
    except OSError:  # it is closed
        return False


def _reopened(stream: Any, number: int) -> Any:
    if stream is None or not getattr(stream, "closed", False):
        return stream
    with contextlib.suppress(OSError):
        mode = "w" if number else "r"
        errors = "backslashreplace" if number else "strict"
        return os.fdopen(number, mode, encoding="utf-8", errors=errors, closefd=False)
    return stream
