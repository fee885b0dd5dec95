"""Signals that end a program: the one module that receives them for all programs.

A Python signal handler raises an exception wherever the main thread is. JAX's callbacks swallow it
there, a restore mistakes it for a damaged checkpoint, and during a long XLA call no handler runs at
all. So here a signal never becomes an exception.

Within `watching`, which every program enters before it imports anything large, Python's C handler
passes the signal's number to a thread, at once, whatever the main thread does. Within a
`StopSignal`, such as the one of the training loop, the thread notes the first signal as a request
to stop. From then on SIGTERM and SIGHUP have no effect, as systemd and launchers send several of
them to one program; only a second SIGINT ends the program at once. So does any signal before a stop
outside of a `StopSignal`: the thread removes unfinished files, and ends the process by that same
signal, as a shell expects it.

A signal that was ignored when the program was started, as by `nohup`, stays ignored.

`ProcessState` restores signals, and the rest of the process, after foreign code has run.
"""

import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import TypeAlias, TypeVar

from t2t_jax.system.atomic_file import remove_unfinished
from t2t_jax.system.context import with_value

_T = TypeVar("_T")
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a program."""

_PATIENCE_SECONDS = 5.0
_SHOW_CURSOR = b"\x1b[?25h"

_watched: frozenset[int] = frozenset()  # signals that the thread receives
_stops: list["StopSignal"] = []  # those that are entered, where there is the thread
_pipe: tuple[int, ...] = ()  # its two ends, while signals are watched
_is_stopping = False  # whether a `StopSignal` has received a signal since signals are watched
_settled = threading.Event()
_SETTLE = b"\0"  # no signal has this number
_is_over: ContextVar[Callable[[], bool] | None] = ContextVar("is_over", default=None)


class _Left(BaseException):
    """The exception that a safe point raises, to abandon work after a signal."""


def safe_point() -> None:
    """Mark a point at which `StopSignal.attempt` may abandon its work.

    Keep the work between two safe points short enough for a waiting user.
    """
    is_over = _is_over.get()
    if is_over is not None and is_over():
        raise _Left


class StopSignal:
    """The first SIGTERM, SIGINT or SIGHUP within a `with` block; a second SIGINT ends the program.

    In a process that does not watch signals, such as a notebook, the block receives them itself.
    This works only on the main thread: on another thread it receives none, and each signal keeps
    its previous effect.

    Attributes:
      number: the signal's number; 0 while there has been none.
      since: when it came, by `time.monotonic`.
    """

    def __init__(self) -> None:
        """Start with no signal received; signals are received within a `with` block."""
        self.number, self.since = 0, 0.0
        self._interrupts = 0
        self._before: dict[int, _Handler] = {}

    def __enter__(self) -> "StopSignal":
        """Receive signals from now on, instead of the previous receiver."""
        if _watched:
            _stops.append(self)
        elif threading.current_thread() is threading.main_thread():
            for number in _not_ignored():
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave signals to the previous receiver."""
        if self in _stops:
            _stops.remove(self)
        self._put_back()

    def attempt(self, work: Callable[[], _T], agree: Callable[[int], int] = int) -> _T | None:
        """Do repeatable work, such as an evaluation, as long as no signal comes.

        Args:
          work: with several processes, all of them reach the same safe points.
          agree: maps the signal's number to the same answer in all processes; 0 goes on.

        Returns:
          None if a signal came before the work, or before the last of its safe points.
        """

        def is_over() -> bool:
            return agree(self.number) > 0

        with suppress(_Left), with_value(_is_over, is_over):
            return None if is_over() else work()
        return None

    def receive(self, number: int) -> bool:
        """Note a signal; return False if it is the second SIGINT, which ends the program."""
        if not self.number:
            self.number, self.since = number, time.monotonic()
        self._interrupts += number == signal.SIGINT
        return self._interrupts < 2

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self.receive(number):
            self._put_back()
            signal.raise_signal(number)

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class SignalRequest:
    """A signal that asks a program for work within a `with` block, on the main thread."""

    def __init__(self, number: int) -> None:
        """Start without a request."""
        self._number, self._is_pending = number, False
        self._before: _Handler = None

    def __enter__(self) -> "SignalRequest":
        """Receive the signal."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(self._number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the signal to its previous handler."""
        if self._before is not None:
            signal.signal(self._number, self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._is_pending = True

    def take(self) -> bool:
        """Return whether the signal has come since the last call."""
        was_pending, self._is_pending = self._is_pending, False
        return was_pending


@contextmanager
def watching() -> Iterator[None]:
    """Receive signals for the whole program, on its main thread.

    Afterwards, while Python shuts down, each of them ends the process at once, except SIGTERM and
    SIGHUP after a stop.
    """
    global _watched, _pipe, _is_stopping
    _is_stopping = False
    # `SignalRequest` may not have begun when a scheduler sends it, and it would end the process.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    reading, writing = _pipe = os.pipe()
    os.set_blocking(writing, False)
    threading.Thread(target=_listen, args=(reading,), daemon=True, name="signals").start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _watched = frozenset(_not_ignored())
    for number in _watched:
        signal.signal(number, _leave_to_thread)
    try:
        yield
    finally:
        for number in _watched:
            is_ignored = _is_stopping and number != signal.SIGINT
            signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
        _watched, _pipe = frozenset(), ()
        signal.set_wakeup_fd(before)
        os.close(writing)  # which ends the thread


def settle() -> None:
    """Watch signals as before, and wait until all pending ones have taken effect.

    Call it on the main thread after foreign code, which may have redirected signals.
    """
    if _pipe and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
        _settled.clear()
        with suppress(OSError):
            os.write(_pipe[1], _SETTLE)
            _settled.wait(_PATIENCE_SECONDS)


def _not_ignored() -> list[int]:
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """Do nothing on the main thread about a signal: the listening thread has received it."""


def _listen(wakeups: int) -> None:
    """Receive the numbers of signals, each a byte, until the other end is closed."""
    global _is_stopping
    with open(wakeups, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number == _SETTLE:
                _settled.set()
                continue
            if number[0] not in _watched:  # a handler of somebody else's
                continue
            innermost = _stops[-1:]  # a copy, as the main thread may leave the block now
            if innermost and innermost[0].receive(number[0]):
                _is_stopping = True
            elif innermost or not _is_stopping or number[0] == signal.SIGINT:
                _end(number[0])


def _end(number: int) -> None:
    """End the process by this signal, as a shell expects; it may be called from any thread."""
    remove_unfinished()
    with suppress(OSError):
        if os.isatty(1):
            os.write(1, _SHOW_CURSOR)  # a progress bar hides it
    # Python changes handlers on the main thread alone, which may be busy.
    ctypes.CDLL(None).signal(ctypes.c_int(number), ctypes.c_void_p(signal.SIG_DFL))
    signal.raise_signal(number)
    os._exit(128 + number)  # where this thread holds it back


def _forget_in_child() -> None:
    """Stop watching in a forked process, which has no thread but shares its parent's pipe."""
    global _watched, _pipe
    if _watched:
        signal.set_wakeup_fd(-1)
        for number in _watched:
            signal.signal(number, signal.SIG_DFL)
        _watched, _pipe = frozenset(), ()


os.register_at_fork(after_in_child=_forget_in_child)


class ProcessState:
    """The standard streams, the working directory, the signal handlers, the warning filters."""

    def __init__(self) -> None:
        """Save the current state."""
        self._streams = {name: getattr(sys, name) for name in ("stdin", "stdout", "stderr")}
        self._filters = warnings.filters[:]
        self._directory = ""
        with suppress(OSError):  # somebody may have removed it
            self._directory = os.getcwd()
        self._handlers = {number: signal.getsignal(number) for number in ENDING}

    def put_back(self) -> None:
        """Restore the saved state, and let pending signals take effect."""
        # New filters that turn warnings into errors go; other new ones stay.
        filters = warnings.filters
        assert isinstance(filters, list)
        kept = [one for one in filters if one[0] != "error" or one in self._filters]
        warnings.resetwarnings()  # which tells Python that they change
        filters[:] = kept
        with suppress(OSError):
            os.chdir(self._directory)
        for name, stream in self._streams.items():
            setattr(sys, name, stream)
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                if handler is not None:  # None: of somebody who is not Python
                    signal.signal(number, handler)
        settle()
