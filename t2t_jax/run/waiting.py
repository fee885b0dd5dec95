"""The time in which the devices have nothing to do because the next batch is not ready."""

import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import jax

_T = TypeVar("_T")


class DataWait:
    """The time in which the training loop waited for a batch while the devices were idle.

    The loop is ahead of the devices: it launches a step while they compute the one before. So it
    may wait for a batch at no cost as long as the devices are busy. The counted time begins when
    the loop waits and the last launched step is done, and ends when the batch is ready. A thread
    waits for each step to learn when it was done; the loop never does.
    """

    def __init__(self) -> None:
        """Begin with idle devices and nothing counted."""
        self._seconds = 0.0
        self._launched = 0
        self._done = (0, time.monotonic())  # how many steps, and when the last of them was
        self._results: SimpleQueue[Any] = SimpleQueue()
        # A daemon, as a step may never end if another process of the run is lost.
        Thread(target=self._note_ends, daemon=True, name="ends of steps").start()

    def timed(self, batches: Iterator[_T]) -> Iterator[_T]:
        """Yield the batches, and count the time that the devices wait for each."""
        while True:
            begun = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            now = time.monotonic()
            steps, ended = self._done
            if steps == self._launched:
                self._seconds += max(0.0, now - max(begun, ended))
            yield batch

    def launched(self, result: Any) -> None:
        """Take note of a step that was launched.

        Args:
          result: arrays that are ready when the step is done.
        """
        self._launched += 1
        self._results.put(result)

    def take(self) -> float:
        """Return the seconds counted since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def close(self) -> None:
        """End the thread once it has seen the end of every step."""
        self._results.put(None)

    def _note_ends(self) -> None:
        number = 0
        while (result := self._results.get()) is not None:
            with suppress(Exception):  # the loop reads the same arrays, and raises the error
                jax.block_until_ready(result)
            number += 1
            self._done = number, time.monotonic()
