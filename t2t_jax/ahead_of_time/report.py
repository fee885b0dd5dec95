"""The figures that are known of a training step before it runs, and how they are printed.

Memory and collectives are those of the compiled program. The shortest time of a step follows from
them and from the vendors' figures: a bound from below, not a forecast.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from t2t_jax.ahead_of_time.collectives import Collective
from t2t_jax.ahead_of_time.hardware import Hardware
from t2t_jax.data.rows import BatchShape


@dataclass(frozen=True)
class StepMemory:
    """Bytes that a training step takes on each device.

    Attributes:
      parameters: the device's part of the parameters, in float32.
      optimizer: its part of what the optimiser keeps, and of a moving average of the parameters.
      batch: its rows of the batch of one step, of all passes.
      temporaries: activations, gradients and all other arrays, at the moment when they take most.
      program: the compiled code.
    """

    parameters: int
    optimizer: int
    batch: int
    temporaries: int = 0
    program: int = 0

    @property
    def total(self) -> int:
        """The sum of all of these."""
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.program


@dataclass(frozen=True)
class StepReport:
    """The figures that are known of a training step before it runs, each for one device.

    Attributes:
      devices: how many there are, and their kind.
      mesh_shape: devices along each axis of the mesh.
      num_parameters: the number of parameters of the whole model.
      shape: the shape of the batch that takes most memory, which has the longest sentences.
      passes: the number of parts in which a device computes its share of the batch.
      compile_seconds: the seconds that the compiler took.
      flops: the floating point operations of the matrix products, by the formulas of
        `modules.cost`. Products that are computed a second time to save memory are left out.
      hardware: the device's published peaks; None where they are not known.
      memory: the memory that the step takes.
      available_bytes: the memory that a program may use; None where that is not known.
      refused: whether the compiler found that the step does not fit. The figures below are then
        not known.
      moved_bytes: a lower bound of the bytes that are read from memory and written to it.
      collectives: the operations in which devices send each other data.
    """

    devices: str
    mesh_shape: Mapping[str, int]
    num_parameters: int
    shape: BatchShape
    passes: int
    compile_seconds: float
    flops: float
    hardware: Hardware | None
    memory: StepMemory
    available_bytes: int | None
    refused: bool = False
    moved_bytes: int = 0
    collectives: Sequence[Collective] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the step fits the memory of a device; None where that is not known."""
        if self.refused or self.available_bytes is None:
            return False if self.refused else None
        return self.memory.total <= self.available_bytes

    @property
    def bounds(self) -> dict[str, float]:
        """The least seconds of a step by each of its limits: compute, memory and communication."""
        if self.hardware is None or self.refused:
            return {}
        sent = sum(each.count * each.sent_bytes for each in self.collectives)
        return {
            "compute": self.flops / self.hardware.flops_per_s,
            "memory": self.moved_bytes / self.hardware.memory_bytes_per_s,
            "communication": sent / self.hardware.sent_bytes_per_s,
        }

    @property
    def bound_by(self) -> str | None:
        """The name of the longest bound; None where there are none."""
        bounds = self.bounds
        return max(bounds, key=lambda name: bounds[name], default=None)


def format_report(report: StepReport) -> Iterator[str]:
    """Yield the lines of a report, as `train.py --compile-only` prints them."""
    rows, source, target = report.shape
    axes = " ".join(f"{name}={size}" for name, size in report.mesh_shape.items())
    yield f"{report.devices} as {axes}; compiled in {report.compile_seconds:.1f} s"
    yield (
        f"{report.num_parameters:,} parameters; a step is {rows} x {source} source and "
        f"{rows} x {target} target positions, in {report.passes} pass(es)"
    )
    yield ""
    yield from _memory_lines(report)
    if report.refused:
        return
    yield ""
    yield from _collective_lines(report)
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


def _collective_lines(report: StepReport) -> Iterator[str]:
    yield "sent between devices in a step"
    sums: dict[str, list[float]] = {}
    for each in report.collectives:
        label = f"{each.kind} over {', '.join(each.mesh_axes(report.mesh_shape)) or 'nothing'}"
        total = sums.setdefault(label, [0, 0, 0])
        for place, value in enumerate((1, each.num_bytes, each.sent_bytes)):
            total[place] += each.count * value
    for label, (count, num_bytes, sent) in sorted(sums.items(), key=lambda item: -item[1][2]):
        yield (
            f"  {label:<44}{count:>6,.0f} x, {_binary(num_bytes):>11} in all, "
            f"{_binary(sent):>11} sent by a device"
        )
    if not sums:
        yield "  nothing"


def _bound_lines(report: StepReport) -> Iterator[str]:
    hardware, bounds, slowest = report.hardware, report.bounds, report.bound_by
    if hardware is None or slowest is None:
        yield (
            f"{report.flops:.3g} operations of a device in matrix products; no bound on the time "
            "of a step, because the peaks of this device are not known"
        )
        return
    positions = report.shape.rows * (report.shape.source_length + report.shape.target_length)
    yield (
        f"a step takes at least {bounds[slowest] * 1e3:.1f} ms (bound by {slowest}): at most "
        f"{positions / bounds[slowest]:,.0f} positions/s, source and target, padding included"
    )
    rates = {
        "compute": f"{report.flops:.3g} operations at {hardware.flops_per_s:.3g}/s",
        "memory": f"{_binary(report.moved_bytes)} at {hardware.memory_bytes_per_s / 1e9:,.0f} GB/s",
        "communication": f"at {hardware.sent_bytes_per_s / 1e9:,.0f} GB/s, all links together",
    }
    for name, seconds in bounds.items():
        yield f"  {name:<14}{seconds * 1e3:>10.2f} ms   {rates[name]}"


def _binary(size: float) -> str:
    """A number of bytes as text, in the largest unit of which it has at least one."""
    units = ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:,.{0 if units[0] == 'B' else 2}f} {units[0]}"
