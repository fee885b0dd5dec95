"""The board on which the processes of a preflight tell each other what they found.

It is the store of keys and values that process 0 keeps for JAX (the coordination service). Unlike
an exchange between devices, it still answers when a process is dead or stuck. Every process leaves
a sign of life on it every second, so that one that is gone is named, and nobody waits for it.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import jax
from jax._src.distributed import global_state

from t2t_jax.parallel.message_board import leave, text_at, texts_under

_BEAT_SECONDS = 1.0
_SILENT_SECONDS = 30.0

_T = TypeVar("_T")


class LostError(Exception):
    """The error for processes that give no sign of life any more."""

    def __init__(self, processes: list[int]) -> None:
        """Keep the numbers of the processes that are gone."""
        super().__init__(f"lost: {processes}")
        self.processes = processes


class Board:
    """The board of all processes that have met; a single process has it for itself.

    Attributes:
      process: the number of this process.
      processes: the number of all processes.
      coordinator: HOST:PORT of process 0; None for a single process.
    """

    def __init__(self) -> None:
        """Begin to leave signs of life; call it once the processes have met."""
        self.process, self.processes = global_state.process_id, global_state.num_processes or 1
        self.coordinator = global_state.coordinator_address if self.processes > 1 else None
        self._pause = min(1.0, max(0.05, self.processes / 200))
        self._seen: dict[int, tuple[str, float]] = {}
        self._begun = self._looked = time.monotonic()
        self._ended = threading.Event()
        if self.processes > 1:
            threading.Thread(target=self._beat, daemon=True, name="signs of life").start()

    def put(self, key: str, text: str) -> None:
        """Write a text under a key, which nobody else writes."""
        leave(f"preflight/{key}", text)

    def wait_for(self, key: str, seconds: float) -> str:
        """Return the text under a key as soon as it is there.

        Raises:
          JaxRuntimeError: it is not there after so many seconds.
        """
        return text_at(f"preflight/{key}", seconds)

    def tell(self, key: str, text: str = "") -> str:
        """Return on all processes the text that process 0 gives; other texts are ignored.

        Raises:
          LostError: a process is gone.
        """
        if self.process == 0:
            self.put(f"told/{key}/0", text)
            return text
        return self.until(lambda: texts_under(f"preflight/told/{key}").get(0))

    def collect(self, key: str, text: str) -> dict[int, str]:
        """Return the texts of all processes on process 0, and nothing, at once, on the others.

        Raises:
          LostError: a process is gone.
        """
        if self.processes == 1:
            return {0: text}
        self.put(f"found/{key}/{self.process}", text)
        if self.process != 0:
            return {}

        def complete() -> dict[int, str] | None:
            found = texts_under(f"preflight/found/{key}")
            return found if len(found) == self.processes else None

        return self.until(complete)

    def until(self, ready: Callable[[], _T | None]) -> _T:
        """Wait until a function returns something other than None, and return that.

        Raises:
          LostError: a process is gone.
        """
        while (found := ready()) is None:
            self._look_for_lost()
            time.sleep(self._pause)
        return found

    def farewell(self, lost: Sequence[int]) -> None:
        """Wait a while, on process 0, until all others have read what they were told.

        The others would be aborted by JAX, with a trace of its own, if process 0 ended first.
        """
        self.put(f"bye/{self.process}", "")
        latest = time.monotonic() + 10 * _BEAT_SECONDS
        while self.process == 0 and self.processes > 1 and time.monotonic() < latest:
            if len({*texts_under("preflight/bye"), *lost}) == self.processes:
                return
            time.sleep(self._pause)

    def close(self) -> None:
        """Leave no further signs of life."""
        self._ended.set()

    def _beat(self) -> None:
        with suppress(jax.errors.JaxRuntimeError):  # process 0 is gone, as the others will see
            for count in itertools.count():
                self.put(f"alive/{self.process}", str(count))
                if self._ended.wait(_BEAT_SECONDS):
                    return

    def _look_for_lost(self) -> None:
        """Raise an error if a process is silent; process 0 finds that out, and tells the others."""
        now = time.monotonic()
        if self.processes == 1 or now < self._looked + _BEAT_SECONDS:
            return
        self._looked = now
        alive = texts_under("preflight/alive")
        watched = range(self.processes) if self.process == 0 else [0]
        for process in watched:
            sign = alive.get(process, "")
            if self._seen.get(process, ("", 0.0))[0] != sign:
                self._seen[process] = sign, now
        silent = [
            process
            for process in watched
            if now - self._seen.get(process, ("", self._begun))[1] > _SILENT_SECONDS
        ]
        if self.process == 0:
            for process in silent:
                self.put(f"lost/{process}", "")
        if lost := silent or sorted(texts_under("preflight/lost")):
            raise LostError(lost)
