"""The order in which waiting sentences come in: clients take turns, and so do their requests.

Each client has one sentence in the queue, and the client's requests take turns for that place. When
the sentence comes in, the client's next sentence joins the queue at the end, as if it had been sent
at that moment. So a client with one sentence waits for one sentence of each client before it,
however many requests these have sent; and a request waits for one sentence of each earlier request
of its client, however many sentences these have. Within a request, and among clients with one
sentence each, sentences come in as they are due: in the order of arrival, except that a shorter one
overtakes a longer one that has come a little earlier.
"""

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar


@dataclass(order=True, kw_only=True)
class Waiting:
    """An item that waits; items of one request are ordered as they come in."""

    due: float
    """The time at which the item is due: that of its arrival, plus `patience`."""
    number: int
    """The number of the item's arrival."""
    patience: float = field(compare=False)
    """The seconds from arrival to `due`, in which items of less patience can overtake this one."""
    shares: tuple[Hashable, ...] = field(compare=False)
    """The groups that take turns, such as the item's client and then its request. All items of a
    queue have the same number of groups."""
    turns: dict[int, float] = field(compare=False, default_factory=dict)
    """The times at which the item was due in the queue of all clients (0), and in that of its
    client's requests (1), set when it is taken out."""


_Kind = TypeVar("_Kind", bound=Waiting)


class _Line(list[_Kind]):
    """A heap of the waiting items of one request, by the order in which they are due."""

    def first(self) -> _Kind:
        """Return the item that is due first."""
        return self[0]

    def add(self, one: _Kind, *, is_back: bool) -> None:
        """Add an item, which may have been taken out before."""
        heapq.heappush(self, one)

    def take(self, now: float) -> _Kind:
        """Take out the item that is due first."""
        return heapq.heappop(self)

    def leave_out(self, is_over: Callable[[_Kind], bool]) -> None:
        """Remove all items that are over."""
        self[:] = [one for one in self if not is_over(one)]
        heapq.heapify(self)


class Turns(Generic[_Kind]):
    """A queue in which clients take turns, and the requests of each client as well."""

    def __init__(self, level: int = 0) -> None:
        """Make an empty queue.

        Args:
          level: the index in `Waiting.shares` of the groups that take turns.
        """
        self._level = level
        self._lines: dict[Hashable, Turns[_Kind] | _Line[_Kind]] = {}
        self._places: dict[Hashable, tuple[float, int]] = {}  # in the queue, of each line
        self._queue: list[tuple[float, int, Hashable]] = []  # a heap, also of places left since
        self._numbers, self._length = count(), 0

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return self._length

    def first(self) -> _Kind:
        """Return the item that is due first, without taking it out.

        Raises:
          IndexError: no item waits.
        """
        return self._lines[self._next()].first()

    def add(self, one: _Kind, *, is_back: bool = False) -> None:
        """Add an item.

        Args:
          is_back: whether the item has been taken out, and gets back the turn that it had.
        """
        key = one.shares[self._level]
        if key not in self._lines:
            is_last = self._level + 1 == len(one.shares)
            self._lines[key] = _Line() if is_last else Turns(self._level + 1)
        self._lines[key].add(one, is_back=is_back)
        self._length += 1
        self._enter(key, one.turns[self._level] if is_back else one.due)

    def take(self, now: float) -> _Kind:
        """Take out the item that is due first.

        Raises:
          IndexError: no item waits.
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
        """Remove all items that are over."""
        for key, line in [*self._lines.items()]:
            line.leave_out(is_over)
            if not line:
                del self._lines[key], self._places[key]
        self._length = sum(map(len, self._lines.values()))

    def _next(self) -> Hashable:
        """Return the client or request whose turn it is."""
        while self._places.get(self._queue[0][2]) != self._queue[0][:2]:
            heapq.heappop(self._queue)
        return self._queue[0][2]

    def _enter(self, key: Hashable, due: float) -> None:
        """Give a client or request its place in the queue, unless it has an earlier one."""
        if key not in self._places or due < self._places[key][0]:
            place = due, next(self._numbers)
            self._places[key] = place
            heapq.heappush(self._queue, (*place, key))
