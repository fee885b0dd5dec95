"""The memory, files and threads of a process, as Linux's /proc has them, and memory's growth."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """The memory, files and threads of a process at one moment."""

    minute: float
    """The minutes since the start."""
    memory_mb: float
    """The resident memory, in MB of 2^20 bytes."""
    files: int
    """The number of open files, sockets among them."""
    threads: int


def sample(process: int, minute: float) -> Sample:
    """Sample the memory, files and threads of a process.

    Args:
      process: the id of the process.
      minute: the minutes since the start.
    """
    place = Path("/proc") / str(process)
    lines = (place / "status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    memory = int(fields["VmRSS"].split()[0]) / 1024
    return Sample(minute, memory, len([*(place / "fd").iterdir()]), int(fields["Threads"]))


def slope(samples: Sequence[Sample]) -> float:
    """Compute the MB by which memory grows in an hour, on the straight line of least squares.

    Args:
      samples: at least two samples, at different minutes.
    """
    hours = [one.minute / 60 for one in samples]
    return statistics.linear_regression(hours, [one.memory_mb for one in samples]).slope
