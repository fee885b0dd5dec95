"""Reports on the memory and the minimum time of a compiled program.

The minimum time follows from the compiled kernels and from vendors' peak rates. It is a lower
bound, not a forecast.
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
"""Number of source positions of a sentence in a compiled decoding step."""
ROOM = 128
"""Number of output positions in the cache of a compiled decoding step."""
_MAX_GROUPS = 20
"""Number of kinds of kernels that a report lists by name."""


@dataclass(frozen=True)
class StepMemory:
    """The bytes that a training step needs on each device."""

    parameters: int
    """Shard of the parameters, in float32."""
    optimizer: int
    """Shard of the optimizer state and of the moving average of the parameters."""
    batch: int
    """Shard of the batch of one step, of all passes."""
    temporaries: int = 0
    """Peak size of activations, gradients and all other arrays."""
    program: int = 0
    """Compiled code."""

    @property
    def total(self) -> int:
        """Return the bytes that a training step needs in all."""
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.program


@dataclass(frozen=True)
class StepReport:
    """Memory, kernels and collectives of a compiled training step, per device."""

    devices: str
    """Number and kind of the devices."""
    mesh_shape: Mapping[str, int]
    """Number of devices along each axis of the mesh."""
    num_parameters: int
    """Number of parameters of the whole model."""
    shape: BatchShape
    """Shape of the batch with the longest sentences, which needs most memory."""
    passes: int
    """Number of passes over the parts of a device's batch."""
    compile_seconds: float
    flops: float
    """FLOPs of the matmuls, by the formulas of `config.cost`, without rematerialization."""
    hardware: Hardware | None
    """Published peak rates of the device; None if unknown."""
    memory: StepMemory
    """Memory that the step needs."""
    available_bytes: int | None
    """Memory that a program may use; None if unknown."""
    num_train_steps: int = 0
    """Number of steps of the training run."""
    slices: str = ""
    """Description of the mesh axes that cross slices or hosts; empty for one slice or host."""
    compiler_options: str = ""
    """Description of the XLA flags that this package sets."""
    exceeds_memory: bool = False
    """Whether the compiler ran out of device memory. Collectives and kernels are then unknown."""
    collectives: Sequence[Collective] = ()
    """Operations in which devices exchange data."""
    kernels: Sequence[Kernel] = ()

    @property
    def fits(self) -> bool | None:
        """Return whether the step fits in the memory of a device; None if unknown."""
        if self.exceeds_memory or self.available_bytes is None:
            return False if self.exceeds_memory else None
        return self.memory.total <= self.available_bytes

    @cached_property
    def roofline(self) -> Roofline | None:
        """Return the minimum time of a step, computed from its kernels.

        None means unknown hardware or too little memory.
        """
        if self.hardware is None or self.exceeds_memory:
            return None
        return roofline(self.kernels, self.hardware)

    @property
    def bounds(self) -> dict[str, float]:
        """Return the minimum seconds of a step: compute, memory, communication; {} if unknown."""
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
    """Memory and kernels of a compiled decoding step, which adds one token to every hypothesis."""

    mesh_shape: Mapping[str, int]
    """Number of devices along each axis of the mesh."""
    sentences: int
    """Number of sentences that all devices decode at once."""
    beam_size: int
    """Number of hypotheses of a sentence."""
    compile_seconds: float
    kernels: Sequence[Kernel]
    weight_bytes: int
    """Bytes of the parameters that a step reads on a device, without an encoder."""
    cache_bytes: int
    """Bytes of the keys and values of sources and outputs on a device."""
    hardware: Hardware | None
    """Published peak rates of the device; None if unknown."""


def format_report(report: StepReport) -> Iterator[str]:
    """Yield the lines of a report on a training step."""
    num_rows, source_length, target_length = report.shape
    axes = " ".join(f"{name}={size}" for name, size in report.mesh_shape.items())
    yield f"{report.devices} as {axes}; compiled in {report.compile_seconds:.1f} s"
    if report.slices:
        yield report.slices
    if report.compiler_options:
        yield f"compiled with {report.compiler_options}"
    yield (
        f"{report.num_parameters:,} parameters; a step is {num_rows} x {source_length} source and "
        f"{num_rows} x {target_length} target positions, in {report.passes} pass(es)"
    )
    yield ""
    yield from _memory_lines(report)
    if report.exceeds_memory:
        return
    yield ""
    yield "communication between devices in a step"
    yield from _collective_lines(report.collectives, report.mesh_shape)
    yield ""
    yield from _bound_lines(report)


def _memory_lines(report: StepReport) -> Iterator[str]:
    yield "memory per device"
    for name, num_bytes in vars(report.memory).items():
        yield f"  {name:<14}{_bytes(num_bytes):>12}"
    yield f"  {'total':<14}{_bytes(report.memory.total):>12}"
    if report.available_bytes is None:
        yield "the memory of a device is unknown"
    elif report.fits:
        yield f"fits: a device has {_bytes(report.available_bytes)}"
    else:
        yield f"DOES NOT FIT: a device has {_bytes(report.available_bytes)}"


def _collective_lines(
    collectives: Sequence[Collective], mesh_shape: Mapping[str, int]
) -> Iterator[str]:
    sums: dict[str, Float[np.ndarray, " figures"]] = defaultdict(lambda: np.zeros(3))
    for collective in collectives:
        label = f"{collective.kind} over {', '.join(collective.mesh_axes(mesh_shape)) or 'no axis'}"
        figures = np.array([1, collective.num_bytes, collective.sent_bytes])
        sums[label] += collective.count * figures
    for label, (count, num_bytes, sent_bytes) in sorted(sums.items(), key=lambda item: -item[1][2]):
        yield (
            f"  {label:<44}{count:>6,.0f} x, {_bytes(num_bytes):>11} in total, "
            f"{_bytes(sent_bytes):>11} sent per device"
        )
    if not sums:
        yield "  none"


def _bound_lines(report: StepReport) -> Iterator[str]:
    hardware, bound = report.hardware, report.roofline
    if hardware is None or bound is None:
        yield (
            f"{report.flops:.3g} FLOPs per device in matmuls; no lower bound on the time of a "
            "step, because the peak rates of this device are unknown"
        )
        return
    num_positions = report.shape.rows * (report.shape.source_length + report.shape.target_length)
    bounds = report.bounds
    waiting_ms = bound.waiting_seconds * 1e3
    yield (
        f"a step takes at least {bound.seconds * 1e3:.1f} ms over all kernels: at most "
        f"{num_positions / bound.seconds:,.0f} positions/s (source and target, with padding) and "
        f"{bounds['compute'] / bound.seconds:.1%} of the peak FLOP/s of matmuls"
    )
    min_duration = duration(report.num_train_steps * bound.seconds)
    yield f"{report.num_train_steps:,} steps take at least {min_duration}"
    yield "minimum time if only one resource limited the step"
    for name, rate in {
        "compute": f"{report.flops:.3g} FLOPs at {hardware.flops_per_s:.3g} FLOP/s",
        "memory": f"{_bytes(bound.num_bytes)} at {hardware.memory_bytes_per_s / 1e9:,.0f} GB/s",
        "communication": (
            f"at {hardware.sent_bytes_per_s / 1e9:,.0f} GB/s, all links together; "
            f"{waiting_ms:.2f} ms of it do not overlap with other work"
        ),
    }.items():
        yield f"  {name:<14}{bounds[name] * 1e3:>10.2f} ms   {rate}"
    yield ""
    yield from _kernel_lines(bound)


def format_search(report: SearchReport) -> Iterator[str]:
    """Yield the lines of a report on a decoding step."""
    beam_size = report.beam_size
    algorithm = f"beam search with beam size {beam_size}" if beam_size > 1 else "greedy search"
    yield (
        f"a step of {algorithm} for {report.sentences} sentences, {SOURCE_LENGTH} source positions "
        f"and room for {ROOM} output positions; compiled in {report.compile_seconds:.1f} s"
    )
    min_bytes = report.weight_bytes + report.cache_bytes
    moved_bytes = sum(kernel.count * kernel.num_bytes for kernel in report.kernels)
    yield (
        f"a step moves {_bytes(moved_bytes)}, {moved_bytes / min_bytes:.2f} times the parameters "
        f"({_bytes(report.weight_bytes)}) and keys and values ({_bytes(report.cache_bytes)})"
    )
    yield "communication between devices in a step of the search"
    collectives = [kernel.transfer for kernel in report.kernels if kernel.transfer]
    yield from _collective_lines(collectives, report.mesh_shape)
    if report.hardware is not None:
        bound = roofline(report.kernels, report.hardware)
        yield (
            f"a step takes at least {bound.seconds * 1e3:.3f} ms over all kernels: at most "
            f"{report.sentences / bound.seconds:,.0f} tokens/s"
        )
        yield from _kernel_lines(bound)


def _kernel_lines(bound: Roofline) -> Iterator[str]:
    yield f"{sum(group.starts for group in bound.groups):,} kernels, slowest kinds first"
    yield f"  {'min time':>13}{'share':>8}{'launches':>10}{'bytes':>13}{'FLOPs':>12}"
    groups, other_groups = list(bound.groups[:_MAX_GROUPS]), bound.groups[_MAX_GROUPS:]
    if other_groups:
        groups.append(merged_group(f"{len(other_groups)} other kinds", other_groups))
    for group in groups:
        yield (
            f"  {group.seconds * 1e3:>10.3f} ms{group.seconds / bound.seconds:>8.1%}"
            f"{group.starts:>10,}{_bytes(group.num_bytes):>13}{group.flops:>12.3g}  {group.label}"
        )


def _bytes(size: float) -> str:
    units = ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:,.{0 if units[0] == 'B' else 2}f} {units[0]}"
