"""Receive the signals that end a program: SIGINT, SIGTERM and SIGHUP.

This module never raises an exception for a signal, as Python handlers do by default: JAX callbacks
would swallow the exception, and a restore would mistake it for a damaged checkpoint.

Every program enters `watching` early. From then on, Python's C handler passes signal numbers to a
thread, even during a long XLA call. Inside a `StopSignal`, as in the training loop, the thread
records the first signal as a request to stop. Later SIGTERM and SIGHUP have no effect, because
systemd and launchers send them repeatedly. A second SIGINT, or any signal outside of a
`StopSignal`, ends the program at once: the thread removes unfinished files, and ends the process by
the signal.

A signal that the parent process ignored, as `nohup` does, stays ignored.
"""

import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import TypeAlias, TypeVar

from t2t_jax.system.atomic_file import remove_unfinished
from t2t_jax.system.context import with_value

_T = TypeVar("_T")
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program."""

_PATIENCE_SECONDS = 5.0
_SHOW_CURSOR = b"\x1b[?25h"

_watched: frozenset[int] = frozenset()  # signals that the thread receives
_stops: list["StopSignal"] = []  # the active ones, if the thread runs
_pipe: tuple[int, ...] = ()  # the read and write descriptors, while signals are watched
_is_stopping = False  # whether a `StopSignal` has received a signal
_settled = threading.Event()
_SETTLE = b"\0"  # no signal has this number
_is_over: ContextVar[Callable[[], bool] | None] = ContextVar("is_over", default=None)


class _Abandoned(BaseException):
    """Raised by `safe_point` to abandon work after a signal."""


def safe_point() -> None:
    """Mark a point where `StopSignal.attempt` may abandon its work; place these points often."""
    is_over = _is_over.get()
    if is_over is not None and is_over():
        raise _Abandoned


class StopSignal:
    """Record the first SIGTERM, SIGINT or SIGHUP in a `with` block.

    In a process without `watching`, such as a notebook, the block installs signal handlers. It has
    no effect on threads other than the main thread, where Python allows no handlers.

    Attributes:
      number: the number of the signal; 0 before a signal.
      since: the time of the signal, by `time.monotonic`.
    """

    def __init__(self) -> None:
        """Create an object that has received no signal."""
        self.number, self.since = 0, 0.0
        self._interrupts = 0
        self._previous: dict[int, _Handler] = {}

    def __enter__(self) -> "StopSignal":
        """Start to receive signals instead of an outer `StopSignal` or handler."""
        if _watched:
            _stops.append(self)
        else:
            self._previous = _install(dict.fromkeys(_handled_signals(), self._receive))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop receiving signals, and restore the previous handlers."""
        if self in _stops:
            _stops.remove(self)
        _install(self._previous)

    def attempt(self, work: Callable[[], _T], agree: Callable[[int], int] = int) -> _T | None:
        """Do repeatable work, such as an evaluation; abandon it after a signal.

        Args:
          work: a function that calls `safe_point`, equally often in all processes.
          agree: maps the signal number to a value that all processes share; 0 continues.

        Returns:
          The result of the work, or None if it was abandoned.
        """

        def is_over() -> bool:
            return agree(self.number) > 0

        with suppress(_Abandoned), with_value(_is_over, is_over):
            return None if is_over() else work()
        return None

    def receive(self, number: int) -> bool:
        """Record a signal; return False for the second SIGINT, which ends the program."""
        if not self.number:
            self.number, self.since = number, time.monotonic()
        self._interrupts += number == signal.SIGINT
        return self._interrupts < 2

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self.receive(number):
            _install(self._previous)
            signal.raise_signal(number)


class SignalRequest:
    """Record a signal that requests work, such as SIGUSR1, in a `with` block on the main thread."""

    def __init__(self, number: int) -> None:
        """Prepare to record the signal `number`; no request is pending at first."""
        self._number, self._is_pending = number, False
        self._previous: dict[int, _Handler] = {}

    def __enter__(self) -> "SignalRequest":
        """Install the signal handler."""
        self._previous = _install({self._number: self._receive})
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous signal handler."""
        _install(self._previous)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._is_pending = True

    def take(self) -> bool:
        """Return whether the signal arrived since the last call."""
        was_pending, self._is_pending = self._is_pending, False
        return was_pending


@contextmanager
def watching() -> Iterator[None]:
    """Handle the signals of the program in a `with` block on the main thread.

    After the block, signals end the process at once. If one stopped the program in the block, only
    SIGINT does.
    """
    global _watched, _pipe, _is_stopping
    _is_stopping = False
    # By default, SIGUSR1 would end the process if it arrives before a `SignalRequest` starts.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    read_end, write_end = _pipe = os.pipe()
    os.set_blocking(write_end, False)
    threading.Thread(target=_listen, args=(read_end,), daemon=True, name="signals").start()
    previous_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    _watched = frozenset(_handled_signals())
    _install(dict.fromkeys(_watched, _leave_to_thread))
    try:
        yield
    finally:
        for number in _watched:
            is_ignored = _is_stopping and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        _watched, _pipe = frozenset(), ()
        signal.set_wakeup_fd(previous_fd)
        os.close(write_end)  # ends the thread


def settle() -> None:
    """Resume watching signals, and wait until the thread has processed all pending signals.

    Call this on the main thread after foreign code, which may have redirected signals.
    """
    if _pipe and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
        _settled.clear()
        with suppress(OSError):
            os.write(_pipe[1], _SETTLE)
            _settled.wait(_PATIENCE_SECONDS)


def _install(handlers: Mapping[int, _Handler]) -> dict[int, _Handler]:
    """Set signal handlers, and return the previous ones; {} outside of the main thread.

    Skip None: Python did not install that handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {n: signal.signal(n, handler) for n, handler in handlers.items() if handler is not None}


def _handled_signals() -> list[int]:
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """Ignore a signal on the main thread, because the listening thread receives it."""


def _listen(descriptor: int) -> None:
    """Read signal numbers from a pipe, one per byte, until the pipe is closed."""
    global _is_stopping
    with open(descriptor, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            if number == _SETTLE:
                _settled.set()
                continue
            if number[0] not in _watched:  # other code installed a handler
                continue
            innermost_stops = _stops[-1:]  # a copy, because the main thread may exit the block now
            if innermost_stops and innermost_stops[0].receive(number[0]):
                _is_stopping = True
            elif innermost_stops or not _is_stopping or number[0] == signal.SIGINT:
                _end(number[0])


def _end(number: int) -> None:
    """End the process by a signal, as shells expect, from any thread."""
    remove_unfinished()
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, _SHOW_CURSOR)  # a progress bar hides it
    # Python sets handlers only on the main thread, which may be busy, so call the C library.
    ctypes.CDLL(None).signal(ctypes.c_int(number), ctypes.c_void_p(signal.SIG_DFL))
    signal.raise_signal(number)
    os._exit(128 + number)  # if this thread blocks the signal


def _forget_in_child() -> None:
    """Reset signal handlers in a forked process, because it lacks the thread that listens."""
    global _watched, _pipe
    if _watched:
        signal.set_wakeup_fd(-1)
        for number in _watched:
            signal.signal(number, signal.SIG_DFL)
        _watched, _pipe = frozenset(), ()


os.register_at_fork(after_in_child=_forget_in_child)


class ProcessState:
    """Save and restore standard streams, working directory, signal handlers and warning filters."""

    def __init__(self) -> None:
        """Save the process's current streams, directory, handlers and filters."""
        self._streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self._filters = warnings.filters[:]
        self._directory = ""
        with suppress(OSError):  # the directory may have been removed
            self._directory = os.getcwd()
        self._handlers: dict[int, _Handler] = {n: signal.getsignal(n) for n in ENDING}

    def restore(self) -> None:
        """Restore what `__init__` saved, and wait until pending signals take effect.

        New warning filters stay, except "error".
        """
        # Remove new filters that turn warnings into errors; keep other new filters.
        filters = warnings.filters
        assert isinstance(filters, list)
        kept_filters = [entry for entry in filters if entry[0] != "error" or entry in self._filters]
        warnings.resetwarnings()  # invalidates the cache of filters
        filters[:] = kept_filters
        with suppress(OSError):
            os.chdir(self._directory)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)
        _install(self._handlers)
        settle()
