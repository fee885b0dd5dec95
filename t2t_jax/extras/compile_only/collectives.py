"""A parser for the collectives of a compiled program."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

import numpy as np
from jaxtyping import Int

from t2t_jax.extras.compile_only.hlo import Instruction, Program

COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter"),
    *("all-to-all", "collective-permute", "collective-broadcast"),
}
"""Opcodes of the operations in which devices exchange data."""
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_LISTED_GROUPS = re.compile(r"\b(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_GROUPS = re.compile(
    r"\breplica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? "
    r"\{([^}]*)\}"
)

Groups = tuple[tuple[int, ...], ...]
"""Groups of devices that exchange data: indices of devices in the mesh, in row-major order."""


@dataclass(frozen=True)
class Collective:
    """An operation in which devices exchange data."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute` or
    `collective-broadcast`."""
    num_bytes: int
    """Size of the full array on a device, before a scatter or after a gather."""
    groups: Groups
    """Groups of devices that exchange data. For a permutation, these are pairs of a sender and a
    receiver."""
    count: int
    """Number of times that one run of the program executes the operation."""

    @property
    def sent_bytes(self) -> float:
        """Return how many bytes a device sends in one execution, which uses the ring algorithm."""
        if self.kind == "collective-permute":
            return float(self.num_bytes if any(a != b for a, b in self.groups) else 0)
        group_size = max(len(group) for group in self.groups)
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.num_bytes * (group_size - 1) / group_size

    def mesh_axes(self, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
        """Return the names of the mesh axes along which the devices exchange data."""
        is_crossed = np.zeros(len(mesh_shape), bool)
        for group in self.groups:
            # [axes, devices of the group]
            coordinates = np.stack(np.unravel_index(group, tuple(mesh_shape.values())))
            is_crossed |= (coordinates != coordinates[:, :1]).any(axis=1)
        return tuple(compress(mesh_shape, is_crossed))


def collectives(program: Program) -> list[Collective]:
    """Return the collectives of a compiled program; the counts include loop iterations."""
    by_chain: dict[str | int, Collective] = {}
    for computation, instruction, count in program.executed():
        if instruction.opcode.removesuffix("-start") in COLLECTIVES:
            # XLA for TPUs splits a transfer into several fusions. Each repeats the whole
            # collective.
            chain = _CHAIN.search(instruction.line)
            key = chain[1] if chain else len(by_chain)
            by_chain.setdefault(key, collective(program, computation, instruction, count))
    return list(by_chain.values())


def collective(program: Program, computation: str, op: Instruction, count: int) -> Collective:
    """Parse the collective of an instruction that `computation` executes `count` times."""
    kind = op.opcode.removesuffix("-start")
    groups = _groups(op.line, program.num_devices)
    num_bytes = _num_bytes(op)
    if kind == "reduce-scatter":
        num_bytes *= len(groups[0])
    elif kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # XLA for TPUs: a fusion that keeps one part
    return Collective(kind, num_bytes, groups, count)


def _num_bytes(instruction: Instruction) -> int:
    arrays, opcode = instruction.arrays, instruction.opcode
    # The shape of a "-start" lists operands, then results, then counters `u32[]`. An
    # "all-reduce-start" lists only results, except in jax 0.12: there, a tuple of operands is
    # first.
    has_operands = opcode != "all-reduce-start" or "= ((" in instruction.line
    if opcode.endswith("-start") and has_operands:
        arrays = [array for array in arrays if (array.dtype, array.sizes) != ("u32", ())]
        arrays = arrays[len(arrays) // 2 :]
    return math.ceil(sum(array.num_bytes for array in arrays))


def _groups(line: str, num_devices: int) -> Groups:
    """Parse the groups of devices in the HLO line of a collective, in any of XLA's notations."""
    if match := _MESH_GROUPS.search(line):
        axes, shape, permutation, group_axes = match.groups()
        return _mesh_groups(axes, group_axes, _device_ids(shape, permutation) if shape else None)
    if match := _IOTA_GROUPS.search(line):
        group_size, shape, permutation = match.groups()
        return _rows(_device_ids(shape, permutation), int(group_size))
    if match := _LISTED_GROUPS.search(line):
        groups = tuple(_integers(group) for group in re.findall(r"\{([\d,]+)\}", match[1]))
        return groups or (tuple(range(num_devices)),)  # an empty list means one group of all
    raise ValueError(f"no groups of devices in {line[:300]!r}")


def _device_ids(shape: str, permutation: str | None) -> Int[np.ndarray, "..."]:
    """Return the device indices that XLA writes as `[8,2]T(1,0)`: a shape and a transposition."""
    sizes = _integers(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_integers(permutation)) if permutation else devices


def _mesh_groups(axes: str, group_axes: str, devices: Int[np.ndarray, "..."] | None) -> Groups:
    """Parse the device groups of a collective along axes of a mesh.

    Args:
      axes: the mesh, such as `'a'=2,'b'=4`.
      group_axes: the axes of a group, such as `'b'`. `'b':(m)n` means a part of b: the axis of size
        n if b is split into sizes m, n and the rest.
      devices: the device at each mesh index; None means row-major order.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    matches = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", group_axes)
    shape: list[int] = []
    group_dims: list[int] = []  # axes of `shape` along which a group extends
    for name, size in sizes.items():
        part_sizes = [(int(m or 1), int(n or size)) for axis, m, n in matches if axis == name]
        covered_size = 1
        for size_before, part_size in sorted(part_sizes):
            shape += [size_before // covered_size, part_size]
            group_dims.append(len(shape) - 1)
            covered_size = size_before * part_size
        shape.append(size // covered_size)
    other_dims = [axis for axis in range(len(shape)) if axis not in group_dims]
    devices = np.arange(math.prod(shape)) if devices is None else devices
    by_group = devices.reshape(shape).transpose(*other_dims, *group_dims)
    return _rows(by_group, math.prod(shape[axis] for axis in group_dims))


def _rows(devices: Int[np.ndarray, "..."], group_size: int) -> Groups:
    return tuple(tuple(row) for row in devices.reshape(-1, group_size).tolist())


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
