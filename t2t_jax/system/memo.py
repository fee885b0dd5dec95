"""A memory of the latest results of a function, for several threads."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Memo(Generic[_Result]):
    """A function that keeps its latest results.

    Threads that ask for the same result at once wait for one of them to make it, while others go
    on. An error is raised, and not kept.
    """

    def __init__(self, make: Callable[..., _Result], most: int) -> None:
        """Keep the results of `make` by its arguments, at most so many."""
        self._make, self._most = make, most
        self._kept: dict[tuple[Hashable, ...], Future[_Result]] = {}
        self._lock = Lock()

    def __call__(self, *arguments: Hashable) -> _Result:
        """Return the result for some arguments, made now or kept."""
        with self._lock:
            known = self._kept.pop(arguments, None)
            self._kept[arguments] = future = Future() if known is None else known
            if len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        if known is None:
            try:
                future.set_result(self._make(*arguments))
            except BaseException as error:
                with self._lock:
                    self._kept.pop(arguments, None)
                future.set_exception(error)
        return future.result()

    def __len__(self) -> int:
        """Return the number of results that are kept."""
        return len(self._kept)

    def clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._kept.clear()
