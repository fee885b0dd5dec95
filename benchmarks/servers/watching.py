"""What a process takes, as Linux tells it in /proc, and whether it takes more and more."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """What a process takes at one moment."""

    minute: float
    """Minutes since the start."""
    memory_mb: float
    """The memory that is resident, in MB of 2^20 bytes."""
    files: int
    """Open files, sockets among them."""
    threads: int


def sample(process: int, minute: float) -> Sample:
    """What a process takes now.

    Args:
      process: its id.
      minute: minutes since the start.
    """
    place = Path("/proc") / str(process)
    lines = (place / "status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    memory = int(fields["VmRSS"].split()[0]) / 1024
    return Sample(minute, memory, len([*(place / "fd").iterdir()]), int(fields["Threads"]))


def slope(samples: Sequence[Sample]) -> float:
    """By how many MB the memory grows in an hour, on the straight line of least squares.

    Args:
      samples: at least two of them, at different minutes.
    """
    hours = [one.minute / 60 for one in samples]
    return statistics.linear_regression(hours, [one.memory_mb for one in samples]).slope
