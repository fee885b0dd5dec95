"""Detect a process that keeps the others waiting, by each process's own work before each step.

All processes take equally long for a step, as they wait for each other in its collectives. So each
reports how long it worked itself: on its batch, its log, its Python. This module compares the
times.
"""

from collections import deque

import numpy as np
from jaxtyping import Float

_WINDOW = 10
_UNUSUAL = 2  # steps of a window that may be different, such as one in which the log is written
_LEAST_SECONDS, _LEAST_SHARE = 0.01, 0.1


class SlowHosts:
    """The times of the processes in the last steps."""

    def __init__(self) -> None:
        """Begin without any times."""
        self._times: deque[Float[np.ndarray, " processes"]] = deque(maxlen=_WINDOW)
        self._named: set[int] = set()

    def slowest(
        self, seconds: Float[np.ndarray, " processes"] | None, seconds_per_step: float
    ) -> tuple[int, float] | None:
        """Return a process that is slower than all others beyond noise, once for each process.

        In 9 of the last 10 steps it took longer than any other process did in 9 of them, by a tenth
        of a step, or by 10 ms if that is more.

        Args:
          seconds: each process's work for a step; None for a single process.
          seconds_per_step: the time of a step, including waits.

        Returns:
          Its index, and the seconds of a step by which it is slower.
        """
        if seconds is None:
            return None
        self._times.append(seconds)
        if len(self._times) < _WINDOW:
            return None
        times = np.sort(np.stack(self._times), axis=0)  # [steps, processes]
        least, most = times[_UNUSUAL - 1], times[-_UNUSUAL]
        slow = int(np.argmax(least))
        behind = float(least[slow] - np.delete(most, slow).max())
        if slow in self._named or behind < max(_LEAST_SECONDS, _LEAST_SHARE * seconds_per_step):
            return None
        self._named.add(slow)
        return slow, behind


def slow_host_warning(process: int, host: str, behind: float) -> str:
    """Return the warning about a process that takes `behind` seconds longer for a step."""
    return (
        f"process {process} on {host} keeps the others waiting: its host works "
        f"{1000 * behind:,.0f} ms longer before each step than any other; see what else runs "
        "there, and how fast it reads"
    )
