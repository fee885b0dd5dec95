"""The figures that are known of a program before it runs, and the text that shows them.

Memory, kernels and collectives are those of the compiled program. The least time of a step follows
from them and from the vendors' figures; it is a lower bound, not a forecast.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from t2t_jax.data.rows import BatchShape
from t2t_jax.extras.compile_only.collectives import Collective
from t2t_jax.extras.compile_only.kernels import Kernel, Roofline, merged_group, roofline
from t2t_jax.parallel.hardware import Hardware
from t2t_jax.system.durations import duration

SOURCE_LENGTH = 64
"""The source positions of a sentence in a search that is compiled."""
ROOM = 128
"""The output positions for which such a search has room."""
_MOST_GROUPS = 20
"""The number of kinds of kernels that are listed by name."""


@dataclass(frozen=True)
class StepMemory:
    """The bytes that a training step takes on each device."""

    parameters: int
    """The device's part of the parameters, in float32."""
    optimizer: int
    """Its part of the optimiser's state, and of a moving average of the parameters."""
    batch: int
    """Its rows of the batch of one step, of all passes."""
    temporaries: int = 0
    """Activations, gradients and all other arrays, when they take most."""
    program: int = 0
    """The compiled code."""

    @property
    def total(self) -> int:
        """Return the sum of all fields."""
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.program


@dataclass(frozen=True)
class StepReport:
    """The figures that are known of a training step before it runs, each for one device."""

    devices: str
    """The number and the kind of the devices."""
    mesh_shape: Mapping[str, int]
    """Devices along each axis of the mesh."""
    num_parameters: int
    """The number of parameters of the whole model."""
    shape: BatchShape
    """The shape of the batch that takes most memory, which has the longest sentences."""
    passes: int
    """The number of parts in which a device computes its share of the batch."""
    compile_seconds: float
    """The seconds that the compiler took."""
    flops: float
    """The floating point operations of the matrix products, by the formulas of `config.cost`.
    Products that are computed a second time to save memory are left out."""
    hardware: Hardware | None
    """The device's published peaks; None where they are not known."""
    memory: StepMemory
    """The memory that the step takes."""
    available_bytes: int | None
    """The memory that a program may use; None where that is not known."""
    num_train_steps: int = 0
    """The number of steps of the training."""
    slices: str = ""
    """The axes of the mesh that cross the links between slices or hosts, as text; empty if there is
    only one slice or host."""
    compiler_options: str = ""
    """The flags that this package sets for XLA, as text."""
    refused: bool = False
    """Whether the compiler found that the step does not fit. Collectives and kernels are then not
    known."""
    collectives: Sequence[Collective] = ()
    """The operations in which devices send each other data."""
    kernels: Sequence[Kernel] = ()
    """All kernels of the step."""

    @property
    def fits(self) -> bool | None:
        """Return whether the step fits the memory of a device; None where that is not known."""
        if self.refused or self.available_bytes is None:
            return False if self.refused else None
        return self.memory.total <= self.available_bytes

    @cached_property
    def roofline(self) -> Roofline | None:
        """Return the least time of a step by kernels; None without known peaks, or if refused."""
        if self.hardware is None or self.refused:
            return None
        return roofline(self.kernels, self.hardware)

    @property
    def bounds(self) -> dict[str, float]:
        """Return the least seconds of a step by each limit: compute, memory and communication."""
        bound = self.roofline
        if self.hardware is None or bound is None:
            return {}
        return {
            "compute": self.flops / self.hardware.flops_per_s,
            "memory": bound.num_bytes / self.hardware.memory_bytes_per_s,
            "communication": bound.transfers_seconds,
        }


@dataclass(frozen=True)
class SearchReport:
    """The figures of one step of a search, in which every sentence gets a token."""

    mesh_shape: Mapping[str, int]
    """Devices along each axis of the mesh."""
    sentences: int
    """The number of sentences that are decoded at once, over all devices."""
    beam_size: int
    """The number of hypotheses of a sentence."""
    compile_seconds: float
    """The seconds that the compiler took."""
    kernels: Sequence[Kernel]
    """All kernels of a step."""
    weight_bytes: int
    """The bytes of the parameters that a step reads on a device, without an encoder."""
    cache_bytes: int
    """The bytes of the keys and values of sources and outputs on a device."""
    hardware: Hardware | None
    """The device's published peaks; None where they are not known."""


def format_report(report: StepReport) -> Iterator[str]:
    """Yield the lines of a report, as `t2t-jax train --compile-only` prints them."""
    rows, source, target = report.shape
    axes = " ".join(f"{name}={size}" for name, size in report.mesh_shape.items())
    yield f"{report.devices} as {axes}; compiled in {report.compile_seconds:.1f} s"
    if report.slices:
        yield report.slices
    if report.compiler_options:
        yield f"compiled with {report.compiler_options}"
    yield (
        f"{report.num_parameters:,} parameters; a step is {rows} x {source} source and "
        f"{rows} x {target} target positions, in {report.passes} pass(es)"
    )
    yield ""
    yield from _memory_lines(report)
    if report.refused:
        return
    yield ""
    yield "sent between devices in a step"
    yield from _collective_lines(report.collectives, report.mesh_shape)
    yield ""
    yield from _bound_lines(report)


def _memory_lines(report: StepReport) -> Iterator[str]:
    yield "memory of a device"
    for name, size in vars(report.memory).items():
        yield f"  {name:<14}{_binary(size):>12}"
    yield f"  {'all':<14}{_binary(report.memory.total):>12}"
    if report.available_bytes is None:
        yield "how much memory a device has is not known"
    elif report.fits:
        yield f"fits: a device has {_binary(report.available_bytes)}"
    else:
        yield f"DOES NOT FIT: a device has {_binary(report.available_bytes)}"


def _collective_lines(
    collectives: Sequence[Collective], mesh_shape: Mapping[str, int]
) -> Iterator[str]:
    """Yield a line for each kind of collectives and the axes they cross, the largest first."""
    sums: dict[str, Float[np.ndarray, " figures"]] = defaultdict(lambda: np.zeros(3))
    for each in collectives:
        label = f"{each.kind} over {', '.join(each.mesh_axes(mesh_shape)) or 'nothing'}"
        sums[label] += each.count * np.array([1, each.num_bytes, each.sent_bytes])
    for label, (count, num_bytes, sent) in sorted(sums.items(), key=lambda item: -item[1][2]):
        yield (
            f"  {label:<44}{count:>6,.0f} x, {_binary(num_bytes):>11} in all, "
            f"{_binary(sent):>11} sent by a device"
        )
    if not sums:
        yield "  nothing"


def _bound_lines(report: StepReport) -> Iterator[str]:
    hardware, bound = report.hardware, report.roofline
    if hardware is None or bound is None:
        yield (
            f"{report.flops:.3g} operations of a device in matrix products; no bound on the time "
            "of a step, because the peaks of this device are not known"
        )
        return
    positions = report.shape.rows * (report.shape.source_length + report.shape.target_length)
    bounds = report.bounds
    waiting = bound.waiting_seconds * 1e3
    yield (
        f"a step takes at least {bound.seconds * 1e3:.1f} ms, kernel by kernel: at most "
        f"{positions / bound.seconds:,.0f} positions/s, source and target, padding included, and "
        f"{bounds['compute'] / bound.seconds:.1%} of the peak of matrix products"
    )
    least = duration(report.num_train_steps * bound.seconds)
    yield f"{report.num_train_steps:,} steps take at least {least}"
    yield "what each would take alone"
    for name, rate in {
        "compute": f"{report.flops:.3g} operations at {hardware.flops_per_s:.3g}/s",
        "memory": f"{_binary(bound.num_bytes)} at {hardware.memory_bytes_per_s / 1e9:,.0f} GB/s",
        "communication": (
            f"at {hardware.sent_bytes_per_s / 1e9:,.0f} GB/s, all links together; "
            f"{waiting:.2f} ms of it not behind other work"
        ),
    }.items():
        yield f"  {name:<14}{bounds[name] * 1e3:>10.2f} ms   {rate}"
    yield ""
    yield from _kernel_lines(bound)


def format_search(report: SearchReport) -> Iterator[str]:
    """Yield the lines of a report, as `t2t-jax train --compile-only` prints them."""
    how = f"a beam of {report.beam_size}" if report.beam_size > 1 else "greedy search"
    yield (
        f"a step of {how} for {report.sentences} sentences, {SOURCE_LENGTH} source positions and "
        f"room for {ROOM} of output; compiled in {report.compile_seconds:.1f} s"
    )
    own = report.weight_bytes + report.cache_bytes
    moved = sum(kernel.count * kernel.num_bytes for kernel in report.kernels)
    yield (
        f"it moves {_binary(moved)}, {moved / own:.2f} times the weights "
        f"({_binary(report.weight_bytes)}) and keys and values ({_binary(report.cache_bytes)})"
    )
    yield "sent between devices in a step of the search"
    sent = [kernel.sent for kernel in report.kernels if kernel.sent]
    yield from _collective_lines(sent, report.mesh_shape)
    if report.hardware is not None:
        bound = roofline(report.kernels, report.hardware)
        yield (
            f"it takes at least {bound.seconds * 1e3:.3f} ms, kernel by kernel: at most "
            f"{report.sentences / bound.seconds:,.0f} tokens/s"
        )
        yield from _kernel_lines(bound)


def _kernel_lines(bound: Roofline) -> Iterator[str]:
    """Yield the lines of a table of the kinds of kernels, those that take longest first."""
    yield f"{sum(group.starts for group in bound.groups):,} kernels, the dearest kinds first"
    yield f"  {'least time':>13}{'share':>8}{'started':>10}{'bytes':>13}{'operations':>12}"
    groups, rest = list(bound.groups[:_MOST_GROUPS]), bound.groups[_MOST_GROUPS:]
    if rest:
        groups.append(merged_group(f"{len(rest)} other kinds", rest))
    for group in groups:
        yield (
            f"  {group.seconds * 1e3:>10.3f} ms{group.seconds / bound.seconds:>8.1%}"
            f"{group.starts:>10,}{_binary(group.num_bytes):>13}{group.flops:>12.3g}  {group.label}"
        )


def _binary(size: float) -> str:
    """Return a number of bytes as text, in the largest unit in which it is at least 1."""
    units = ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:,.{0 if units[0] == 'B' else 2}f} {units[0]}"
