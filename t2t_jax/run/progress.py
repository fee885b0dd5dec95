"""The current phase of a training, its progress, and the use of its time."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

import jax

from t2t_jax.system.program import begun

_T = TypeVar("_T")

START, COMPILATION, STEPS, DATA = "start", "compilation", "steps", "data"
EVALUATION, CHECKPOINTS, PROFILE = "evaluation", "checkpoints", "profile"
PHASES = START, COMPILATION, STEPS, DATA, EVALUATION, CHECKPOINTS, PROFILE
"""What a training spends its time on. DATA is the part of the steps in which the devices wait for a
batch, and CHECKPOINTS what the training waits for them: they are written beside the steps."""


class TrainingProgress:
    """The phase of a training, its steps, and its seconds by phase.

    The main thread is in one phase at any time. It launches a step while the devices compute the
    previous one, so it may wait for a batch at no cost as long as the devices are busy. DATA counts
    from when the main thread waits and the last launched step is done, until the batch is ready. A
    separate thread waits for each step to learn when it was done; the main thread never does.

    Attributes:
      begun: when the program started, or the training in a notebook, in seconds since 1970.
      phase: the current phase of the main thread.
      launched: the number of launched steps.
      done: the number of steps that the devices have done.
      waits: how many contexts of `waiting` the main thread is in, one within the other. A phase
        other than the steps is one.
    """

    def __init__(self) -> None:
        """Begin with the phase START and idle devices."""
        self.begun = begun() or time.time()
        self.phase, self.launched, self.done = START, 0, 0
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.waits, self._waited, self._lap_since = 0, 0.0, time.monotonic()
        self._since = time.monotonic() - max(0.0, time.time() - self.begun)
        self._asked: float | None = None  # since when the main thread waits for a batch
        self._idle_since = time.monotonic()
        self._changing = Lock()
        self._results: SimpleQueue[object] = SimpleQueue()

    def enter(self, phase: str) -> None:
        """Begin a phase, and end the previous one."""
        with self._changing:
            now = time.monotonic()
            self._seconds[self.phase] += now - self._since
            self.phase, self._since = phase, now

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Return a context that is in a phase, and afterwards in the previous phase."""
        before = self.phase
        self.enter(phase)
        try:
            with self.waiting():
                yield
        finally:
            self.enter(before)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase, whose sum is the time since the program started.

        Any thread may ask, also while the main thread is within a phase or waits for a batch.
        """
        with self._changing:
            now = time.monotonic()
            seconds = dict(self._seconds)
            seconds[self.phase] += now - self._since
            data = seconds[DATA] + self._starved(now)
        return seconds | {STEPS: max(0.0, seconds[STEPS] - data), DATA: data}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context in which the main thread may wait for devices or other processes."""
        before, outer = time.monotonic(), self.waits == 0
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1
            if outer:
                self._waited += time.monotonic() - before

    def take_lap(self) -> tuple[float, float]:
        """Return the use of the time since the last call.

        Returns:
          The seconds in which this process itself worked on its steps, without its waits and phases
          other than the steps; and the seconds of all of these.
        """
        now = time.monotonic()
        lap, waited = now - self._lap_since, self._waited
        self._lap_since, self._waited = now, 0.0
        return lap - waited, lap

    def timed(self, batches: Iterator[_T]) -> Generator[_T, None, None]:
        """Yield the batches of the steps, and count the time that the devices wait for each.

        Close the generator after the last step.
        """
        # A daemon, as a step may never end if another process of the run is lost.
        Thread(target=self._note_ends, daemon=True, name="ends of steps").start()
        self._idle_since = time.monotonic()
        try:
            while True:
                self._asked = time.monotonic()
                if (batch := next(batches, None)) is None:
                    return
                with self._changing:
                    self._seconds[DATA] += self._starved(time.monotonic())
                    self._asked = None
                yield batch
        finally:
            self._asked = None
            self._results.put(None)  # the thread ends once it has seen the end of every step

    def _starved(self, now: float) -> float:
        """Return for how long the devices have waited for the next batch."""
        asked = self._asked  # which the main thread may change now
        if asked is None or self.done < self.launched:
            return 0.0
        return max(0.0, now - max(asked, self._idle_since))

    def launch(self, result: object) -> None:
        """Record a launched step.

        Args:
          result: arrays that are ready when the step is done.
        """
        self.launched += 1
        self._results.put(result)

    def _note_ends(self) -> None:
        while (result := self._results.get()) is not None:
            with suppress(Exception):  # the loop reads the same arrays, and raises the error
                jax.block_until_ready(result)
            self._idle_since = time.monotonic()
            self.done += 1
