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
from typing import Any, TypeVar

import jax
from jax._src.distributed import global_state

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
        self._client: Any = global_state.client  # no public name: jax.distributed keeps it hidden
        self.process = global_state.process_id
        self.processes = global_state.num_processes if self._client else 1
        self.coordinator = global_state.coordinator_address if self._client else None
        self._pause = min(1.0, max(0.05, self.processes / 200))
        self._seen: dict[int, tuple[str, float]] = {}
        self._begun = self._looked = time.monotonic()
        self._ended = threading.Event()
        if self._client:
            threading.Thread(target=self._beat, daemon=True, name="signs of life").start()

    def put(self, key: str, text: str) -> None:
        """Write a text under a key, which nobody else writes."""
        if self._client:
            self._client.key_value_set(f"preflight/{key}", text, allow_overwrite=True)

    def wait_for(self, key: str, seconds: float) -> str:
        """Return the text under a key as soon as it is there.

        Raises:
          JaxRuntimeError: it is not there after so many seconds.
        """
        text: str = self._client.blocking_key_value_get(f"preflight/{key}", int(1000 * seconds))
        return text

    def tell(self, key: str, text: str = "") -> str:
        """Return on all processes the text that process 0 gives; other texts are ignored.

        Raises:
          LostError: a process is gone.
        """
        if self.process == 0:
            self.put(f"told/{key}/0", text)
            return text
        return self.until(lambda: self._under(f"told/{key}").get(0))

    def collect(self, key: str, text: str) -> dict[int, str]:
        """Return the texts of all processes on process 0, and nothing, at once, on the others.

        Raises:
          LostError: a process is gone.
        """
        if not self._client:
            return {0: text}
        self.put(f"found/{key}/{self.process}", text)
        if self.process != 0:
            return {}

        def complete() -> dict[int, str] | None:
            found = self._under(f"found/{key}")
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
        while self.process == 0 and self._client and time.monotonic() < latest:
            if len({*self._under("bye"), *lost}) == self.processes:
                return
            time.sleep(self._pause)

    def _under(self, key: str) -> dict[int, str]:
        """Return the texts under a key by the number at the end of their names."""
        if not self._client:
            return {}
        found = self._client.key_value_dir_get(f"preflight/{key}/")
        return {int(name.rpartition("/")[2]): text for name, text in found}

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
        if not self._client or now < self._looked + _BEAT_SECONDS:
            return
        self._looked = now
        alive = self._under("alive")
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
        if lost := silent or sorted(self._under("lost")):
            raise LostError(lost)
