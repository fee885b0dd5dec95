"""FLOPs, bytes and a lower time bound of the kernels of a compiled program.

A kernel is work that a device launches at once: a fusion, a matmul, a library call or a copy. Its
minimum time is the longer of its matmuls at peak FLOP/s and its memory traffic at peak bandwidth
("Roofline", Williams et al. 2009), plus the launch. For TPUs, the compiler's estimate of the cycles
replaces this time, except for Pallas kernels. Transfers between devices overlap with other kernels.
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
"""Targets of XLA custom calls that compute nothing."""
_ASYNC_COPIES = {"copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start"}
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
"""Parts of operation names that are not modules."""
_BANDWIDTH_SHARE = 0.85
"""Fraction of a GPU's published memory bandwidth that its best kernels reach."""
_LAUNCH_SECONDS = 2e-6
"""Time that a GPU takes to launch a kernel."""


@dataclass(frozen=True)
class Kernel:
    """Work that a device launches at once, such as a fusion or a matmul."""

    label: str
    """Module and operation that the kernel belongs to, as in
    `feed_forward: dot_general, backward`."""
    flops: float
    """FLOPs of its matmuls in one run."""
    num_bytes: float
    """Minimum bytes that one run reads and writes in memory."""
    count: int
    """Number of times that the kernel runs."""
    cycles: int | None = None
    """Cycles of one run, as the compiler for TPUs estimates them; None if it gives none."""
    transfer: Collective | None = None
    """The collective that the kernel executes; None for most kernels."""
    num_overlapped: int = 0
    """Number of the next kernels that launch before the collective must be complete."""
    is_async_copy: bool = False
    """Whether the kernel is a copy within the device that runs in parallel with other kernels."""


class KernelGroup(NamedTuple):
    """The time, launches, bytes and FLOPs of all kernels with the same label, summed."""

    label: str
    """Module and operation."""
    seconds: float
    """Minimum time of all kernels."""
    starts: int
    """Number of kernel launches."""
    num_bytes: float
    """Bytes that the kernels read and write."""
    flops: float
    """FLOPs of the kernels' matmuls."""


@dataclass(frozen=True)
class Roofline:
    """The minimum time of a program, computed from its kernels."""

    groups: Sequence[KernelGroup]
    """Kernels by label, slowest first, without transfers between devices."""
    transfers_seconds: float
    """Time of the transfers between devices."""
    waiting_seconds: float
    """Part of the transfer time that no other kernel overlaps."""

    @property
    def seconds(self) -> float:
        """Return the minimum time of one run of the program."""
        return sum(group.seconds for group in self.groups) + self.waiting_seconds

    @property
    def num_bytes(self) -> float:
        """Return the bytes that the program reads and writes."""
        return sum(group.num_bytes for group in self.groups)


def kernels(program: Program) -> list[Kernel]:
    """Return the kernels that one run of a program launches, in launch order.

    The kernels of a loop appear once, with the number of iterations. A conditional has the kernels
    of the branch that moves the fewest bytes.
    """
    return _launched(program, program.entry, 1)


def loop_kernels(program: Program) -> list[Kernel]:
    """Return the kernels of one iteration of the decoding loop; [] if the program has none.

    The decoding loop is the longest loop without a trip count.
    """
    return max((_launched(program, body, 1) for body in program.loops()), key=len, default=[])


def roofline(kernels: Sequence[Kernel], hardware: Hardware) -> Roofline:
    """Compute the minimum time of a program from its kernels in launch order."""
    times = [0.0 if kernel.transfer else least_seconds(kernel, hardware) for kernel in kernels]
    groups: dict[str, list[KernelGroup]] = {}
    total_transfer = total_waiting = 0.0
    for index, (kernel, seconds) in enumerate(zip(kernels, times, strict=True)):
        if kernel.transfer:
            # Overlapped kernels may be in a loop, and run more often than the transfer.
            overlap_range = slice(index + 1, index + 1 + kernel.num_overlapped)
            hidden_seconds = sum(
                time * overlap.count / kernel.count
                for time, overlap in zip(times[overlap_range], kernels[overlap_range], strict=True)
            )
            transfer_seconds = least_seconds(kernel, hardware)
            total_transfer += kernel.count * transfer_seconds
            total_waiting += kernel.count * max(0.0, transfer_seconds - hidden_seconds)
            continue
        count, label, moved_bytes = kernel.count, kernel.label, kernel.count * kernel.num_bytes
        group = KernelGroup(label, count * seconds, count, moved_bytes, count * kernel.flops)
        groups.setdefault(label, []).append(group)
    sums = [merged_group(label, parts) for label, parts in groups.items()]
    return Roofline(sorted(sums, key=lambda group: -group.seconds), total_transfer, total_waiting)


def merged_group(label: str, groups: Sequence[KernelGroup]) -> KernelGroup:
    """Add several groups of kernels, and give the sum a new label."""
    return KernelGroup(label, *map(sum, zip(*(group[1:] for group in groups), strict=True)))


def least_seconds(kernel: Kernel, hardware: Hardware) -> float:
    """Compute the minimum time of one run of a kernel or of a transfer between devices."""
    if kernel.transfer:
        return kernel.transfer.sent_bytes / hardware.sent_bytes_per_s
    if hardware.clock_hz is not None and (kernel.cycles is not None or kernel.is_async_copy):
        return (kernel.cycles or 0) / hardware.clock_hz
    is_gpu = hardware.clock_hz is None
    bandwidth_share, launch_seconds = (_BANDWIDTH_SHARE, _LAUNCH_SECONDS) if is_gpu else (1.0, 0.0)
    memory_seconds = kernel.num_bytes / (bandwidth_share * hardware.memory_bytes_per_s)
    return max(kernel.flops / hardware.flops_per_s, memory_seconds) + launch_seconds


def _launched(program: Program, name: str, count: int) -> list[Kernel]:
    """Return the kernels that computation `name` launches, also in computations that it calls.

    The program runs the computation `count` times.
    """
    instructions = program.computations.get(name, ())
    by_name = {op.name: op for op in instructions}
    kernels: list[Kernel] = []
    start_indices: dict[str, int] = {}  # index of the kernel that starts each transfer
    for op in instructions:
        if op.opcode == "conditional":
            branches = [_launched(program, branch, count) for branch in op.called]
            # The time is a lower bound, so take the branch that moves the fewest bytes.
            kernels += min(branches, key=lambda group: sum(k.count * k.num_bytes for k in group))
        elif op.opcode in _CONTROL:
            for computation, runs in program.runs_of_called(op):
                kernels += _launched(program, computation, count * runs)
        elif op.opcode.endswith("-done"):
            start_index = start_indices.get(op.operands[0])
            if start_index is not None:
                num_overlapped = len(kernels) - start_index - 1
                kernels[start_index] = replace(kernels[start_index], num_overlapped=num_overlapped)
        elif _is_kernel(op):
            kind = op.opcode.removesuffix("-start")
            cycles = _CYCLES.search(op.line)
            transfer = collective(program, name, op, count) if kind in COLLECTIVES else None
            if transfer:
                start_indices[op.name] = len(kernels)
            kernels.append(
                Kernel(
                    label=label_of(program, op),
                    flops=_flops(program, op, by_name),
                    num_bytes=0 if transfer else _moved_bytes(program, op, by_name),
                    count=count,
                    cycles=int(cycles[1]) if cycles else None,
                    transfer=transfer,
                    is_async_copy=op.opcode in _ASYNC_COPIES,
                )
            )
    return kernels


def _is_kernel(instruction: Instruction) -> bool:
    target = _TARGET.search(instruction.line)
    return instruction.opcode not in _NO_WORK and (target is None or target[1] not in _NO_CALLS)


def label_of(program: Program, instruction: Instruction) -> str:
    """Return the module and operation of a kernel, as in `feed_forward: dot_general, backward`."""
    fused_ops = [
        op for name in instruction.called for op in reversed(program.computations.get(name, ()))
    ]
    names = (op.op_name for op in (instruction, *fused_ops))
    parts = next((name.split("/") for name in names if name), [])
    is_backward = any(part.startswith("transpose(") for part in parts)
    matches = [_MODULE.match(part) for part in parts[:-1]]
    modules = [match[1] or match[2] for match in matches if match and match[2] not in _FRAMES]
    operation = (parts[-1] if parts else instruction.opcode).partition(".")[0]
    return f"{modules[-1] if modules else 'step'}: {operation}{', backward' * is_backward}"


def _flops(program: Program, instruction: Instruction, by_name: Mapping[str, Instruction]) -> float:
    if instruction.opcode == "custom-call":
        return _library_flops(instruction, by_name)
    if instruction.opcode in ("dot", "convolution"):
        return _matmul_flops(instruction, by_name)
    total_flops = 0.0
    for called in instruction.called:
        by_name = {op.name: op for op in program.computations.get(called, ())}
        total_flops += sum(_flops(program, op, by_name) for op in by_name.values())
    return total_flops


def _matmul_flops(instruction: Instruction, by_name: Mapping[str, Instruction]) -> float:
    [result_shape], names = instruction.arrays[:1], instruction.operands[:2]
    operands = [by_name[name].arrays[0] for name in names if name in by_name]
    if len(operands) < 2:
        return 0.0
    if instruction.opcode == "convolution":
        return 2 * _convolution_terms(instruction, result_shape, *operands)
    match = _CONTRACTED.search(instruction.line)
    contracted_axes = [int(axis) for axis in re.findall(r"\d+", match[1])] if match else []
    return 2 * result_shape.count * math.prod(operands[0].sizes[axis] for axis in contracted_axes)


def _convolution_terms(
    instruction: Instruction, result: ArrayShape, inputs: ArrayShape, kernel: ArrayShape
) -> float:
    """Count the multiplications of a convolution; XLA for TPUs writes matmuls as convolutions."""
    # Each element of the result is a sum over the input features and over the window.
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.line)
    if not labels:
        return 0.0
    num_features = kernel.sizes[labels[2].index("i")]
    window_size = math.prod(
        size for label, size in zip(labels[2], kernel.sizes, strict=True) if label.isdigit()
    )
    # In a batched matmul, the window slides over the batch, and covers padding except for one
    # element.
    spatial_axes = [labels[3].index(label) for label in labels[3] if label.isdigit()]
    is_batch = "lhs_dilate" in instruction.line or "pad" in instruction.line
    if is_batch and math.prod(result.sizes[axis] for axis in spatial_axes) >= window_size:
        window_size = 1
    return result.count * num_features * window_size


def _library_flops(instruction: Instruction, by_name: Mapping[str, Instruction]) -> float:
    """Count the FLOPs of a library call: a matmul or attention; other calls count as 0."""
    target = _TARGET.search(instruction.line)
    target_name = target[1] if target else ""
    if "matmul" in target_name or "gemm" in target_name:
        return _matmul_flops(instruction, by_name)
    if target_name == "tpu_custom_call":
        return _splash_flops(instruction, by_name)
    is_short = "short_attention" in instruction.op_name
    if "fmha" not in target_name and not is_short:
        return 0.0
    # Operands are [rows, length, heads, width]. The forward pass has two matmuls (queries by keys,
    # weights by values), and the backward pass has five.
    query, key = (by_name[operand].arrays[0].sizes for operand in instruction.operands[:2])
    is_backward = "Backward" in target_name or (is_short and len(instruction.arrays) == 3)
    num_matmuls = 5 if is_backward else 2
    return 2.0 * num_matmuls * math.prod(query) * key[1]


def _splash_flops(instruction: Instruction, by_name: Mapping[str, Instruction]) -> float:
    """Count the FLOPs of JAX's splash attention for TPUs; return 0 for other Pallas kernels."""
    match = re.match(r"splash_\w*?_(fwd|dq|dkv)_", instruction.name)
    operands = [by_name[name].arrays[0] for name in instruction.operands if name in by_name]
    vector_sizes = [array.sizes for array in operands if array.dtype in ("bf16", "f16", "f32")]
    if match is None or len(vector_sizes) < 2:
        return 0.0
    # The first vectors are queries, keys and values: [rows, heads, length, width]. Both backward
    # kernels compute the scores and the gradient of the weights again.
    num_matmuls, (query, key) = {"fwd": 2, "dq": 3, "dkv": 4}[match[1]], vector_sizes[:2]
    flops = 2.0 * num_matmuls * math.prod(query) * key[-2]
    # A causal kernel skips almost half of the blocks. It has a third integer operand, the positions
    # of the queries, after the segment ids of queries and keys.
    is_causal = sum(array.dtype == "s32" for array in operands) > 2
    num_blocks = operands[0].sizes[-1]
    return flops * (num_blocks + 1) / (2 * num_blocks) if is_causal else flops


def _moved_bytes(
    program: Program, instruction: Instruction, by_name: Mapping[str, Instruction]
) -> float:
    operand_bytes = [_num_bytes(by_name[name]) for name in instruction.operands if name in by_name]
    if instruction.opcode in _ASYNC_COPIES:
        smallest_bytes = min(array.num_bytes for array in instruction.arrays if array.sizes)
        # "S(1)" is the memory on a TPU's chip, whose bytes do not count.
        return smallest_bytes if "S(1)" in instruction.shape else 2 * smallest_bytes
    if instruction.opcode in _SLICES:
        return 2 * _num_bytes(instruction)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * operand_bytes[1]
    called_names = instruction.called if "fusion" in instruction.opcode else []
    fused_ops = program.computations.get(called_names[0], ()) if called_names else ()
    root = root_of(fused_ops)
    if root is None:
        return sum(operand_bytes) + _num_bytes(instruction)
    fused_by_name = {op.name: op for op in fused_ops}
    results = [fused_by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return _read_bytes(fused_ops) + sum(_written_bytes(result, fused_by_name) for result in results)


def _read_bytes(fused_ops: Sequence[Instruction]) -> float:
    """Count the bytes that a fused kernel reads. Of a sliced parameter, count the slices."""
    users: dict[str, list[Instruction]] = {}
    for op in fused_ops:
        for name in op.operands:
            users.setdefault(name, []).append(op)
    total_bytes = 0.0
    for parameter in fused_ops:
        if parameter.opcode == "parameter":
            reads = [_used_bytes(parameter, user, users) for user in users.get(parameter.name, [])]
            total_bytes += min(sum(reads), _num_bytes(parameter))
    return total_bytes


def _used_bytes(
    array: Instruction, user: Instruction, users: Mapping[str, Sequence[Instruction]]
) -> float:
    """Count the bytes of an array that `user` reads; `users` maps a name to the readers."""
    if user.opcode in _SLICES and user.operands[0] == array.name:
        return _num_bytes(user)
    if user.opcode == "dynamic-update-slice" and user.operands[0] == array.name:
        return 0.0  # updated in place
    if user.opcode in _VIEWS and user.name in users:
        ratio = _num_bytes(array) / max(1.0, _num_bytes(user))
        return sum(ratio * _used_bytes(user, reader, users) for reader in users[user.name])
    return _num_bytes(array)


def _written_bytes(result: Instruction, by_name: Mapping[str, Instruction]) -> float:
    """Count the bytes of a result that a fusion writes; for an update in place, only the update."""
    origin = result
    while origin.opcode in _VIEWS and origin.operands[0] in by_name:
        origin = by_name[origin.operands[0]]
    if origin.opcode == "dynamic-update-slice":
        return _num_bytes(by_name[origin.operands[1]])
    return _num_bytes(result) if result.opcode != "parameter" else 0.0


def _num_bytes(instruction: Instruction) -> float:
    arrays = instruction.arrays
    if "__cublas" in instruction.line and len(arrays) > 1:
        arrays = arrays[:-1]  # the last is scratch memory, which the matmul may not use
    return sum(array.num_bytes for array in arrays)
