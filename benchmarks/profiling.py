"""Profiles of compiled programs: the operations that the devices ran, and how long each took."""

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t2t_jax.extras.compile_only.hlo import Instruction, Program

_DEVICE = re.compile(r"/device:(GPU|TPU):\d+$")
_LINES = ("Stream #", "XLA Ops")  # of GPUs and of TPUs: what the device runs, each piece once

_PRODUCT = r"(ynn_fusion|dot|gemm|custom-call)"  # as the compilers of CPUs and GPUs name them

# The first pattern that occurs in `name of the operation | where it comes from` says the part.
_PARTS = {
    "products of feed-forward": _PRODUCT + r".*\|.*feed_forward/",
    "products of the logits": r"(btd,vd->btv|btv,vd->btd|btd,btv->dv|vd,bkd->vbk|step/dot_general)",
    "top-k": r"top_k",
    "products of projections": _PRODUCT + r".*\|.*attention.*[/_](query|key|value|output)/",
    "attention itself": r"\|.*(self|cross)_attention[./]",
    "rest of the layers": r"\|.*/(layers|encoder|decoder)\b",
    "softmax and loss": r"\|.*(losses|logsumexp|reduce_(max|sum)|/exp|/sub)",
    "optimizer, search and others": r"\|.*\w",
    "copies and fills": r"",
}


class Operation(NamedTuple):
    """A piece of work that a device has done."""

    name: str
    """The name of its instruction in the compiled program, or else the device's name for it."""
    module: str | None
    """The compiled program that it belongs to; None where the profile does not say."""
    seconds: float
    """The seconds that it took, without the operations that ran within it."""


class Profile(NamedTuple):
    """The operations that the devices of a process ran during a call, and their times."""

    operations: Sequence[Operation]
    """All operations, on all devices."""
    num_devices: int
    """The number of devices."""
    seconds: float
    """The mean over devices of the time from the first operation's start to the last one's end."""
    idle_seconds: float
    """The part of `seconds` in which no operation ran."""


def profile(call: Callable[[], object]) -> Profile:
    """Profile a call.

    While a profiler watches, XLA starts the kernels of a GPU one by one, and not as CUDA graphs.

    Args:
      call: a function that does the work once, to its end.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # tracing Python would slow the host down
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        return read(jax.profiler.ProfileData.from_file(str(file)))


def read(data: Any) -> Profile:
    """Read the operations of the devices, or of a CPU's threads, from JAX's data of a profile.

    Args:
      data: a `jax.profiler.ProfileData`.
    """
    planes = [plane for plane in data.planes if _DEVICE.search(plane.name)]
    is_cpu = not planes
    planes = planes or [plane for plane in data.planes if plane.name == "/host:CPU"]
    operations, seconds, idle, ordinals = [], 0.0, 0.0, set()
    for plane in planes:
        spans: list[tuple[float, float]] = []
        for line in plane.lines:
            if is_cpu or line.name.startswith(_LINES):
                events = [(event, dict(event.stats)) for event in line.events]
                if is_cpu:
                    events = [(event, stats) for event, stats in events if "hlo_op" in stats]
                    ordinals |= {stats.get("device_ordinal") for _, stats in events}
                spans += [(event.start_ns, event.end_ns) for event, _ in events]
                operations += [*_operations(events)]
        busy, whole = _covered(spans)
        seconds += whole / 1e9
        idle += (whole - busy) / 1e9
    num_planes = max(1, len(planes))
    num_devices = max(1, len(ordinals)) if is_cpu else num_planes
    return Profile(operations, num_devices, seconds / num_planes, idle / num_planes)


def _operations(events: Sequence[tuple[Any, dict[str, Any]]]) -> Iterator[Operation]:
    """Yield the operations that one thread or stream ran."""
    own = [event.duration_ns for event, _ in events]
    around: list[int] = []
    order = sorted(
        range(len(events)), key=lambda n: (events[n][0].start_ns, -events[n][0].duration_ns)
    )
    for number in order:
        event = events[number][0]
        while around and events[around[-1]][0].end_ns <= event.start_ns:
            around.pop()
        if around:
            end = min(event.end_ns, events[around[-1]][0].end_ns)
            own[around[-1]] -= end - event.start_ns
        around.append(number)
    for (event, stats), nanoseconds in zip(events, own, strict=True):
        # For TPUs, the event has the text of the instruction.
        name = stats.get("hlo_op") or event.name.partition(" = ")[0].lstrip("%")
        yield Operation(name, stats.get("hlo_module"), nanoseconds / 1e9)


def _covered(spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the time that some spans cover, and the time from first start to last end."""
    covered, until = 0.0, min((start for start, _ in spans), default=0.0)
    first = until
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered, until - first


def joined(program: Program, measured: Profile) -> Iterator[tuple[Operation, Instruction | None]]:
    """Yield each operation with the program's instruction that it ran, or None if there is none.

    Args:
      program: the text of the program that ran, parsed.
      measured: the profile of a call that ran it.
    """
    instructions = {each.name: each for inside in program.computations.values() for each in inside}
    for operation in measured.operations:
        is_own = operation.module in (None, program.module)
        yield operation, instructions.get(operation.name) if is_own else None


def shares(program: Program, measured: Profile) -> dict[str, float]:
    """Compute the share of each part of a model in the time of all operations of a program.

    The profiler's times of all operations are added up, whichever thread they ran on. An operation
    that the compiler fused from several counts for the part of the last of them.

    Args:
      program: the text of the program that ran, parsed.
      measured: the profile of a call that ran it.
    """
    times: Counter[str] = Counter()
    for operation, instruction in joined(program, measured):
        where = f"{operation.name}|{instruction.op_name if instruction else ''}"
        part = next(part for part, pattern in _PARTS.items() if re.search(pattern, where))
        times[part] += operation.seconds
    total = sum(times.values()) or 1.0  # some profiles name no operations
    return {part: times[part] / total for part in _PARTS}
