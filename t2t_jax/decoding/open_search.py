"""A search that sentences join at any time: what a server translates with.

Each call of the compiled program computes a few positions of all sentences under way. Between two
calls those that have ended make way, those that were given up too, and those that wait come in. So
a sentence begins after a few positions of the others, however long these are. All programs are
compiled beforehand by `warm_up`: for sources of each length of a ladder, for few and many that come
in at once.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import jax
from jax.sharding import Mesh

from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.constraints import Constraints
from t2t_jax.decoding.hypotheses import SearchResult
from t2t_jax.decoding.programs import Search, Sizes
from t2t_jax.decoding.row_group import RowGroup, Sentence
from t2t_jax.decoding.scheduler import num_groups, rung, strategy_of
from t2t_jax.decoding.turns import Turns, Waiting
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.matrices import Parameters
from t2t_jax.parallel.mesh import row_parts

_FEW_ROWS = 4
_PASSES = 8
"""How often a group of rows that prefers short sentences passes over one before it comes first."""
_CHOICE = 4
"""For each free row of such a group, the number of sentences that it chooses among."""

Listener: TypeAlias = Callable[[list[int]], None]
"""Is told the ids of all tokens that were chosen so far."""


_compiled: set[Hashable] = set()
"""What the searches have in common whose programs this process has compiled."""


class QueueFullError(Exception):
    """So many sentences wait that one more would wait too long."""


class ClosedError(Exception):
    """The search takes no more sentences."""


@dataclass(frozen=True)
class Limits:
    """Sizes of an open search."""

    rows: int = 16
    """Sentences under way in each group of rows."""
    longest: int = 256
    """Most tokens of a source."""
    most_steps: int = 8
    """Positions after which sentences that wait may come in, at the latest."""
    most_waiting: int = 1024
    """Sentences that may wait; more are refused."""
    seconds_per_token: float = 0.001
    """A sentence lets others overtake it that come so much later, for each token by which they are
    shorter."""


@dataclass(order=True, kw_only=True)
class _Request(Waiting):
    """A sentence that waits or is under way."""

    sentence: Sentence = field(compare=False)
    future: "Future[Any]" = field(compare=False)
    read: Callable[[SearchResult], Any] = field(compare=False)
    deadline: float = field(compare=False)
    listener: Listener | None = field(compare=False)
    passed: int = field(compare=False, default=0)

    def is_over(self) -> bool:
        """Whether nobody waits for it any more; who asks and hears so leaves it out."""
        if self.future.cancelled():
            self.future.set_running_or_notify_cancel()
            return True
        if time.monotonic() > self.deadline:
            self.tell(TimeoutError("the time for a translation is over"))
        return self.future.done()

    def tell(self, result: SearchResult | Exception) -> None:
        """Give who waits what `read` makes of a result, or an error.

        Where it was given up, `concurrent.futures.wait` hears of that.
        """
        outcome: Any = result
        if not isinstance(result, Exception):
            try:
                outcome = self.read(result)
            except Exception as error:
                outcome = error
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            if self.future.cancelled():
                self.future.set_running_or_notify_cancel()


class OpenSearch:
    """A search that sentences join while others are under way; a sentence's result is its own.

    Threads of its own look after the rows. It is a context manager, which drains it at the end.
    """

    def __init__(
        self,
        model: DecodingModel,
        decoding: DecodingConfig,
        params: Parameters,
        mesh: Mesh,
        *,
        limits: Limits | None = None,
        num_best: int = 1,
        seed: int = 0,
        constraints: Constraints | None = None,
    ) -> None:
        """Start the threads.

        Args:
          model: the model that decodes.
          decoding: how tokens are chosen; outputs have up to `max_extra_length` tokens more than
            their sources.
          params: the parameters, from `DecodingModel.prepare`.
          mesh: the devices of the parameters.
          limits: sizes; None is the default.
          num_best: hypotheses wanted of each sentence.
          seed: seed of sampling.
          constraints: which tokens may be chosen; None allows all.
        """
        self.limits = Limits() if limits is None else limits
        self._extra = decoding.max_extra_length
        self._search = Search(model, strategy_of(decoding, num_best), mesh, num_best)
        self._of_groups = params, seed, constraints
        parts = row_parts(mesh)
        self._rows = -(-self.limits.rows // parts) * parts
        eighth, quarter = (-(-self._rows // (n * parts)) * parts for n in (8, 4))
        # A few rows cost about as much as one.
        few = {eighth} if self._rows > _FEW_ROWS else set[int]()
        self._numbers_of_rows = tuple(sorted(few | {self._rows}))
        self._places = tuple(sorted({parts, quarter, self._rows}))
        self._lengths = tuple(_ladder(self.limits.longest))
        self._waiting: Turns[_Request] = Turns()
        self._changed = threading.Condition()
        self._closed, self._number = False, 0
        number = num_groups(self._rows, mesh)
        self._num_held = [0] * number
        self._threads = [
            threading.Thread(target=self._serve, args=(n,), name=f"search-{n}", daemon=True)
            for n in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "OpenSearch":
        """The search itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Drain it: see `close`."""
        self.close()

    def submit(
        self,
        tokens: list[int],
        *,
        limit: int | None = None,
        timeout: float = float("inf"),
        number: int = 0,
        listener: Listener | None = None,
        client: Hashable = None,
        request: Hashable = None,
        read: Callable[[SearchResult], Any] = lambda result: result,
    ) -> "Future[Any]":
        """Have a sentence searched for.

        Args:
          tokens: ids of its source, with the end of sentence.
          limit: the most tokens to generate; None is the most there is room for.
          timeout: seconds after which it ends with a TimeoutError.
          number: with the seed, it determines what is drawn.
          listener: is called, in a thread of the search, with the tokens so far of a greedy search.
          client: who sent its request: clients take turns; None is somebody who sent no other.
          request: what it was sent with: a client's requests take turns; None is nothing else.
          read: what the future gives of the hypotheses `[num_best, t]`; without it, themselves.

        Returns:
          The future. Its `cancel` gives up the sentence at any time.

        Raises:
          QueueFullError: too many sentences wait.
          ClosedError: the search is closed.
          ValueError: the source is too long, the limit too high, or a listener is given to a beam.
        """
        most = len(tokens) + self._extra
        sentence = Sentence(tokens, most if limit is None else limit, number)
        self._check(sentence, most, listener)
        now, patience = time.monotonic(), len(tokens) * self.limits.seconds_per_token
        future, request = Future[Any](), object() if request is None else request
        with self._changed:
            if self._closed:
                raise ClosedError("the search takes no more sentences")
            if len(self._waiting) >= self.limits.most_waiting:
                self._waiting.leave_out(_Request.is_over)
            if len(self._waiting) >= self.limits.most_waiting:
                raise QueueFullError(f"{len(self._waiting)} sentences wait already")
            self._number += 1
            self._waiting.add(
                _Request(
                    due=now + patience,
                    number=self._number,
                    patience=patience,
                    shares=(request if client is None else client, request),
                    sentence=sentence,
                    future=future,
                    read=read,
                    deadline=now + timeout,
                    listener=listener,
                )
            )
            self._changed.notify()
        return future

    def _check(self, sentence: Sentence, most: int, listener: Listener | None) -> None:
        """Refuse a sentence for which there is no room, and tokens so far of several hypotheses."""
        if len(sentence.tokens) > self.limits.longest or sentence.limit > most:
            raise ValueError(
                f"{len(sentence.tokens)} tokens and {sentence.limit} of output are more than the "
                f"{self.limits.longest} and {most} that there is room for"
            )
        if listener is not None and self._search.strategy.beam_size > 1:
            raise ValueError("several hypotheses are searched for: there are no tokens so far")

    @property
    def num_waiting(self) -> int:
        """Sentences that are not yet under way."""
        with self._changed:
            return len(self._waiting)

    @property
    def num_rows(self) -> int:
        """Sentences that can be under way at a time."""
        return self._rows * len(self._threads)

    @property
    def num_under_way(self) -> int:
        """Sentences that are searched for, each in a row."""
        return sum(self._num_held)

    def close(self) -> None:
        """Take no more sentences, and wait until those that were taken have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def warm_up(self) -> None:
        """Compile every program, so that no sentence has to wait for that.

        Where a search of the same sizes has done so in this process, there is nothing to do: other
        parameters need no other programs.
        """
        params, _, constraints = self._of_groups
        arrays, structure = jax.tree.flatten((params, constraints))
        kinds = ((x.shape, x.dtype, getattr(x, "sharding", None)) for x in arrays)
        programs = self._search, self.limits, self._extra, structure, *kinds
        if programs in _compiled:
            return
        self._compile()
        _compiled.add(programs)

    def _compile(self) -> None:
        for rows, length in product(self._numbers_of_rows, self._lengths):
            group, places = self._group(rows, length), self._places_among(rows)
            sources = [n for n in self._lengths if n <= length]
            for several, source in product(places, sources):
                group.let_in([(0, Sentence([0] * source, 0, 0))] * several, [several], [source])
                group.collect(group.search_on(0, 1))
            for other in self._neighbours(rows, length):
                self._group(rows, length).resize(self._sizes(*other))

    def _places_among(self, rows: int) -> list[int]:
        """How many sentences the programs for so many rows let in at once."""
        return [places for places in self._places if places <= rows]

    def _neighbours(self, rows: int, length: int) -> Iterator[tuple[int, int]]:
        """The rows and lengths that a group of so many may be given next."""
        place = self._lengths.index(length)
        near = self._lengths[max(0, place - 1) : place + 2]
        yield from ((rows, other) for other in near if other != length)
        yield from ((other, length) for other in self._numbers_of_rows if other != rows)

    def _sizes(self, rows: int, length: int) -> Sizes:
        """The sizes for sources of a length of the ladder. Their outputs are hardly ever longer."""
        most = length + self._extra
        room = most if length == self._lengths[-1] else length
        return Sizes(rows, rows, length, room, most)

    def _group(self, rows: int, length: int) -> RowGroup[int]:
        params, seed, constraints = self._of_groups
        return RowGroup(self._search, params, self._sizes(rows, length), seed, constraints)

    def _serve(self, number: int) -> None:
        """Look after the group of rows of this number until the search is closed."""
        group: RowGroup[int] | None = None
        under_way: dict[int, _Request] = {}
        while (arrivals := self._arrivals(number, len(under_way))) is not None:
            under_way |= {request.number: request for request in arrivals}
            self._num_held[number] = len(under_way)
            try:
                group = self._fitting(group, [request.sentence for request in arrivals])
                self._turn(group, arrivals, under_way)
            except Exception as error:
                for request in under_way.values():
                    request.tell(error)
                under_way.clear()
                group = None
            self._num_held[number] = len(under_way)

    def _turn(
        self, group: RowGroup[int], arrivals: Sequence[_Request], under_way: dict[int, _Request]
    ) -> None:
        """Compute a few positions, and tell who waits for them what came of it."""
        coming = [(request.number, request.sentence) for request in arrivals]
        # It stops as soon as one has ended, which somebody waits for. Where many are under way, or
        # wait to come in, a few go and come together, which costs less than one by one.
        together = max(1, len(under_way) // 8, min(self.num_waiting, self._rows // 4))
        leave = max(0, len(under_way) - together)
        group.let_in(coming, self._places_among(group.sizes.rows), self._lengths)
        progress = group.search_on(leave, self.limits.most_steps)
        for number, result in group.collect(progress):
            under_way.pop(number).tell(result)
        for number, tokens in group.so_far():
            if (listener := under_way[number].listener) is not None:
                listener(tokens)
        for number in [n for n, request in under_way.items() if request.is_over()]:
            group.release(number)
            del under_way[number]

    def _arrivals(self, number: int, num_held: int) -> list[_Request] | None:
        """The sentences that come in; it waits where there is nothing to do. None is the end.

        The first group takes them in their turns; any other one prefers short ones, whose arrays
        are smaller. What it has passed over is due before what comes later, and so the long ones
        come together in the first group.
        """
        with self._changed:
            while not (self._waiting or num_held or self._closed):
                self._changed.wait()
            if self._closed and not (self._waiting or num_held):
                return None
            free = self._rows - num_held
            first = self._due(_CHOICE * free if number else free)
            if number:
                first.sort(key=self._preference)
            for request in first[free:]:
                request.passed += 1
                self._waiting.add(request, is_back=True)
            return first[:free]

    def _due(self, most: int) -> list[_Request]:
        """Take out the sentences that are due first, up to so many; what is over is left out."""
        found: list[_Request] = []
        now = time.monotonic()
        while self._waiting and len(found) < most:
            request = self._waiting.take(now)
            if not request.is_over():
                found.append(request)
        return found

    def _preference(self, request: _Request) -> int:
        if request.passed >= _PASSES:
            return 0
        return self._length(request.sentence.length, 0)

    def _fitting(self, group: RowGroup[int] | None, arrivals: Sequence[Sentence]) -> RowGroup[int]:
        """A group whose arrays hold all sentences: as they are, of other sizes, or a new one."""
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
        """The fewest rows of a program for so many sentences; all of them for more."""
        return next((rows for rows in self._numbers_of_rows if rows >= number), self._rows)

    def _length(self, longest: int, farthest: int) -> int:
        """The length of the ladder for sources and outputs that are so long."""
        fitting = (one for one in self._lengths if one >= longest and one > farthest)
        return next(fitting, self._lengths[-1])


def _ladder(longest: int) -> Iterator[int]:
    """The lengths of sources for which there are programs, in powers of two."""
    length = rung(1)
    while length < rung(longest):
        yield length
        length *= 2
    yield length
