"""A thread-safe cache of the latest results of a function."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Memo(Generic[_Result]):
    """A function that caches its latest results.

    If several threads request the same result, one thread computes it and the others wait. Errors
    are raised and not cached.
    """

    def __init__(self, make: Callable[..., _Result], max_size: int) -> None:
        """Cache at most `max_size` results of `make`, keyed by its arguments."""
        self._make, self._max_size = make, max_size
        self._cache: dict[tuple[Hashable, ...], Future[_Result]] = {}
        self._lock = Lock()

    def __call__(self, *arguments: Hashable) -> _Result:
        """Return the cached result for these arguments, or compute it."""
        with self._lock:
            old_future = self._cache.pop(arguments, None)
            self._cache[arguments] = future = Future() if old_future is None else old_future
            if len(self._cache) > self._max_size:
                del self._cache[next(iter(self._cache))]
        if old_future is None:
            try:
                future.set_result(self._make(*arguments))
            except BaseException as error:
                with self._lock:
                    self._cache.pop(arguments, None)
                future.set_exception(error)
        return future.result()
