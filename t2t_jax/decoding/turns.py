"""The order in which sentences that wait come in: those of one request take turns with others.

Of each request one sentence stands in the queue. When it comes in, the next of its request joins
the queue at its end, as if it had been sent at that moment. So who asks for one sentence waits for
one of each request before, however many these have. Within a request, and among requests of one
sentence, they come in as they are due: in the order of their arrival, but that a longer one lets
shorter ones overtake it that come a little later.
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
    request: Hashable = field(compare=False)
    """What it has in common with others of its request."""
    turn: float = field(compare=False, default=0.0)
    """Time at which it was due in the queue of all requests, once it has come in."""


_Kind = TypeVar("_Kind", bound=Waiting)


class Turns(Generic[_Kind]):
    """A queue in which requests take turns."""

    def __init__(self) -> None:
        """Make one that is empty."""
        self._of_request: dict[Hashable, list[_Kind]] = {}  # heaps
        self._places: dict[Hashable, tuple[float, int]] = {}  # in the queue, of each request
        self._queue: list[tuple[float, int, Hashable]] = []  # a heap, also of places left since
        self._numbers, self._length = count(), 0

    def __len__(self) -> int:
        """The number of those that wait."""
        return self._length

    def add(self, one: _Kind) -> None:
        """Have one wait.

        Args:
          one: what has arrived.
        """
        self._keep(one, one.due)

    def put_back(self, one: _Kind) -> None:
        """Have one wait on that has been taken out, as if it had not been.

        Args:
          one: what was taken out.
        """
        self._keep(one, one.turn)

    def take(self, now: float) -> _Kind:
        """Take out the one that is due first.

        Args:
          now: the time.

        Raises:
          IndexError: none waits.
        """
        while True:
            due, number, request = heapq.heappop(self._queue)
            if self._places.get(request) == (due, number):
                break
        del self._places[request]
        waiting = self._of_request[request]
        one = heapq.heappop(waiting)
        self._length -= 1
        one.turn = due
        if waiting:
            self._enter(request, now + waiting[0].patience)
        else:
            del self._of_request[request]
        return one

    def leave_out(self, is_over: Callable[[_Kind], bool]) -> None:
        """Take out all of a kind.

        Args:
          is_over: whether one is of that kind.
        """
        for request, waiting in [*self._of_request.items()]:
            left = [one for one in waiting if not is_over(one)]
            heapq.heapify(left)
            self._length -= len(waiting) - len(left)
            if left:
                self._of_request[request] = left
            else:
                del self._of_request[request], self._places[request]

    def _keep(self, one: _Kind, due: float) -> None:
        heapq.heappush(self._of_request.setdefault(one.request, []), one)
        self._length += 1
        self._enter(one.request, due)

    def _enter(self, request: Hashable, due: float) -> None:
        """Give a request its place in the queue, unless it has an earlier one."""
        if request not in self._places or due < self._places[request][0]:
            place = due, next(self._numbers)
            self._places[request] = place
            heapq.heappush(self._queue, (*place, request))
