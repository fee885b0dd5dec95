"""A search that sentences join at any time, for the server and for text that is streamed.

Each call of the compiled program computes a few positions of all sentences under way. Between two
calls the sentences that have ended or were given up leave, and sentences that wait come in. So a
sentence begins after a few positions of the others, however long these are. All programs are
compiled beforehand by `warm_up`: for each length of sources in a ladder, and for few and for many
sentences that come in at once.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import numpy as np
from jax.sharding import Mesh

from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.programs import Search, SearchInputs, Sizes
from t2t_jax.decoding.row_group import RowGroup, Sentence
from t2t_jax.decoding.scheduler import num_groups, rung, strategy_of
from t2t_jax.decoding.search.constraints import UNCONSTRAINED, Constraints
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.modules import decoding_model, interceptors, parameters
from t2t_jax.parallel.mesh import row_parts

_FEW_ROWS = 4
_PASSES = 8
"""How often a group that prefers short sentences passes over a long one before taking it first."""
_CHOICE = 4
"""The number of waiting sentences, for each free row, among which a group chooses short ones."""

Listener: TypeAlias = Callable[[list[int]], None]
"""A function that is called with the ids of all tokens that were chosen so far."""


class QueueFullError(Exception):
    """The queue is full: the most sentences that may wait are waiting already."""


class ClosedError(Exception):
    """The search takes no more sentences."""


@dataclass(frozen=True)
class Limits:
    """Sizes of an open search."""

    rows: int = 16
    """Sentences under way in each group of rows."""
    max_length: int = 256
    """Most tokens of a source."""
    max_steps: int = 8
    """The most positions that are computed before sentences that wait may come in."""
    max_waiting: int = 1024
    """The most sentences that may wait; more are refused."""
    seconds_per_token: float = 0.001
    """The seconds by which a sentence may arrive after a longer one and still overtake it, for each
    token by which it is shorter."""


@dataclass(order=True, kw_only=True)
class _Request:
    """A sentence that waits or is under way; requests are ordered as they come in."""

    due: float
    """The time of arrival, later by `Limits.seconds_per_token` for each token."""
    number: int
    sentence: Sentence = field(compare=False)
    future: "Future[SearchResult]" = field(compare=False)
    deadline: float = field(compare=False)
    listener: Listener | None = field(compare=False)
    passed: int = field(compare=False, default=0)

    def is_over(self) -> bool:
        """Return whether the request has ended, also by its deadline; the caller then drops it."""
        if self.future.cancelled():
            self.future.set_running_or_notify_cancel()
            return True
        if time.monotonic() > self.deadline:
            self.tell(TimeoutError("the time for a translation is over"))
        return self.future.done()

    def hear(self, tokens: list[int]) -> None:
        """Call the listener, if there is one; an error in it ends only this request."""
        try:
            if self.listener is not None:
                self.listener(tokens)
        except Exception as error:
            self.tell(error)

    def tell(self, outcome: SearchResult | Exception) -> None:
        """End the future with a result or an error.

        A future that was cancelled notifies the threads that wait for it instead.
        """
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            if self.future.cancelled():
                self.future.set_running_or_notify_cancel()


class OpenSearch:
    """A search that sentences join at any time; no sentence changes the result of another.

    The search runs in separate threads, until `close` drains it.
    """

    def __init__(
        self,
        model: decoding_model.DecodingModel,
        decoding: DecodingConfig,
        params: parameters.Parameters,
        mesh: Mesh,
        *,
        limits: Limits,
        seed: int = 0,
        constraints: Constraints = UNCONSTRAINED,
    ) -> None:
        """Start the threads.

        Args:
          decoding: how tokens are chosen; outputs have up to `max_extra_length` tokens more than
            their sources.
          params: the parameters, from `DecodingModel.prepare`.
        """
        self.limits = limits
        self._extra = decoding.max_extra_length
        self._search = Search(model, strategy_of(decoding, num_best=1), mesh, 1)
        self._inputs = SearchInputs(params, np.uint32(seed), constraints)
        parts = row_parts(mesh)
        self._rows = -(-self.limits.rows // parts) * parts
        eighth, quarter = (-(-self._rows // (n * parts)) * parts for n in (8, 4))
        # A few rows cost about as much as one.
        few = {eighth} if self._rows > _FEW_ROWS else set[int]()
        self._numbers_of_rows = tuple(sorted(few | {self._rows}))
        self._places = tuple(sorted({parts, quarter, self._rows}))
        shortest, longest = rung(1), rung(self.limits.max_length)
        self._lengths = tuple(shortest << n for n in range((longest // shortest).bit_length()))
        self._prefix = constraints.prompt_length
        self._waiting: list[_Request] = []  # a heap
        self._changed = threading.Condition()
        self._closed, self._number = False, 0
        number = num_groups(self._rows, mesh)
        self._under_way: list[dict[int, _Request]] = [{} for _ in range(number)]
        serve = interceptors.in_other_thread(self._serve)
        self._threads = [
            threading.Thread(target=serve, args=(n,), name=f"search-{n}", daemon=True)
            for n in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        tokens: list[int],
        *,
        limit: int | None = None,
        timeout: float = float("inf"),
        number: int = 0,
        listener: Listener | None = None,
        prefix: Sequence[int] = (),
    ) -> "Future[SearchResult]":
        """Submit a sentence to the search.

        Args:
          tokens: ids of the source, with the end of sentence.
          limit: the most tokens to generate; None is the most there is room for.
          timeout: seconds after which the future ends with a TimeoutError.
          number: the sentence's number, which determines with the seed what is drawn.
          listener: is called, in a thread of the search, with the tokens so far of a greedy search.
          prefix: ids with which the output must begin, as many as the model is told.

        Returns:
          The future of the best hypothesis. Its `cancel` gives up the sentence at any time.

        Raises:
          QueueFullError: too many sentences wait.
          ClosedError: the search is closed.
          ValueError: the source is too long, the limit too high, the prefix has more tokens
            than there is room for, or a listener is given to a beam.
        """
        most = max(len(tokens), len(prefix)) + self._extra
        sentence = Sentence(tokens, most if limit is None else limit, number, prefix)
        self._check(sentence, most, listener)
        now, future = time.monotonic(), Future[SearchResult]()
        with self._changed:
            self._make_room()
            self._number += 1
            request = _Request(
                due=now + len(tokens) * self.limits.seconds_per_token,
                number=self._number,
                sentence=sentence,
                future=future,
                deadline=now + timeout,
                listener=listener,
            )
            heapq.heappush(self._waiting, request)
            self._changed.notify()
        return future

    def _make_room(self) -> None:
        """Refuse a sentence where none may wait any more; those that are over leave first."""
        if self._closed:
            raise ClosedError("the search takes no more sentences")
        if len(self._waiting) >= self.limits.max_waiting:
            self._waiting = [request for request in self._waiting if not request.is_over()]
            heapq.heapify(self._waiting)
        if len(self._waiting) >= self.limits.max_waiting:
            raise QueueFullError(f"{len(self._waiting)} sentences wait already")

    def _check(self, sentence: Sentence, most: int, listener: Listener | None) -> None:
        if sentence.length > self.limits.max_length or sentence.limit > most:
            raise ValueError(
                f"{sentence.length} tokens and {sentence.limit} of output are more than the "
                f"{self.limits.max_length} and {most} that there is room for"
            )
        if len(sentence.prefix) > self._prefix:
            raise ValueError(
                f"the prefix has {len(sentence.prefix)} tokens, but the model is told "
                f"{self._prefix}"
            )
        if listener is not None and self._search.strategy.beam_size > 1:
            raise ValueError("several hypotheses are searched for: there are no tokens so far")

    @property
    def num_waiting(self) -> int:
        """Return the number of sentences that are not yet under way."""
        with self._changed:
            return len(self._waiting)

    @property
    def num_rows(self) -> int:
        """Return the number of sentences that can be under way at a time."""
        return self._rows * len(self._threads)

    @property
    def num_under_way(self) -> int:
        """Return the number of sentences that are under way, each in a row."""
        return sum(map(len, self._under_way))

    def close(self) -> None:
        """Take no more sentences, and wait until those that were taken have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def warm_up(self) -> None:
        """Compile every program, so that no sentence has to wait for a compilation."""
        blank = self._search.model.sources.blank
        for rows, length in product(self._numbers_of_rows, self._lengths):
            group, places = self._group(rows, length), [n for n in self._places if n <= rows]
            sources = [n for n in self._lengths if n <= length]
            for several, source in product(places, sources):
                group.let_in([(0, Sentence(blank(source), 0, 0))] * several, [several], [source])
                group.collect(group.search_on(0, 1))
            for other in self._neighbours(rows, length):
                self._group(rows, length).resize(self._sizes(*other))

    def _neighbours(self, rows: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield the rows and lengths to which a group of this size may be resized next."""
        place = self._lengths.index(length)
        near = self._lengths[max(0, place - 1) : place + 2]
        yield from ((rows, other) for other in near if other != length)
        yield from ((other, length) for other in self._numbers_of_rows if other != rows)

    def _sizes(self, rows: int, length: int) -> Sizes:
        """Return the sizes for sources of a length of the ladder; few outputs exceed their room."""
        most = length + self._extra
        room = most if length == self._lengths[-1] else length
        return Sizes(rows, rows, length, room, most, self._prefix)

    def _group(self, rows: int, length: int) -> RowGroup:
        return RowGroup(self._search, self._inputs, self._sizes(rows, length))

    def _serve(self, number: int) -> None:
        """Run the group of rows of this number until the search is closed."""
        group: RowGroup | None = None
        under_way = self._under_way[number]
        while (arrivals := self._arrivals(number, len(under_way))) is not None:
            under_way |= {request.number: request for request in arrivals}
            try:
                group = self._fitting(group, [request.sentence for request in arrivals])
                self._turn(group, arrivals, under_way)
            except Exception as error:
                while under_way:  # a request that knows its end is no longer under way
                    under_way.popitem()[1].tell(error)
                group = None

    def _turn(
        self, group: RowGroup, arrivals: Sequence[_Request], under_way: dict[int, _Request]
    ) -> None:
        """Compute a few positions, and give the results to the requests that have ended."""
        coming = [(request.number, request.sentence) for request in arrivals]
        # The program stops as soon as one sentence has ended. Where many are under way, or wait to
        # come in, it stops after a few, which leave and come in at less cost together.
        together = max(1, len(under_way) // 8, min(self.num_waiting, self._rows // 4))
        leave = max(0, len(under_way) - together)
        places = [n for n in self._places if n <= group.sizes.rows]
        group.let_in(coming, places, self._lengths)
        progress = group.search_on(leave, self.limits.max_steps)
        for number, result in group.collect(progress):
            under_way.pop(number).tell(result)
        for number, tokens in group.so_far():
            under_way[number].hear(tokens)
        for number in [n for n, request in under_way.items() if request.is_over()]:
            group.release(number)
            del under_way[number]

    def _arrivals(self, number: int, num_held: int) -> list[_Request] | None:
        """Return the sentences that come in, after a wait if there are none; None at the end.

        The first group takes sentences as they are due; any other group prefers short ones, whose
        arrays are smaller. A sentence that it has passed over stays due before later ones, and so
        the long sentences come together in the first group.
        """
        with self._changed:
            while not (self._waiting or num_held or self._closed):
                self._changed.wait()
            if self._closed and not (self._waiting or num_held):
                return None
            free = self._rows - num_held
            first = self._due(_CHOICE * free if number else free)
            if number:
                first.sort(
                    key=lambda one: one.passed < _PASSES and self._length(one.sentence.length, 0)
                )
            for request in first[free:]:
                request.passed += 1
                heapq.heappush(self._waiting, request)
            return first[:free]

    def _due(self, most: int) -> list[_Request]:
        """Take out the sentences that are due first, at most so many; drop those that are over."""
        found: list[_Request] = []
        while self._waiting and len(found) < most:
            request = heapq.heappop(self._waiting)
            if not request.is_over():
                found.append(request)
        return found

    def _fitting(self, group: RowGroup | None, arrivals: Sequence[Sentence]) -> RowGroup:
        """Return a group whose arrays hold all sentences: the same, resized, or a new one."""
        sources = [sentence.length for sentence in arrivals]
        if group is None or not group.held:
            rows, length = self._rows_for(len(arrivals)), self._length(max(sources, default=0), 0)
            fits = group is not None and group.sizes == self._sizes(rows, length)
            return group if group is not None and fits else self._group(rows, length)
        number, now = len(group.held) + len(arrivals), group.sizes
        # Smaller only where it will be large enough for a while.
        smaller, larger = (self._rows_for(times * number) for times in (2, 1))
        fewer = smaller if smaller >= group.last_row else now.rows
        group.resize(self._sizes(max(larger, min(now.rows, fewer)), now.source_length))
        longest = max([group.longest, *sources])
        smaller, larger = (self._length(longest, times * group.farthest) for times in (2, 1))
        to = max(larger, min(now.source_length, smaller))
        while (length := group.sizes.source_length) != to:  # there are programs for neighbours
            step = 1 if to > length else -1
            other = self._lengths[self._lengths.index(length) + step]
            group.resize(self._sizes(group.sizes.rows, other))
        return group

    def _rows_for(self, number: int) -> int:
        """Return the fewest rows of a program for so many sentences; all rows if none is enough."""
        return next((rows for rows in self._numbers_of_rows if rows >= number), self._rows)

    def _length(self, longest: int, farthest: int) -> int:
        """Return the ladder's least length for the longest source and the farthest position."""
        fitting = (one for one in self._lengths if one >= longest and one > farthest)
        return next(fitting, self._lengths[-1])
