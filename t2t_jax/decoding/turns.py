"""The order in which sentences that wait come in: clients take turns, and so do their requests.

Of each client one sentence stands in the queue, and of its requests those of each one take turns
for that place. When it comes in, the next of its client joins the queue at its end, as if it had
been sent at that moment. So who asks for one sentence waits for one of each client before, however
many requests these have sent; and of the own requests, for one of each before, however many
sentences these have. Within a request, and among clients of one sentence, they come in as they are
due: in the order of their arrival, but that a longer one lets shorter ones overtake it that come a
little later.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar


@dataclass(order=True, kw_only=True)
class Waiting:
    """What waits; in the order in which it comes in among others of its request."""

    due: float
    """Time at which it is due: when it arrived, and `patience` later."""
    number: int
    """Number of its arrival."""
    patience: float = field(compare=False)
    """Seconds by which it lets others overtake it."""
    shares: tuple[Hashable, ...] = field(compare=False)
    """What it has in common with others, as its client and its request: those of each take turns.
    All that wait in a queue have as many."""
    turns: dict[int, float] = field(compare=False, default_factory=dict)
    """Times at which it was due in the queue of all clients, and in that of its client's requests,
    once it has come in."""


_Kind = TypeVar("_Kind", bound=Waiting)


class _Line(Generic[_Kind]):
    """Those of one request, in the order in which they are due."""

    def __init__(self) -> None:
        self._waiting: list[_Kind] = []  # a heap

    def __len__(self) -> int:
        return len(self._waiting)

    def first(self) -> _Kind:
        """The one that is due first."""
        return self._waiting[0]

    def add(self, one: _Kind, *, is_back: bool) -> None:
        """Have one wait, also one that has been taken out."""
        del is_back
        heapq.heappush(self._waiting, one)

    def take(self, now: float) -> _Kind:
        """Take out the one that is due first."""
        del now
        return heapq.heappop(self._waiting)

    def leave_out(self, is_over: Callable[[_Kind], bool]) -> None:
        """Take out all of a kind."""
        self._waiting = [one for one in self._waiting if not is_over(one)]
        heapq.heapify(self._waiting)


class Turns(Generic[_Kind]):
    """A queue in which clients take turns; within that of one client, its requests do."""

    def __init__(self, level: int = 0) -> None:
        """Make one that is empty.

        Args:
          level: the place in `Waiting.shares` of what takes turns.
        """
        self._level = level
        self._lines: dict[Hashable, Turns[_Kind] | _Line[_Kind]] = {}
        self._places: dict[Hashable, tuple[float, int]] = {}  # in the queue, of each line
        self._queue: list[tuple[float, int, Hashable]] = []  # a heap, also of places left since
        self._numbers, self._length = count(), 0

    def __len__(self) -> int:
        """The number of those that wait."""
        return self._length

    def first(self) -> _Kind:
        """The one that is due first, which goes on waiting.

        Raises:
          IndexError: none waits.
        """
        return self._lines[self._next()].first()

    def add(self, one: _Kind, *, is_back: bool = False) -> None:
        """Have one wait.

        Args:
          one: what has arrived.
          is_back: whether it has been taken out, and waits on as if it had not been.
        """
        key = one.shares[self._level]
        if key not in self._lines:
            is_last = self._level + 1 == len(one.shares)
            self._lines[key] = _Line() if is_last else Turns(self._level + 1)
        self._lines[key].add(one, is_back=is_back)
        self._length += 1
        self._enter(key, one.turns[self._level] if is_back else one.due)

    def take(self, now: float) -> _Kind:
        """Take out the one that is due first.

        Args:
          now: the time.

        Raises:
          IndexError: none waits.
        """
        key = self._next()
        one = self._lines[key].take(now)
        one.turns[self._level] = heapq.heappop(self._queue)[0]
        self._length -= 1
        del self._places[key]
        if left := self._lines[key]:
            self._enter(key, now + left.first().patience)
        else:
            del self._lines[key]
        return one

    def leave_out(self, is_over: Callable[[_Kind], bool]) -> None:
        """Take out all of a kind.

        Args:
          is_over: whether one is of that kind.
        """
        for key, line in [*self._lines.items()]:
            line.leave_out(is_over)
            if not line:
                del self._lines[key], self._places[key]
        self._length = sum(map(len, self._lines.values()))

    def _next(self) -> Hashable:
        """The client or request whose turn it is."""
        while self._places.get(self._queue[0][2]) != self._queue[0][:2]:
            heapq.heappop(self._queue)
        return self._queue[0][2]

    def _enter(self, key: Hashable, due: float) -> None:
        """Give a client or request its place in the queue, unless it has an earlier one."""
        if key not in self._places or due < self._places[key][0]:
            place = due, next(self._numbers)
            self._places[key] = place
            heapq.heappush(self._queue, (*place, key))
