"""SIGTERM and Ctrl-C as a wish to stop, which the training loop grants at the end of a step."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Interrupted(BaseException):
    """Raised by a signal in work that may be dropped."""


class StopSignal:
    """The first SIGTERM or SIGINT within a `with` block; a second one ends the program at once.

    Attributes:
      number: the signal's number; 0 while there has been none.
    """

    def __init__(self) -> None:
        """Signals are received within `with`."""
        self.number = 0
        self._droppable = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        """Receive signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave signals to whoever received them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def attempt(self, work: Callable[[], _T]) -> _T | None:
        """Do work, such as an evaluation, that a signal ends at once, and that can be done again.

        Returns:
          What `work` returned; None where a signal ended it, or had come before.
        """
        try:
            self._droppable = True
            return None if self.number else work()
        except _Interrupted:
            return None
        finally:
            self._droppable = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = number
        for each, handler in self._before.items():
            signal.signal(each, handler)
        if self._droppable:
            raise _Interrupted
