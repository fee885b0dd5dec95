"""Detect processes of a run that fail or fall silent, and end the other processes.

Threads of each process exchange heartbeats and failures through the message board. JAX's own
heartbeat names no host, so its timeout is longer.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TypeVar

import jax

from t2t_jax.errors import reason_of
from t2t_jax.parallel.message_board import leave, texts_under
from t2t_jax.system.atomic_file import remove_unfinished
from t2t_jax.system.exit_codes import FINAL, HUNG, exit_code_of
from t2t_jax.system.host import host_name
from t2t_jax.system.program import at_failure

_T = TypeVar("_T")
_TICK = 0.5
_GRACE = 1.5  # seconds for a process to end by an error that it shares with another process
_SECONDS_TO_LEARN = 2 * _TICK + _GRACE + 1.0  # until the failure of another process is known
_HOLD = 4.0  # seconds that process 0 keeps serving the board before it ends
SECONDS_TO_WRITE = 30.0
"""Seconds that an ending program waits for a disk."""
_DONE = "done"


class Liveness:
    """Threads that watch the other processes.

    Attributes:
      on_end: called before the program ends, with the reason, the exit code and the indices of
        silent processes.
    """

    def __init__(self, seconds: float | None) -> None:
        """Start the threads.

        Args:
          seconds: the timeout after which a silent process counts as lost; None waits forever.
        """
        self.on_end: Callable[[str, int, Sequence[int]], None] = lambda *_: None
        self._index, self._seconds = jax.process_index(), seconds
        self._name = f"process {self._index} on {host_name()}"
        self._beats: dict[int, str] = {}
        self._failures: dict[int, str] = {}
        self._has_failed = self._ends = False
        self._over = threading.Event()
        self._writer = threading.Thread(target=self._exchange, daemon=True, name="beats")
        self._writer.start()
        threading.Thread(target=self._judge, daemon=True, name="liveness").start()

    def close(self) -> None:
        """Report that this process is done, before JAX disconnects."""
        self._over.set()
        self._writer.join(_HOLD)

    def report(self, error: BaseException) -> str:
        """Report once that an error ends this process, and return the name of the process.

        This call blocks forever if the failure of another process is ending this one.
        """
        if self._ends:
            threading.Event().wait()
        if not self._has_failed:
            self._has_failed = True
            text = f"{self._name} ended: {reason_of(error)}"
            self._send_failure(exit_code_of(error) or 1, text)
            _serve_board()
        return f"{self._name}: "

    def wait(self) -> None:
        """Wait until this process would know of the failure of another one.

        If such a failure is ending this process, never return.
        """
        time.sleep(_SECONDS_TO_LEARN)
        if self._ends:
            threading.Event().wait()

    def _send_failure(self, code: int, reason: str) -> None:
        text = json.dumps([code, reason])
        within(_HOLD, lambda: leave(f"failure/{self._index}", text))

    def _exchange(self) -> None:
        """Exchange heartbeats and failures on the message board until `close`.

        This blocks while process 0, which serves the board, is suspended.
        """
        key, count = f"beat/{self._index}", 0
        pause = max(1.0, (self._seconds or 600.0) / 10)
        latest = -pause
        while not self._over.wait(_TICK):
            self._failures = texts_under("failure") or self._failures
            if time.monotonic() - latest >= pause:
                latest, count = time.monotonic(), count + 1
                leave(key, f"{host_name()} {count}")
                self._beats = texts_under("beat") or self._beats
        leave(key, _DONE)

    def _judge(self) -> None:
        seconds_since_failure = 0.0
        beats: dict[int, str] = {}
        # Seconds of silence by process.
        ages = dict.fromkeys({*range(jax.process_count())} - {self._index}, 0.0)
        for interval in ticks(self._over, _TICK):
            for n in ages:
                beat = self._beats.get(n)
                ages[n] = ages[n] + interval if beat == beats.get(n) and beat != _DONE else 0.0
            beats = self._beats
            if self._has_failed:
                continue
            if failures := [json.loads(text) for text in self._failures.values()]:
                seconds_since_failure += interval
                if seconds_since_failure > _GRACE:
                    # HUNG only means that a process misses another one, so prefer other codes.
                    code, reason = min(failures, key=lambda failure: failure[0] == HUNG)
                    self._end(code if code in FINAL else HUNG, reason)
            elif self._seconds and max(ages.values()) > self._seconds:
                self._end_without([n for n, age in ages.items() if age > self._seconds])

    def _end_without(self, silent: Sequence[int]) -> None:
        if 0 in silent:  # all heartbeats go through process 0, so only it is known to be silent
            silent = [0]
        name = self._beats.get(silent[0], "a host without a beat").partition(" ")[0]
        reason = f"process {silent[0]} on {name} has been silent for {self._seconds:.3g} s"
        self._send_failure(HUNG, reason)
        self._end(HUNG, reason, silent)

    def _end(self, code: int, reason: str, silent: Sequence[int] = ()) -> None:
        self._ends = True
        advice = "" if code in FINAL else "; the same command resumes from the last checkpoint"
        # After a suspension, a process may read the failure message that names itself.
        name = "" if reason.startswith(self._name) else f"{self._name}: "
        end_program(code, f"{name}{reason}{advice}", lambda: self.on_end(reason, code, silent))


_liveness: Liveness | None = None


def liveness() -> Liveness | None:
    """Return the `Liveness` of this process; None in a single-process run."""
    return _liveness


def watch_processes(seconds: float | None) -> None:
    """Start to watch the other processes, and name this process in its errors.

    Args:
      seconds: the timeout after which a silent process counts as lost; None waits forever.
    """
    global _liveness
    _liveness = watcher = Liveness(seconds)
    atexit.register(watcher.close)
    at_failure(watcher.report)

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print a traceback and exit at once, as JAX would wait for other processes."""
        name = watcher.report(error)
        sys.__excepthook__(kind, error, trace)
        print(f"error: {name}the traceback above ends it", file=sys.stderr, flush=True)
        remove_unfinished()
        os._exit(1)

    sys.excepthook = end


def ticks(over: threading.Event, seconds: float) -> Iterator[float]:
    """Yield the seconds since the last tick until `over` is set; suspended time is excluded."""
    previous = time.monotonic()
    while not over.wait(seconds):
        now = time.monotonic()
        yield min(now - previous, 2 * seconds)
        previous = now


def end_program(code: int, message: str, *records: Callable[[], None]) -> None:
    """Write records, each within `SECONDS_TO_WRITE`; then exit with the code, from any thread."""
    for record in records:
        within(SECONDS_TO_WRITE, record)
    print(f"error: {message}", file=sys.stderr, flush=True)
    _serve_board()
    remove_unfinished()
    os._exit(code)


def _serve_board() -> None:
    """Keep process 0 alive for a moment, so that others can read the message board."""
    if jax.process_index() == 0 and jax.process_count() > 1:
        time.sleep(_HOLD)


def within(seconds: float, work: Callable[[], _T]) -> Future[_T]:
    """Run `work` in a thread, and wait for it at most some seconds.

    Returns:
      A future with the result or the error of the work, or an unfinished future after a timeout.
    """
    result: Future[_T] = Future()

    def attempt() -> None:
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    thread = threading.Thread(target=attempt, daemon=True, name="work with a deadline")
    thread.start()
    thread.join(seconds)
    return result
