"""Servers that translate in batches, in place of sentences that join a running search.

What waits is taken as one batch, up to a bound, as soon as the batch before has ended. It is the
usual dynamic batching, without a wait for more sentences to come: that would only add to latencies
here, as sentences gather while a batch is under way.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple, Protocol

from t2t_jax.decoding.alignments import Links
from t2t_jax.decoding.open_search import ClosedError, QueueFullError
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.run.calibration import confidence
from t2t_jax.serving.engine import Load, Wanted


class Toolkit(Protocol):
    """What translates a batch."""

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """The tokens of each sentence; see `Engine`."""

    def translate(self, batch: Sequence[list[int]]) -> list[Hypothesis]:
        """The best translation of each list of tokens.

        Args:
          batch: the lists of tokens.
        """

    def warm_up(self, rows: int) -> None:
        """Compile all that batches of up to so many sentences need.

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

    def __init__(self, toolkit: Toolkit, rows: int, most_waiting: int, workers: int = 1) -> None:
        """Start the threads that translate.

        Args:
          toolkit: what translates a batch.
          rows: the most sentences that are translated at a time.
          most_waiting: sentences that may wait; more are refused.
          workers: batches that are translated at a time.
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
        """The tokens of each sentence; see `Engine`."""
        return self._toolkit.prepare(sentences)

    def submit(
        self,
        tokens: list[int],
        wanted: Wanted,
        *,
        timeout: float,
        listener: Callable[[str], None] | None = None,
    ) -> "Future[list[Hypothesis]]":
        """Have a sentence translated; see `Engine`. What is wanted beyond that is left aside."""
        del wanted, listener
        if self._closed:
            raise ClosedError
        if self._waiting.qsize() >= self._most_waiting:
            raise QueueFullError(f"{self._waiting.qsize()} sentences wait already")
        request = _Request(tokens, Future(), time.monotonic() + timeout)
        self._waiting.put(request)
        return request.future

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links] | None:
        """There are no links."""
        del sources, targets
        return None

    def confidence(self, hypothesis: Hypothesis) -> float:
        """How sure a translation is; see `Engine`."""
        return confidence(hypothesis, None)

    def load(self) -> Load:
        """How busy it is; see `Engine`."""
        return Load(self._waiting.qsize(), sum(self._under_way), self._rows)

    def warm_up(self) -> None:
        """Compile every program; see `Engine`."""
        self._toolkit.warm_up(self._most_together)

    def close(self) -> None:
        """Wait for what was taken; see `Engine`."""
        self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    @property
    def _most_together(self) -> int:
        """The most sentences of a batch."""
        return max(1, self._rows // len(self._threads))

    def _serve(self, number: int) -> None:
        """Translate one batch after another, until there is a None among what waits."""
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
    """Whether somebody still waits for it; from now on it cannot be given up."""
    if not request.future.set_running_or_notify_cancel():
        return False
    if time.monotonic() > request.deadline:
        request.future.set_exception(TimeoutError("the time for a translation is over"))
        return False
    return True
