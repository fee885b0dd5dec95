"""A thread-safe cache of the latest results of a function."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class Memo(Generic[_Result]):
    """A function that caches its latest results.

    Threads that ask for the same result at once wait for one of them to compute it; others do not
    wait. Errors are raised and not cached.
    """

    def __init__(self, make: Callable[..., _Result], most: int) -> None:
        """Cache at most `most` results of `make` by its arguments."""
        self._make, self._most = make, most
        self._kept: dict[tuple[Hashable, ...], Future[_Result]] = {}
        self._lock = Lock()

    def __call__(self, *arguments: Hashable) -> _Result:
        """Return the result for some arguments, computed or cached."""
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
        """Return the number of cached results."""
        return len(self._kept)
