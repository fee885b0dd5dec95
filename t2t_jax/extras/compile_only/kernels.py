"""The kernels of a compiled program, their operations and bytes, and the least time they take.

A kernel is a piece of work that a device starts at once: a fusion, a product, a call of a library,
or a copy. Everything is read from the program's text; nothing is measured.

The least time is a bound from a compiler, not a timing. Each kernel takes at least the time of its
matrix products at the peak of the device, or of its reads and writes at the speed of the memory,
whichever is longer ("Roofline", Williams et al. 2009), and its start. Transfers to other devices
are hidden behind the kernels that run meanwhile. For TPUs, XLA's compiler notes the cycles that it
expects of a kernel, and these are taken instead; it has none for kernels written in Pallas.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from t2t_jax.extras.compile_only.collectives import COLLECTIVES, Collective, collective
from t2t_jax.extras.compile_only.hlo import ArrayShape, Instruction, Program, root_of
from t2t_jax.parallel.hardware import Hardware

_NO_WORK = {
    *("parameter", "constant", "iota", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("add-dependency", "partition-id", "replica-id", "opt-barrier", "domain"),
}
_NO_CALLS = {
    *("AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast"),
    *("GatherScatterIndicesBitpacked", "Sharding"),
}
"""The targets of XLA's custom calls that compute nothing."""
_BESIDE = {"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"}
_CONTROL = {"while", "conditional", "call", "async-start"}
_SLICES = {"dynamic-slice", "slice", "gather"}
_VIEWS = {"bitcast", "reshape", "copy", "convert", "transpose"}
_CONTRACTED = re.compile(r'lhs_contracting_d(?:ims=\{|imensions":\[)([\d,"]*)')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_MODULE = re.compile(r"(?:[A-Z]\w*\.(\w+)|([a-z][a-z_\d]*)(?:\.\w+)?)$")
_FRAMES = {
    *("while", "body", "cond", "eval_jaxpr", "closed_call", "checkpoint", "layers", "scan"),
    "shard_map",
}
"""The parts of operations' names that are not modules."""
_REACHED = 0.85
"""The share of a GPU's published memory bandwidth that its best kernels reach."""
_START = 2e-6
"""The seconds that a GPU takes to start a kernel."""


@dataclass(frozen=True)
class Kernel:
    """A piece of work that a device starts at once."""

    label: str
    """The module and the operation that the kernel is a part of, such as
    `feed_forward: dot_general, backward`."""
    flops: float
    """The floating point operations of its matrix products in one run."""
    num_bytes: float
    """The least bytes that one run reads from memory and writes to it."""
    count: int
    """How often the kernel runs."""
    cycles: int | None = None
    """The cycles of one run, as the compiler for TPUs expects them; None for others."""
    sent: Collective | None = None
    """The collective by which the kernel sends data to other devices; None for most kernels."""
    num_overlapped: int = 0
    """How many of the kernels after this one are started before the data that it sends must have
    arrived."""
    is_async_copy: bool = False
    """Whether the kernel is a copy within the device, made while other kernels run."""


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


def kernels(program: Program) -> list[Kernel]:
    """Return the kernels that one run of a program starts, in the order of their starts.

    A loop's kernels are returned once, with the number of its rounds; of a conditional, only the
    kernels of the branch that moves the fewest bytes are.
    """
    return _started(program, program.entry, 1)


def loop_kernels(program: Program) -> list[Kernel]:
    """Return the kernels of a round of the longest loop without a trip count, as a search has.

    There are none in a program without such a loop.
    """
    return max((_started(program, body, 1) for body in program.loops()), key=len, default=[])


def roofline(kernels: Sequence[Kernel], hardware: Hardware) -> Roofline:
    """Compute the least time of a program on a kind of device, from its kernels in their order."""
    times = [0.0 if kernel.sent else least_seconds(kernel, hardware) for kernel in kernels]
    groups: dict[str, list[KernelGroup]] = {}
    transfers = waiting = 0.0
    for place, (kernel, seconds) in enumerate(zip(kernels, times, strict=True)):
        if kernel.sent:
            # Kernels that run meanwhile may be in a loop, and run more often than the transfer.
            behind = slice(place + 1, place + 1 + kernel.num_overlapped)
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
    sums = [merged_group(label, of_label) for label, of_label in groups.items()]
    return Roofline(sorted(sums, key=lambda group: -group.seconds), transfers, waiting)


def merged_group(label: str, groups: Sequence[KernelGroup]) -> KernelGroup:
    """Return several groups as one, with another label."""
    return KernelGroup(label, *map(sum, zip(*(group[1:] for group in groups), strict=True)))


def least_seconds(kernel: Kernel, hardware: Hardware) -> float:
    """Compute the least time of one run of a kernel; for a transfer, it is the time of sending."""
    if kernel.sent:
        return kernel.sent.sent_bytes / hardware.sent_bytes_per_s
    if hardware.clock_hz is not None and (kernel.cycles is not None or kernel.is_async_copy):
        return (kernel.cycles or 0) / hardware.clock_hz
    share, start = (_REACHED, _START) if hardware.clock_hz is None else (1.0, 0.0)
    moving = kernel.num_bytes / (share * hardware.memory_bytes_per_s)
    return max(kernel.flops / hardware.flops_per_s, moving) + start


def _started(program: Program, name: str, count: int) -> list[Kernel]:
    """Return the kernels of a computation and of the computations that it runs."""
    instructions = program.computations.get(name, ())
    shapes = {each.name: each for each in instructions}
    found: list[Kernel] = []
    under_way: dict[str, int] = {}
    for each in instructions:
        if each.opcode == "conditional":
            branches = [_started(program, called, count) for called in each.called]
            # The time is a lower bound, so the branch is the one that moves the fewest bytes.
            found += min(branches, key=lambda of: sum(one.count * one.num_bytes for one in of))
        elif each.opcode in _CONTROL:
            for called, times in program.rounds(each):
                found += _started(program, called, count * times)
        elif each.opcode.endswith("-done"):
            place = under_way.get(each.operands[0])
            if place is not None:
                found[place] = replace(found[place], num_overlapped=len(found) - place - 1)
        elif _is_work(each):
            kind = each.opcode.removesuffix("-start")
            cycles = _CYCLES.search(each.line)
            sent = collective(program, name, each, count) if kind in COLLECTIVES else None
            if sent:
                under_way[each.name] = len(found)
            found.append(
                Kernel(
                    label=label_of(program, each),
                    flops=_flops(program, each, shapes),
                    num_bytes=0 if sent else _moved(program, each, shapes),
                    count=count,
                    cycles=int(cycles[1]) if cycles else None,
                    sent=sent,
                    is_async_copy=each.opcode in _BESIDE,
                )
            )
    return found


def _is_work(instruction: Instruction) -> bool:
    target = _TARGET.search(instruction.line)
    return instruction.opcode not in _NO_WORK and (target is None or target[1] not in _NO_CALLS)


def label_of(program: Program, instruction: Instruction) -> str:
    """Return the module and the operation of a kernel, from the name that JAX gave it."""
    inside = [
        each for name in instruction.called for each in reversed(program.computations.get(name, ()))
    ]
    names = (each.op_name for each in (instruction, *inside))
    parts = next((name.split("/") for name in names if name), [])
    backward = any(part.startswith("transpose(") for part in parts)
    modules = [_MODULE.match(part) for part in parts[:-1]]
    within = [match[1] or match[2] for match in modules if match and match[2] not in _FRAMES]
    operation = (parts[-1] if parts else instruction.opcode).partition(".")[0]
    return f"{within[-1] if within else 'step'}: {operation}{', backward' * backward}"


def _flops(program: Program, instruction: Instruction, shapes: Mapping[str, Instruction]) -> float:
    if instruction.opcode == "custom-call":
        return _library_flops(instruction, shapes)
    if instruction.opcode in ("dot", "convolution"):
        return _product_flops(instruction, shapes)
    total = 0.0
    for called in instruction.called:
        inside = program.computations.get(called, ())
        within = {each.name: each for each in inside}
        total += sum(_flops(program, each, within) for each in inside)
    return total


def _product_flops(instruction: Instruction, shapes: Mapping[str, Instruction]) -> float:
    """Count two operations for each term of the sum of each result."""
    [result], [left, right] = instruction.arrays[:1], instruction.operands[:2]
    operands = [shapes[name].arrays[0] for name in (left, right) if name in shapes]
    if len(operands) < 2:
        return 0.0
    if instruction.opcode == "convolution":
        return 2 * _convolved(instruction, result, *operands)
    match = _CONTRACTED.search(instruction.line)
    axes = [int(axis) for axis in re.findall(r"\d+", match[1])] if match else []
    return 2 * result.count * math.prod(operands[0].sizes[axis] for axis in axes)


def _convolved(
    instruction: Instruction, result: ArrayShape, left: ArrayShape, right: ArrayShape
) -> float:
    """Count the multiplications of a convolution, which is how XLA for TPUs writes a product.

    Each number of the result is a sum over the features of the left operand and over the window.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.line)
    if not labels:
        return 0.0
    features = right.sizes[labels[2].index("i")]
    window = math.prod(
        size for label, size in zip(labels[2], right.sizes, strict=True) if label.isdigit()
    )
    # In a batch of products, the window slides over that batch, and all but one place is padding.
    spatial = [labels[3].index(label) for label in labels[3] if label.isdigit()]
    is_batch = "lhs_dilate" in instruction.line or "pad" in instruction.line
    if is_batch and math.prod(result.sizes[axis] for axis in spatial) >= window:
        window = 1
    return result.count * features * window


def _library_flops(instruction: Instruction, shapes: Mapping[str, Instruction]) -> float:
    """Count the operations of a matmul or an attention that a library computes."""
    target = _TARGET.search(instruction.line)
    name = target[1] if target else ""
    if "matmul" in name or "gemm" in name:
        return _product_flops(instruction, shapes)
    if name == "tpu_custom_call":
        return _splash_flops(instruction, shapes)
    is_short = "short_attention" in instruction.op_name
    if "fmha" not in name and not is_short:
        return 0.0
    # Operands are [rows, length, heads, size]; forward there are two products of queries with keys
    # and weights with values, backward five.
    query, key = (shapes[operand].arrays[0].sizes for operand in instruction.operands[:2])
    is_backward = "Backward" in name or (is_short and len(instruction.arrays) == 3)
    products = 5 if is_backward else 2
    return 2.0 * products * math.prod(query) * key[1]


def _splash_flops(instruction: Instruction, shapes: Mapping[str, Instruction]) -> float:
    """Count the operations of JAX's attention for TPUs; return 0 for other Pallas kernels."""
    match = re.match(r"splash_\w*?_(fwd|dq|dkv)_", instruction.name)
    operands = [shapes[name].arrays[0] for name in instruction.operands if name in shapes]
    vectors = [each.sizes for each in operands if each.dtype in ("bf16", "f16", "f32")]
    if match is None or len(vectors) < 2:
        return 0.0
    # Queries, keys and values are the first vectors: [rows, heads, length, size]. The derivatives
    # of queries, and of keys and values, compute the scores and the gradient of the weights again.
    products, (query, key) = {"fwd": 2, "dq": 3, "dkv": 4}[match[1]], vectors[:2]
    flops = 2.0 * products * math.prod(query) * key[-2]
    # A causal mask, which hides almost half of the blocks, takes the positions of the queries: a
    # third operand of integers, beside the segments of queries and keys.
    is_causal = sum(each.dtype == "s32" for each in operands) > 2
    blocks = operands[0].sizes[-1]
    return flops * (blocks + 1) / (2 * blocks) if is_causal else flops


def _moved(program: Program, instruction: Instruction, shapes: Mapping[str, Instruction]) -> float:
    taken = [_num_bytes(shapes[name]) for name in instruction.operands if name in shapes]
    if instruction.opcode in _BESIDE:
        smallest = min(each.num_bytes for each in instruction.arrays if each.sizes)
        # "S(1)" is a TPU's memory on the chip, whose bytes are not counted.
        return smallest if "S(1)" in instruction.shape else 2 * smallest
    if instruction.opcode in _SLICES:
        return 2 * _num_bytes(instruction)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * taken[1]
    fused = instruction.called if "fusion" in instruction.opcode else []
    inside = program.computations.get(fused[0], ()) if fused else ()
    root = root_of(inside)
    if root is None:
        return sum(taken) + _num_bytes(instruction)
    by_name = {each.name: each for each in inside}
    written = [root]
    if root.opcode == "tuple":
        written = [by_name[name] for name in root.operands]
    return _read(inside) + sum(_written(each, by_name) for each in written)


def _read(inside: Sequence[Instruction]) -> float:
    """Count the bytes that a fusion reads; of a parameter that it slices, only the slices count."""
    users: dict[str, list[Instruction]] = {}
    for each in inside:
        for name in each.operands:
            users.setdefault(name, []).append(each)
    total = 0.0
    for parameter in inside:
        if parameter.opcode == "parameter":
            parts = [_taken(parameter, user, users) for user in users.get(parameter.name, [])]
            total += min(sum(parts), _num_bytes(parameter))
    return total


def _taken(
    array: Instruction, user: Instruction, users: Mapping[str, Sequence[Instruction]]
) -> float:
    """Count the bytes of an array that an operation of a fusion needs."""
    if user.opcode in _SLICES and user.operands[0] == array.name:
        return _num_bytes(user)
    if user.opcode == "dynamic-update-slice" and user.operands[0] == array.name:
        return 0.0  # written in its place
    if user.opcode in _VIEWS and user.name in users:
        ratio = _num_bytes(array) / max(1.0, _num_bytes(user))
        return sum(ratio * _taken(user, each, users) for each in users[user.name])
    return _num_bytes(array)


def _written(result: Instruction, by_name: Mapping[str, Instruction]) -> float:
    """Count the bytes that a fusion writes; of an array that is updated in place, the update."""
    source = result
    while source.opcode in _VIEWS and source.operands[0] in by_name:
        source = by_name[source.operands[0]]
    if source.opcode == "dynamic-update-slice":
        return _num_bytes(by_name[source.operands[1]])
    return _num_bytes(result) if result.opcode != "parameter" else 0.0


def _num_bytes(instruction: Instruction) -> float:
    arrays = instruction.arrays
    if "__cublas" in instruction.line and len(arrays) > 1:
        arrays = arrays[:-1]  # the last is scratch memory, which a product may not use
    return sum(each.num_bytes for each in arrays)
