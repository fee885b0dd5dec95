"""The least time of a compiled program, kernel by kernel, on devices that need not be there.

The least time is a bound from a compiler, not a timing. Each kernel takes at least the time of its
matrix products at the peak of the device, or of its reads and writes at the speed of the memory,
whichever is longer ("Roofline", Williams et al. 2009), and its start. Transfers to other devices
are hidden behind the kernels that run meanwhile. For TPUs, XLA's compiler notes the cycles that it
expects of a kernel, and these are taken instead; it has none for kernels written in Pallas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from t2t_jax.extras.compile_only.kernels import Kernel
from t2t_jax.parallel.hardware import Hardware

_REACHED = 0.85
"""The share of a GPU's published memory bandwidth that its best kernels reach."""
_START = 2e-6
"""The seconds that a GPU takes to start a kernel."""


class KernelGroup(NamedTuple):
    """All kernels of one label."""

    label: str
    """The module and the operation."""
    seconds: float
    """The least time of all kernels together."""
    starts: int
    """How often the kernels are started."""
    num_bytes: float
    """The bytes that the kernels read and write."""
    flops: float
    """The floating point operations of the kernels' matrix products."""


@dataclass(frozen=True)
class Roofline:
    """The least time of a program."""

    groups: Sequence[KernelGroup]
    """The kernels by label, without transfers, those that take longest first."""
    transfers_seconds: float
    """The time in which the devices send each other data."""
    waiting_seconds: float
    """The part of that time in which the devices do nothing else."""

    @property
    def seconds(self) -> float:
        """Return the least time of one run of the program."""
        return sum(group.seconds for group in self.groups) + self.waiting_seconds

    @property
    def num_bytes(self) -> float:
        """Return the bytes that the program reads and writes."""
        return sum(group.num_bytes for group in self.groups)

    @property
    def launches(self) -> int:
        """Return how many kernels are started."""
        return sum(group.starts for group in self.groups)


def roofline(kernels: Sequence[Kernel], hardware: Hardware) -> Roofline:
    """Compute the least time of a program on a kind of device, from its kernels in their order."""
    times = [0.0 if kernel.sent else least_seconds(kernel, hardware) for kernel in kernels]
    groups: dict[str, list[KernelGroup]] = {}
    transfers = waiting = 0.0
    for place, (kernel, seconds) in enumerate(zip(kernels, times, strict=True)):
        if kernel.sent:
            # Kernels that run meanwhile may be in a loop, and run more often than the transfer.
            behind = slice(place + 1, place + 1 + kernel.meanwhile)
            hidden = sum(
                time * other.count / kernel.count
                for time, other in zip(times[behind], kernels[behind], strict=True)
            )
            sending = least_seconds(kernel, hardware)
            transfers += kernel.count * sending
            waiting += kernel.count * max(0.0, sending - hidden)
            continue
        count, label = kernel.count, kernel.label
        sizes = count * kernel.num_bytes, count * kernel.flops
        groups.setdefault(label, []).append(KernelGroup(label, count * seconds, count, *sizes))
    sums = [together(label, of_label) for label, of_label in groups.items()]
    return Roofline(sorted(sums, key=lambda group: -group.seconds), transfers, waiting)


def together(label: str, groups: Sequence[KernelGroup]) -> KernelGroup:
    """Return several groups as one, with another label."""
    return KernelGroup(label, *map(sum, zip(*(group[1:] for group in groups), strict=True)))


def least_seconds(kernel: Kernel, hardware: Hardware) -> float:
    """Compute the least time of one run of a kernel; for a transfer, it is the time of sending."""
    if kernel.sent:
        return kernel.sent.sent_bytes / hardware.sent_bytes_per_s
    if hardware.clock_hz is not None and (kernel.cycles is not None or kernel.beside):
        return (kernel.cycles or 0) / hardware.clock_hz
    share, start = (_REACHED, _START) if hardware.clock_hz is None else (1.0, 0.0)
    moving = kernel.num_bytes / (share * hardware.memory_bytes_per_s)
    return max(kernel.flops / hardware.flops_per_s, moving) + start
