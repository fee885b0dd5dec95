"""Uploads of a run to a bucket: each file is complete locally before a thread uploads it.

The store may be unreachable for a while. The run continues, as its files are complete and wait on
this machine. The thread uploads everything in the order of writing: a state, then the best
parameters, then the record in the log that says that both are there. So the store is always a
consistent earlier version of the run.

    STATE/buckets/s3/BUCKET/RUN/waiting/log.jsonl              the log, for the store
    STATE/buckets/s3/BUCKET/RUN/waiting/0-of-2/checkpoints/7   a part of process 0 of two

STATE is the user's state directory (`system.folders`). A killed run finds its pending uploads
there. They are uploaded only if the log in the store is the beginning of the local one, so that
they do not bring back files to a run that was deleted, or that has continued elsewhere.
"""

import functools
import io
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from t2t_jax.errors import UserError, warn
from t2t_jax.system.bucket import BucketPath, on_this_machine
from t2t_jax.system.signals import StopSignal

_PATIENCE_SECONDS = 600.0  # at the end of a run
_PATIENCE_SECONDS_STOPPED = 10.0  # for two more attempts: who sends a signal waits half a minute
_RETRY_SECONDS = 5.0
_POLL_SECONDS = 0.5
_LOG = "log.jsonl"

Job: TypeAlias = Callable[[], bool | None]
"""A function that sends something, and returns whether that is done; else it is called again. It
returns None where nothing is to be sent any more."""


class UnsentError(UserError):
    """The end of a run is complete on this machine, but not in the store."""


class Outbox:
    """The queue of a run's uploads to a store, which one thread executes in order."""

    def __init__(self, workdir: BucketPath) -> None:
        """Make an empty outbox for a run."""
        self._workdir = workdir
        self._stop = StopSignal()
        self.place = on_this_machine(workdir) / "waiting"
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_working = False
        self._gives_up = threading.Event()  # until the next run begins
        self._failure: Exception | None = None  # of the last request
        self._away_since = 0.0

    def begin(self, stop: StopSignal) -> None:
        """Begin a run; after the signal `stop`, `wait` waits only briefly.

        This first waits for a request of an earlier run that had given up on it.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_working)
            self._stop = stop
            self._gives_up.clear()

    def put(self, job: Job, instead_of: Job | None = None) -> None:
        """Append a job; it may replace the last one if that has not begun.

        Once `wait` has given up, nothing more of the run is uploaded: the record of its error would
        reach the store without the checkpoints before it.
        """
        with self._changed:
            if self._gives_up.is_set():
                return
            if instead_of is not None and self._jobs and self._jobs[-1] is instead_of:
                self._jobs.pop()
            self._jobs.append(job)
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, daemon=True, name="outbox").start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._is_working = False
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            self._do(job)

    def _do(self, job: Job) -> None:
        done: bool | None = False
        while done is False and not self._gives_up.is_set():
            try:
                done = job()
                pause = _POLL_SECONDS
            except Exception as error:  # of many kinds, from the libraries of the stores
                if self._failure is None:
                    self._away_since = time.monotonic()
                    warn(
                        f"{self._workdir} cannot be written to ({error}); the run goes on, and "
                        f"what it writes waits in {self.place} until the store is back"
                    )
                self._failure, pause = error, _RETRY_SECONDS
            if done is False:
                self._gives_up.wait(pause)
        if done and self._failure is not None:
            self._failure = None
            warn(f"{self._workdir} is back; what has waited is sent")

    def wait(self) -> None:
        """Wait until everything is uploaded; give up once the store is unreachable for ten minutes.

        After a signal to stop, give up after ten seconds.

        Raises:
          UnsentError: something could not be uploaded; it stays on this machine.
        """
        begun = time.monotonic()
        with self._changed:
            while not self._changed.wait_for(lambda: not self._is_working, _POLL_SECONDS):
                since = max(begun, self._away_since)
                failure = self._failure
                patience = _PATIENCE_SECONDS_STOPPED if self._stop.number else _PATIENCE_SECONDS
                if failure is not None and time.monotonic() > since + patience:
                    self._gives_up.set()
                    self._jobs.clear()
                    self._changed.wait_for(lambda: not self._is_working, _RETRY_SECONDS)
                    self._failure = None
                    raise UnsentError(
                        f"{self._workdir} lacks the end of the run ({failure}), which is "
                        f"complete in {self.place}: once the store is back, start the same command "
                        "on this machine, which sends it"
                    ) from failure

    def open_log(self) -> io.TextIOWrapper:
        """Open the log of the run in the store for appending, a line at a time."""
        log = _Log(self, self._workdir / _LOG, self.place / _LOG)
        return io.TextIOWrapper(io.BufferedWriter(log), encoding="utf-8", line_buffering=True)

    def is_of_this_run(self) -> bool:
        """Return whether the pending files continue the log in the store."""
        try:
            return (self.place / _LOG).read_bytes().startswith(self._stored_log())
        except FileNotFoundError:
            return False

    def _stored_log(self) -> bytes:
        return (self._workdir / _LOG).read_bytes()

    def send_log(self) -> None:
        """Upload the pending log, if it is longer than the stored one."""
        waiting = (self.place / _LOG).read_bytes()
        if waiting != self._stored_log():
            (self._workdir / _LOG).write_bytes(waiting)

    def clear(self, process: str | None = None) -> None:
        """Remove the pending files of a process, or all of them."""
        shutil.rmtree(self.place / process if process else self.place, ignore_errors=True)


def outbox_of(workdir: BucketPath) -> Outbox:
    """Return the outbox of a run in this process, always the same object."""
    return _outbox(workdir, os.getpid())


def begin_outbox(stop: StopSignal, workdir: Path) -> None:
    """Begin the outbox of a run, if it is in a bucket; see `Outbox.begin`."""
    if isinstance(workdir, BucketPath):
        outbox_of(workdir).begin(stop)


@functools.cache
def _outbox(workdir: BucketPath, process: int) -> Outbox:
    del process  # a fork has none of the threads
    return Outbox(workdir)


def open_log(path: Path) -> io.TextIOWrapper:
    """Open the log of a run for appending; in a bucket, the run's outbox uploads its lines."""
    if isinstance(path, BucketPath):
        return outbox_of(path.parent).open_log()
    return path.open("a", encoding="utf-8", buffering=1)


class _Log(io.RawIOBase):
    """A log that grows on this machine, and is uploaded whole after all earlier jobs."""

    def __init__(self, outbox: Outbox, there: BucketPath, here: Path) -> None:
        self._outbox, self._there = outbox, there
        self._content = there.read_bytes()
        self._last: Job | None = None
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(self._content)
        self._file = here.open("ab", buffering=0)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._file.write(data)
        self._content += bytes(data)
        job = partial(self._send, self._content)
        self._outbox.put(job, instead_of=self._last)
        self._last = job
        return len(data)

    def _send(self, content: bytes) -> bool:
        self._there.write_bytes(content)
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
