"""Servers that translate in batches, where sentences do not join a running search.

All waiting sentences, up to a bound, become one batch as soon as the batch before has ended. This
is the usual dynamic batching, without a wait for more sentences, which would only add to latencies
here, as sentences gather while a batch is under way.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple, Protocol

from t2t_jax.decoding.open_search import ClosedError, QueueFullError
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.markup.projection import Links
from t2t_jax.run.calibration import confidence
from t2t_jax.serving.engine import Load, Wanted


class Toolkit(Protocol):
    """A toolkit that translates a batch of sentences."""

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Return the tokens of each sentence; see `Engine`."""

    def translate(self, batch: Sequence[list[int]]) -> list[Hypothesis]:
        """Return the best translation of each list of tokens.

        Args:
          batch: the lists of tokens.
        """

    def warm_up(self, rows: int) -> None:
        """Compile all programs for batches of up to `rows` sentences.

        Args:
          rows: the most sentences of a batch.
        """


class _Request(NamedTuple):
    tokens: list[int]
    future: "Future[list[Hypothesis]]"
    deadline: float


class Batching:
    """An engine that translates one batch after another.

    Attributes:
      most_best: the most translations of a sentence: 1.
    """

    most_best = 1
    languages = None

    def __init__(self, toolkit: Toolkit, rows: int, most_waiting: int, workers: int = 1) -> None:
        """Start the threads that translate.

        Args:
          toolkit: the toolkit that translates a batch.
          rows: the most sentences that are translated at a time.
          most_waiting: the most sentences that may wait; more are refused.
          workers: the number of batches that are translated at a time.
        """
        self._toolkit, self._rows, self._most_waiting = toolkit, rows, most_waiting
        self._waiting: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._under_way, self._closed = [0] * workers, False
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Return the tokens of each sentence; see `Engine`."""
        return self._toolkit.prepare(sentences)

    def submit(
        self,
        tokens: list[int],
        wanted: Wanted,
        *,
        timeout: float,
        listener: Callable[[str], None] | None = None,
    ) -> "Future[list[Hypothesis]]":
        """Have a sentence translated; see `Engine`. Ignore `wanted` and `listener`."""
        del wanted, listener
        if self._closed:
            raise ClosedError
        if self._waiting.qsize() >= self._most_waiting:
            raise QueueFullError(f"{self._waiting.qsize()} sentences wait already")
        request = _Request(tokens, Future(), time.monotonic() + timeout)
        self._waiting.put(request)
        return request.future

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links] | None:
        """Return None, as these toolkits align no words."""
        del sources, targets
        return None

    def confidence(self, hypothesis: Hypothesis) -> float:
        """Return the confidence in a translation; see `Engine`."""
        return confidence(hypothesis, None)

    def load(self) -> Load:
        """Return the load of the engine; see `Engine`."""
        return Load(self._waiting.qsize(), sum(self._under_way), self._rows)

    def warm_up(self) -> None:
        """Compile every program; see `Engine`."""
        self._toolkit.warm_up(self._most_together)

    def close(self) -> None:
        """Wait for the sentences that were taken, and end the threads; see `Engine`."""
        self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    @property
    def _most_together(self) -> int:
        """Return the most sentences of a batch."""
        return max(1, self._rows // len(self._threads))

    def _serve(self, number: int) -> None:
        """Translate one batch after another, until a None is among the waiting requests."""
        is_last = False
        while not is_last:
            taken = [self._waiting.get()]
            with suppress(queue.Empty):
                while len(taken) < self._most_together and taken[-1] is not None:
                    taken.append(self._waiting.get_nowait())
            is_last = taken[-1] is None
            batch = [one for one in taken if one is not None and _is_wanted(one)]
            self._under_way[number] = len(batch)
            if batch:
                self._translate(batch)
            self._under_way[number] = 0

    def _translate(self, batch: Sequence[_Request]) -> None:
        try:
            found = self._toolkit.translate([one.tokens for one in batch])
        except Exception as error:
            for one in batch:
                one.future.set_exception(error)
            return
        for one, hypothesis in zip(batch, found, strict=True):
            one.future.set_result([hypothesis])


def _is_wanted(request: _Request) -> bool:
    """Return whether somebody still waits for a request, which can then no longer be cancelled."""
    if not request.future.set_running_or_notify_cancel():
        return False
    if time.monotonic() > request.deadline:
        request.future.set_exception(TimeoutError("the time for a translation is over"))
        return False
    return True
