"""Search for sentences that arrive at any time, for the server.

Each call of the compiled program computes a few steps of all live sentences. Between two calls,
waiting sentences replace those that have ended or were canceled. A sentence therefore starts after
a few steps, however long the other sentences are.
"""

import heapq
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import product

from t2t_jax.decoding.programs import Search, SearchInputs, Sizes
from t2t_jax.decoding.row_group import RowGroup, Sentence
from t2t_jax.decoding.scheduler import length_bucket, num_groups
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.modules import interceptors
from t2t_jax.parallel.mesh import row_parts

_FEW_ROWS = 4
_MAX_SKIPS = 8
"""How often a group that prefers short sentences may skip a long sentence."""
_CANDIDATES_PER_ROW = 4
"""The number of waiting sentences per free row among which a group chooses short ones."""


class QueueFullError(Exception):
    """The search refuses a sentence because `Limits.max_waiting` sentences are waiting."""


class ClosedError(Exception):
    """The search refuses a sentence because it is closed."""


@dataclass(frozen=True)
class Limits:
    """Limits on the rows, lengths, steps and queue of an open search."""

    rows: int = 16
    """The most live sentences in each group of rows."""
    max_length: int = 256
    """The most tokens of a source."""
    max_steps: int = 8
    """The most steps to compute before waiting sentences are admitted."""
    max_waiting: int = 1024
    """The most sentences that may wait."""
    seconds_per_token: float = 0.001
    """Delay of a sentence's due time per source token. Sentences start in the order of due times,
    so a short sentence overtakes longer ones that arrived shortly before."""


@dataclass(order=True)
class _Request:
    """A waiting or live sentence; requests are ordered by their due time."""

    due: float
    """The time of arrival plus `Limits.seconds_per_token` for each source token."""
    number: int
    sentence: Sentence = field(compare=False)
    future: "Future[SearchResult]" = field(compare=False)
    deadline: float = field(compare=False)
    num_skips: int = field(compare=False, default=0)

    def is_done(self) -> bool:
        """Return whether the request has ended; end it if it was canceled or its time is over."""
        if self.future.cancelled() or time.monotonic() > self.deadline:
            self.finish(TimeoutError("the translation took longer than its timeout"))
        return self.future.done()

    def finish(self, outcome: SearchResult | Exception) -> None:
        """Resolve the future with a result or an error, unless it was canceled."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            if self.future.cancelled():  # threads that wait for the future learn this only here
                self.future.set_running_or_notify_cancel()


class OpenSearch:
    """A search that accepts sentences at any time; no sentence changes the result of another.

    The search runs in background threads until `close`.
    """

    def __init__(
        self, search: Search, inputs: SearchInputs, max_extra_length: int, limits: Limits
    ) -> None:
        """Start the background threads.

        Args:
          max_extra_length: the most tokens by which an output may be longer than its source.
        """
        self.limits = limits
        self._extra_length, self._search, self._inputs = max_extra_length, search, inputs
        num_parts = row_parts(search.mesh)
        self._rows = -(-self.limits.rows // num_parts) * num_parts
        eighth, quarter = (-(-self._rows // (n * num_parts)) * num_parts for n in (8, 4))
        # With at most `_FEW_ROWS` rows, a smaller program would save almost no time.
        small = {eighth} if self._rows > _FEW_ROWS else set[int]()
        self._row_counts = tuple(sorted(small | {self._rows}))
        self._batch_sizes = tuple(sorted({num_parts, quarter, self._rows}))
        shortest, longest = length_bucket(1), length_bucket(self.limits.max_length)
        self._buckets = tuple(shortest << n for n in range((longest // shortest).bit_length()))
        self._prefix_length = inputs.constraints.prompt_length
        self._queue: list[_Request] = []  # a heap
        self._queue_changed = threading.Condition()
        self._closed, self._num_requests = False, 0
        group_indices = range(num_groups(self._rows, search.mesh))
        self._live: list[dict[int, _Request]] = [{} for _ in group_indices]
        serve = interceptors.in_other_thread(self._serve)
        self._threads = [
            threading.Thread(target=serve, args=(index,), name=f"search-{index}", daemon=True)
            for index in group_indices
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, tokens: list[int], *, timeout: float = float("inf"), prefix: Sequence[int] = ()
    ) -> "Future[SearchResult]":
        """Submit a sentence, and return the future of its best hypothesis, which may be canceled.

        Args:
          tokens: ids of the source, with the end-of-sentence token.
          timeout: seconds after which the future ends with a `TimeoutError`.
          prefix: ids with which the output must begin.

        Raises:
          QueueFullError: too many sentences are waiting.
          ClosedError: the search is closed.
          ValueError: the source or the prefix is too long.
        """
        length = max(len(tokens), len(prefix))
        if length > self.limits.max_length or len(prefix) > self._prefix_length:
            raise ValueError(
                f"{len(tokens)} tokens of the source and {len(prefix)} of the prefix exceed the "
                f"limits of {self.limits.max_length} and {self._prefix_length}"
            )
        sentence = Sentence(tokens, length + self._extra_length, 0, prefix)
        now, future = time.monotonic(), Future[SearchResult]()
        with self._queue_changed:
            self._check_queue()
            self._num_requests += 1
            due = now + len(tokens) * self.limits.seconds_per_token
            request = _Request(due, self._num_requests, sentence, future, now + timeout)
            heapq.heappush(self._queue, request)
            self._queue_changed.notify()
        return future

    def _check_queue(self) -> None:
        """Check that the search is open and the queue is not full; remove ended requests first."""
        if self._closed:
            raise ClosedError("the search is closed")
        if len(self._queue) >= self.limits.max_waiting:
            self._queue = [request for request in self._queue if not request.is_done()]
            heapq.heapify(self._queue)
        if len(self._queue) >= self.limits.max_waiting:
            raise QueueFullError(f"{len(self._queue)} sentences are already waiting")

    @property
    def num_waiting(self) -> int:
        """Return the number of sentences in the queue."""
        with self._queue_changed:
            return len(self._queue)

    @property
    def num_rows(self) -> int:
        """Return the most sentences that can be live at a time."""
        return self._rows * len(self._threads)

    @property
    def num_live(self) -> int:
        """Return the number of sentences that are being decoded."""
        return sum(map(len, self._live))

    def close(self) -> None:
        """Refuse new sentences, and wait until all accepted sentences have ended."""
        with self._queue_changed:
            self._closed = True
            self._queue_changed.notify_all()
        for thread in self._threads:
            thread.join()

    def warm_up(self) -> None:
        """Compile every program, so that no sentence has to wait for a compilation."""
        blank_source = self._search.model.sources.blank
        for rows, length in product(self._row_counts, self._buckets):
            group = self._new_group(rows, length)
            batch_sizes = [n for n in self._batch_sizes if n <= rows]
            buckets = [n for n in self._buckets if n <= length]
            for size, bucket in product(batch_sizes, buckets):
                group.admit([(0, Sentence(blank_source(bucket), 0, 0))] * size, [size], [bucket])
                group.collect(group.advance(0, 1))
            for sizes in self._adjacent_sizes(rows, length):
                self._new_group(rows, length).resize(sizes)

    def _adjacent_sizes(self, rows: int, length: int) -> Iterator[Sizes]:
        """Yield the array sizes that a group of this size may change to.

        Either the length bucket is adjacent, or the number of rows differs.
        """
        index = self._buckets.index(length)
        adjacent = self._buckets[max(0, index - 1) : index + 2]
        yield from (self._sizes(rows, bucket) for bucket in adjacent if bucket != length)
        yield from (self._sizes(count, length) for count in self._row_counts if count != rows)

    def _sizes(self, rows: int, length: int) -> Sizes:
        # Few outputs are longer than the bucket, so the arrays begin without the extra length.
        max_capacity = length + self._extra_length
        capacity = max_capacity if length == self._buckets[-1] else length
        return Sizes(rows, rows, length, capacity, max_capacity, self._prefix_length)

    def _new_group(self, rows: int, length: int) -> RowGroup:
        return RowGroup(self._search, self._inputs, self._sizes(rows, length))

    def _serve(self, group_index: int) -> None:
        group: RowGroup | None = None
        live = self._live[group_index]
        while (arrivals := self._next_arrivals(group_index, len(live))) is not None:
            live |= {request.number: request for request in arrivals}
            try:
                group = self._resized(group, [request.sentence for request in arrivals])
                self._advance(group, arrivals, live)
            except Exception as error:
                while live:  # remove a request before its future ends: callers may read `num_live`
                    live.popitem()[1].finish(error)
                group = None

    def _advance(
        self, group: RowGroup, arrivals: Sequence[_Request], live: dict[int, _Request]
    ) -> None:
        """Admit sentences, compute a few steps, and finish the requests that have ended."""
        # The program stops once this many sentences have ended. If many are live or waiting,
        # replacing several at once costs less.
        num_to_replace = max(1, len(live) // 8, min(self.num_waiting, self._rows // 4))
        max_live = max(0, len(live) - num_to_replace)
        batch_sizes = [n for n in self._batch_sizes if n <= group.sizes.rows]
        sentences = [(request.number, request.sentence) for request in arrivals]
        group.admit(sentences, batch_sizes, self._buckets)
        progress = group.advance(max_live, self.limits.max_steps)
        for number, result in group.collect(progress):
            live.pop(number).finish(result)
        for number in [number for number, request in live.items() if request.is_done()]:
            group.release(number)
            del live[number]

    def _next_arrivals(self, group_index: int, num_live: int) -> list[_Request] | None:
        """Wait, and pop requests for group `group_index`; return None once the search has ended."""
        with self._queue_changed:
            while not (self._queue or num_live or self._closed):
                self._queue_changed.wait()
            if self._closed and not (self._queue or num_live):
                return None
            num_free = self._rows - num_live
            requests = self._pop_due(_CANDIDATES_PER_ROW * num_free if group_index else num_free)
            # The second group prefers short sentences, whose arrays are smaller. Long sentences
            # then gather in the first group, which takes requests by due time.
            if group_index:
                requests.sort(key=self._preference)
            for request in requests[num_free:]:
                request.num_skips += 1
                heapq.heappush(self._queue, request)
            return requests[:num_free]

    def _preference(self, request: _Request) -> int:
        """Return the sort key of a waiting request, which is the length bucket of its sentence.

        A request that was skipped too often gets 0.
        """
        return request.num_skips < _MAX_SKIPS and self._bucket(request.sentence.length)

    def _pop_due(self, count: int) -> list[_Request]:
        requests: list[_Request] = []
        while self._queue and len(requests) < count:
            request = heapq.heappop(self._queue)
            if not request.is_done():
                requests.append(request)
        return requests

    def _resized(self, group: RowGroup | None, arrivals: Sequence[Sentence]) -> RowGroup:
        """Return a group with room for its live sentences and for arrivals: resized or new."""
        lengths = [sentence.length for sentence in arrivals]
        if group is None or not group.live:
            rows, length = self._row_count(len(arrivals)), self._bucket(max(lengths, default=0))
            fits = group is not None and group.sizes == self._sizes(rows, length)
            return group if group is not None and fits else self._new_group(rows, length)
        count, sizes = len(group.live) + len(arrivals), group.sizes
        # Sizes between the need and twice the need stay, so that they seldom change.
        min_rows, max_rows = (self._row_count(factor * count) for factor in (1, 2))
        max_rows = max_rows if max_rows >= group.min_rows else sizes.rows
        group.resize(self._sizes(max(min_rows, min(sizes.rows, max_rows)), sizes.source_length))
        longest, output = max([group.longest_source, *lengths]), group.longest_output
        min_length, max_length = (self._bucket(longest, factor * output) for factor in (1, 2))
        target = max(min_length, min(sizes.source_length, max_length))
        while (length := group.sizes.source_length) != target:  # programs only for adjacent buckets
            step = 1 if target > length else -1
            bucket = self._buckets[self._buckets.index(length) + step]
            group.resize(self._sizes(group.sizes.rows, bucket))
        return group

    def _row_count(self, count: int) -> int:
        """Return the smallest compiled row count that fits `count` sentences, or the largest."""
        return next((rows for rows in self._row_counts if rows >= count), self._rows)

    def _bucket(self, source_length: int, output_length: int = 0) -> int:
        lengths = (n for n in self._buckets if n >= source_length and n > output_length)
        return next(lengths, self._buckets[-1])
