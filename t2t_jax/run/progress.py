"""The current phase of a training run, its progress and its time use."""

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
"""The phases of training. DATA is the time of the steps in which the devices wait for a batch.
CHECKPOINTS is only the time that training waits, since a thread writes checkpoints."""


class PhaseTimer:
    """The phase of a training run, its step counts, and its seconds by phase.

    DATA counts only the time in which the main thread waits for a batch and all launched steps are
    done.

    Attributes:
      begun: the start of the program, or of training in a notebook, in seconds since 1970.
      phase: the current phase of the main thread.
      launched: the number of launched steps.
      done: the number of finished steps.
      waits: the nesting depth of `waiting` contexts of the main thread, in any phase.
    """

    # The main thread launches a step while the devices compute the previous step, so waiting for a
    # batch costs nothing while the devices are busy. A separate thread notes the end of each step.

    def __init__(self) -> None:
        """Start with the phase START and idle devices."""
        self.begun = begun() or time.time()
        self.phase, self.launched, self.done = START, 0, 0
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self.waits, self._waited, self._lap_since = 0, 0.0, time.monotonic()
        self._since = time.monotonic() - max(0.0, time.time() - self.begun)
        self._requested: float | None = None  # time since which the main thread waits for a batch
        self._idle_since = time.monotonic()
        self._lock = Lock()
        self._results: SimpleQueue[object] = SimpleQueue()

    def enter(self, phase: str) -> None:
        """End the current phase of training, such as compilation, and start another."""
        with self._lock:
            now = time.monotonic()
            self._seconds[self.phase] += now - self._since
            self.phase, self._since = phase, now

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Enter a phase for a context, and return to the previous phase."""
        old_phase = self.phase
        self.enter(phase)
        try:
            with self.waiting():
                yield
        finally:
            self.enter(old_phase)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase; their sum is the time since the start of the program."""
        # Any thread may call this method at any time.
        with self._lock:
            now = time.monotonic()
            seconds = dict(self._seconds)
            seconds[self.phase] += now - self._since
            data = seconds[DATA] + self._starved(now)
        return seconds | {STEPS: max(0.0, seconds[STEPS] - data), DATA: data}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark a context in which the main thread waits for devices or other processes."""
        start, is_outermost = time.monotonic(), self.waits == 0
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1
            if is_outermost:
                self._waited += time.monotonic() - start

    def take_lap(self) -> tuple[float, float]:
        """Return the times since the last call.

        Returns:
          The seconds in which the main thread worked on steps, without waits and other phases; and
          the total seconds.
        """
        now = time.monotonic()
        lap, waited = now - self._lap_since, self._waited
        self._lap_since, self._waited = now, 0.0
        return lap - waited, lap

    def timed(self, batches: Iterator[_T]) -> Generator[_T, None, None]:
        """Yield batches, and count the time that the devices wait for them.

        The caller must close the generator after the last step.
        """
        # A daemon, because a step never ends if another process of the run is lost.
        Thread(target=self._note_ends, daemon=True, name="ends of steps").start()
        self._idle_since = time.monotonic()
        try:
            while True:
                self._requested = time.monotonic()
                if (batch := next(batches, None)) is None:
                    return
                with self._lock:
                    self._seconds[DATA] += self._starved(time.monotonic())
                    self._requested = None
                yield batch
        finally:
            self._requested = None
            self._results.put(None)  # the thread stops after the end of every step

    def _starved(self, now: float) -> float:
        """Return the seconds that the devices have waited for the next batch."""
        requested = self._requested  # the main thread may change this value
        if requested is None or self.done < self.launched:
            return 0.0
        return max(0.0, now - max(requested, self._idle_since))

    def launch(self, result: object) -> None:
        """Count a training step that was launched.

        Args:
          result: arrays of the step, which are ready when it is done.
        """
        self.launched += 1
        self._results.put(result)

    def _note_ends(self) -> None:
        while (result := self._results.get()) is not None:
            # The training loop reads the same arrays and raises the error.
            with suppress(Exception):
                jax.block_until_ready(result)
            self._idle_since = time.monotonic()
            self.done += 1
