"""The collectives of a compiled program, in which devices send each other data, read from its text.

A device's number in a program is its place in the mesh, counted row by row.
"""

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
"""The opcodes of operations in which devices exchange data."""
_CHAIN = re.compile(r'\bchain_id="(\d+)"')
_LISTED_GROUPS = re.compile(r"\b(?:replica_groups|source_target_pairs)=\{((?:\{[\d,]*\},?)*)\}")
_IOTA_GROUPS = re.compile(r"\breplica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_GROUPS = re.compile(
    r"\breplica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? "
    r"\{([^}]*)\}"
)

Groups = tuple[tuple[int, ...], ...]
"""Groups of devices that exchange data, each device by its place in the mesh."""


@dataclass(frozen=True)
class Collective:
    """An operation in which devices exchange data."""

    kind: str
    """`all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute` or
    `collective-broadcast`."""
    num_bytes: int
    """The size of the whole array that a device has before it is scattered or once it is
    gathered."""
    groups: Groups
    """The devices that exchange data with each other; for a permutation, the pairs of sender and
    receiver."""
    count: int
    """How often the operation is executed in one run of the program."""

    @property
    def sent_bytes(self) -> float:
        """Return the least bytes that a device sends in one execution, by a ring of the group."""
        if self.kind == "collective-permute":
            return float(self.num_bytes if any(a != b for a, b in self.groups) else 0)
        size = max(len(group) for group in self.groups)
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.num_bytes * (size - 1) / size

    def mesh_axes(self, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
        """Return the axes of the mesh, of the given shape in its order, that the data crosses."""
        crossed = np.zeros(len(mesh_shape), bool)
        for group in self.groups:
            places = np.stack(np.unravel_index(group, tuple(mesh_shape.values())))
            crossed |= (places != places[:, :1]).any(axis=1)
        return tuple(compress(mesh_shape, crossed))


def collectives(program: Program) -> list[Collective]:
    """Return the collectives of a compiled program, in the order of its text.

    A collective within a loop counts as often as the loop runs; see `Program.rounds`.
    """
    found: dict[str | int, Collective] = {}
    for name, instruction, count in program.executed():
        if instruction.opcode.removesuffix("-start") in COLLECTIVES:
            # XLA for TPU spreads a transfer over several fusions, each of which repeats it.
            chain = _CHAIN.search(instruction.line)
            key = chain[1] if chain else len(found)
            found.setdefault(key, collective(program, name, instruction, count))
    return list(found.values())


def collective(program: Program, name: str, instruction: Instruction, count: int) -> Collective:
    """Return the collective that an instruction executes, `count` times, in a computation's `name`.

    The opcode of the instruction, without "-start", is one of `COLLECTIVES`.
    """
    kind = instruction.opcode.removesuffix("-start")
    groups = _groups(instruction.line, program.num_devices)
    num_bytes = _num_bytes(instruction)
    if kind == "reduce-scatter":
        num_bytes *= len(groups[0])
    elif kind == "all-reduce" and name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"  # as XLA for TPU spells it: a fusion that keeps one part
    return Collective(kind, num_bytes, groups, count)


def _num_bytes(instruction: Instruction) -> int:
    arrays, opcode = instruction.arrays, instruction.opcode
    # The start of a transfer has operands, then results, then counters `u32[]`; but the start of an
    # all-reduce has its results alone, unless XLA (of jax 0.12) puts a tuple of operands first.
    has_operands = opcode != "all-reduce-start" or "= ((" in instruction.line
    if opcode.endswith("-start") and has_operands:
        arrays = [each for each in arrays if (each.dtype, each.sizes) != ("u32", ())]
        arrays = arrays[len(arrays) // 2 :]
    return math.ceil(sum(each.num_bytes for each in arrays))


def _groups(line: str, devices: int) -> Groups:
    """Parse the groups of a collective, in any of the forms in which XLA is known to write them."""
    if match := _MESH_GROUPS.search(line):
        axes, shape, order, chosen = match.groups()
        return _mesh_groups(axes, chosen, _numbered(shape, order) if shape else None)
    if match := _IOTA_GROUPS.search(line):
        size, shape, order = match.groups()
        return _rows(_numbered(shape, order), int(size))
    if match := _LISTED_GROUPS.search(line):
        listed = tuple(_integers(group) for group in re.findall(r"\{([\d,]+)\}", match[1]))
        return listed or (tuple(range(devices)),)
    raise ValueError(f"no groups of devices are known in {line[:300]!r}")


def _numbered(shape: str, order: str | None) -> Int[np.ndarray, "..."]:
    """Return the devices that XLA writes as `[8,2]T(1,0)`: counted by rows, then transposed."""
    sizes = _integers(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_integers(order)) if order else devices


def _mesh_groups(axes: str, chosen: str, devices: Int[np.ndarray, "..."] | None) -> Groups:
    """Return groups along axes of a mesh: `'a'=2,'b'=4` and `'b'`, or `'b':(2)2`, part of an axis.

    `'b':(m)n` is the part of size n when b is split into axes of sizes m, n and the rest.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    cuts = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", chosen)
    shape: list[int] = []
    across: list[int] = []
    for name, size in sizes.items():
        parts = [(int(before or 1), int(part or size)) for cut, before, part in cuts if cut == name]
        done = 1
        for before, part in sorted(parts):
            shape += [before // done, part]
            across.append(len(shape) - 1)
            done = before * part
        shape.append(size // done)
    kept = [axis for axis in range(len(shape)) if axis not in across]
    devices = np.arange(math.prod(shape)) if devices is None else devices
    split = devices.reshape(shape).transpose(*kept, *across)
    return _rows(split, math.prod(shape[axis] for axis in across))


def _rows(devices: Int[np.ndarray, "..."], size: int) -> Groups:
    return tuple(tuple(row) for row in devices.reshape(-1, size).tolist())


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))
