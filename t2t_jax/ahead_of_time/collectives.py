"""The collectives of a compiled program, read from its text: what devices send each other.

The text is XLA's HLO after partitioning (`jax.stages.Compiled.as_text`): one program that every
device runs, in computations that call each other. Its numbers of devices are places in the mesh,
counted row by row.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][a-z0-9-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_LISTED = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_LOOP = re.compile(r"\bcondition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INTEGER = re.compile(r"%?([\w.-]+) = [su]\d+\[\]\S* constant\((\d+)\)")
_PLACE = re.compile(r" get-tuple-element\([^)]*\), index=(\d+)")
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
    """An operation in which devices exchange data.

    Attributes:
      kind: `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute` or
        `collective-broadcast`.
      num_bytes: the size of the whole array that a device has before it is scattered or once it is
        gathered.
      groups: the devices that exchange data with each other; of a permutation, the pairs of sender
        and receiver.
      count: how often the operation is executed in one run of the program.
    """

    kind: str
    num_bytes: int
    groups: Groups
    count: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that a device sends in one execution, at least: those of a ring of the group."""
        if self.kind == "collective-permute":
            return float(self.num_bytes if any(a != b for a, b in self.groups) else 0)
        size = max(len(group) for group in self.groups)
        rounds = 2 if self.kind == "all-reduce" else 1
        return rounds * self.num_bytes * (size - 1) / size

    def mesh_axes(self, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
        """The axes of the mesh that the data crosses.

        Args:
          mesh_shape: devices along each axis, in the mesh's order.
        """
        crossed = np.zeros(len(mesh_shape), bool)
        for group in self.groups:
            places = np.stack(np.unravel_index(group, tuple(mesh_shape.values())))
            crossed |= (places != places[:, :1]).any(axis=1)
        return tuple(
            name for name, is_crossed in zip(mesh_shape, crossed, strict=True) if is_crossed
        )


def collectives(hlo: str) -> list[Collective]:
    """The collectives of a compiled program, in the order of its text.

    A collective within a loop counts as often as the loop runs. How often that is, the loop says
    itself; or else it counts from 0 to the one integer of its condition, as every loop does that
    JAX makes of a scan, and those that XLA makes. Of other loops one round is counted, and of a
    conditional every branch.

    Args:
      hlo: the text of the program.
    """
    computations, entry = _computations(hlo)
    header = hlo.partition("\n")[0]
    sizes = re.findall(r"\b(?:replica_count|num_partitions)=(\d+)", header)
    devices = math.prod(int(size) for size in sizes)
    chains: set[str] = set()
    found = []
    for name, line, count in _executed(computations, entry, 1):
        match = _INSTRUCTION.match(line)
        kind = match and match[2].removesuffix("-start")
        if not match or kind not in _KINDS:
            continue
        # XLA for TPU spreads a transfer over several fusions, each of which repeats it.
        chain = _CHAIN.search(line)
        if chain and chain[1] in chains:
            continue
        chains.update([chain[1]] if chain else [])
        groups = _groups(line, devices)
        num_bytes = _num_bytes(match[1], match[2])
        if kind == "reduce-scatter":
            num_bytes *= len(groups[0])
        elif kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"  # as XLA for TPU spells it: a fusion that keeps one part
        found.append(Collective(kind, num_bytes, groups, count))
    return found


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by its name, and the name of the one that is run."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", None
    for line in hlo.splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY ")):
            name = line.removeprefix("ENTRY ").split(" ", 1)[0].lstrip("%")
            entry = name if line.startswith("ENTRY ") else entry
            lines = computations[name] = []
        elif line.startswith("}"):
            lines = None
        elif lines is not None:
            lines.append(line)
    return computations, entry


def _executed(
    computations: dict[str, list[str]], name: str, count: int
) -> Iterator[tuple[str, str, int]]:
    """Yield every instruction that is run: its computation's name, its text, how often it runs."""
    for line in computations.get(name, []):
        yield name, line, count
        if loop := _LOOP.search(line):
            condition, body = loop.groups()
            lines = computations.get(condition, []), computations.get(body, [])
            yield from _executed(computations, body, count * _trip_count(line, *lines))
            continue
        called = _CALLED.findall(line)
        for listed in _LISTED.findall(line):
            called += [each.strip(" %") for each in listed.split(",")]
        for each in called:
            yield from _executed(computations, each, count)


def _trip_count(loop: str, condition: list[str], body: list[str]) -> int:
    if known := _TRIPS.search(loop):
        return int(known[1])
    bounds = _INTEGER.findall("\n".join(condition))
    return math.ceil(int(bounds[0][1]) / _increment(condition, body)) if len(bounds) == 1 else 1


def _increment(condition: list[str], body: list[str]) -> int:
    """The number that a round adds to the counter of a loop: 1, or more where it is unrolled."""
    place = _PLACE.search("\n".join(condition))
    root = next((line for line in body if line.lstrip().startswith("ROOT ")), "")
    results = _operands(root, "tuple")
    if not place or int(place[1]) >= len(results):
        return 1
    counter = results[int(place[1])]
    added = next((_operands(line, "add") for line in body if f"%{counter} = " in line), [])
    constants = dict(_INTEGER.findall("\n".join(body)))
    return next((int(constants[name]) for name in added if name in constants), 1)


def _operands(line: str, opcode: str) -> list[str]:
    """Names of the operands of an instruction; an empty list if its opcode is another one."""
    match = re.search(rf" {opcode}\(([^)]*)\)", line)
    listed = re.sub(r"/\*.*?\*/", "", match[1]).split(",") if match else []
    return [name.strip(" %") for name in listed]


def _num_bytes(shape: str, opcode: str) -> int:
    """The bytes of a result, given by its shape, such as `(f32[2,3]{1,0}, bf16[4]{0})`."""
    # What starts an all-reduce has its results alone.
    has_operands = opcode.endswith("-start") and opcode != "all-reduce-start"
    arrays = [
        math.prod(int(size.strip("<=")) for size in sizes.split(",") if size)
        * _bits(dtype, bits)
        / 8
        for dtype, bits, sizes in _ARRAY.findall(shape)
        if not has_operands or (dtype, sizes) != ("u32", "")
    ]
    if has_operands:
        arrays = arrays[len(arrays) // 2 :]  # operands, then results, then counters `u32[]`
    return math.ceil(sum(arrays))


def _bits(dtype: str, bits: str) -> int:
    return 8 if dtype == "pred" else int(bits)


def _groups(line: str, devices: int) -> Groups:
    """The groups of a collective, in any of the ways XLA writes them.

    Raises:
      ValueError: XLA wrote the groups in a form that is not known here.
    """
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
    """The devices that XLA writes as `[8,2]T(1,0)`: counted row by row, then transposed."""
    sizes = _integers(shape)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    return devices.transpose(_integers(order)) if order else devices


def _mesh_groups(axes: str, chosen: str, devices: Int[np.ndarray, "..."] | None) -> Groups:
    """Groups along axes of a mesh: `'a'=2,'b'=4` and `'b'`, or `'b':(2)2`, a part of an axis.

    Axis `'b':(m)n` is the one of size n that follows the m first entries when b is cut up.
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
