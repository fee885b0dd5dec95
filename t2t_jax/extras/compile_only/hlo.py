"""A parser for the text of a compiled program.

The text is XLA's HLO after partitioning and scheduling (`jax.stages.Compiled.as_text`): one program
that every device runs, in computations that call each other.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\(([^)]*)\)")
_COMMENT = re.compile(r"/\*.*?\*/")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|(?:true|false)_computation|(?:branch|called)_computations)="
    r"(\{[^}]*\}|%?[\w.-]+)"
)
_LOOP = re.compile(r"\bcondition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_INTEGER = re.compile(r" constant\((\d+)\)")
_INDEX = re.compile(r"\), index=(\d+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_MODULE = re.compile(r"HloModule ([^\s,]+)")
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n.*?\n\}", re.DOTALL)
"""The metadata of a Pallas kernel, which take lines of their own within an instruction."""
_DEVICES = re.compile(r"\b(?:replica_count|num_partitions)=(\d+)")


@dataclass(frozen=True)
class ArrayShape:
    """The shape of an array."""

    dtype: str
    """XLA's name for the type of its numbers, such as `bf16`."""
    bits: int
    """The size of one number."""
    sizes: tuple[int, ...]
    """The size of each dimension."""

    @property
    def count(self) -> int:
        """Return how many numbers the array has."""
        return math.prod(self.sizes)

    @property
    def num_bytes(self) -> float:
        """Return the bytes that the array takes."""
        return self.count * self.bits / 8


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    """The name by which other instructions take its result."""
    shape: str
    """The text of the shape of its result, such as `(f32[2,3]{1,0}, bf16[4]{0})`."""
    opcode: str
    """The kind of operation."""
    operands: tuple[str, ...]
    """The names of the instructions whose results it takes."""
    line: str
    """The whole text of the instruction."""
    is_root: bool
    """Whether its result is that of the computation."""

    @property
    def arrays(self) -> list[ArrayShape]:
        """Return the shapes of the arrays of the result."""
        return [
            ArrayShape(
                dtype,
                8 if dtype == "pred" else int(bits),
                tuple(int(size.strip("<=")) for size in sizes.split(",") if size),
            )
            for dtype, bits, sizes in _ARRAY.findall(self.shape)
        ]

    @property
    def op_name(self) -> str:
        """Return JAX's name of the operation, with the modules around it; "" if it has none."""
        found = _OP_NAME.search(self.line)
        return found[1] if found else ""

    @property
    def called(self) -> list[str]:
        """Return the names of the computations that the instruction calls; [] for a loop."""
        return [
            name for names in _CALLED.findall(self.line) for name in re.findall(r"[\w.-]+", names)
        ]


@dataclass(frozen=True)
class Program:
    """A compiled program."""

    computations: Mapping[str, Sequence[Instruction]]
    """The instructions of each computation, in their order, by its name."""
    entry: str
    """The name of the computation that is run."""
    num_devices: int
    """How many devices run the program."""
    module: str
    """The name of the program, by which a profile tells it from others."""

    def rounds(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """Yield the computations that an instruction runs, and how often each is run.

        A loop runs its body. The number of rounds is the loop's known trip count; or else the loop
        counts from 0 to the one integer of its condition, as do all loops that JAX makes of a scan,
        and those that XLA makes. Other loops count as one round, and a conditional runs every
        branch.
        """
        if loop := _LOOP.search(instruction.line):
            condition, body = (self.computations.get(name, ()) for name in loop.groups())
            yield loop[2], _trip_count(instruction.line, condition, body)
        else:
            for name in instruction.called:
                yield name, 1

    def loops(self) -> Iterator[str]:
        """Yield the name of the body of every loop without a known trip count."""
        for _, instruction, _ in self.executed():
            loop = _LOOP.search(instruction.line)
            if loop and not _TRIPS.search(instruction.line):
                yield loop[2]

    def executed(self, name: str = "", count: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Yield every instruction that is run, after its computation and before its number of runs.

        It begins with a computation (empty for the entry) that is itself run `count` times.
        """
        name = name or self.entry
        for instruction in self.computations.get(name, ()):
            yield name, instruction, count
            for called, times in self.rounds(instruction):
                yield from self.executed(called, count * times)


def parse_program(text: str) -> Program:
    """Parse the text of a program, the HLO of a compiled one."""
    computations: dict[str, list[Instruction]] = {}
    entry, instructions = "", None
    for line in _KERNEL_METADATA.sub("", text).splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY ")):
            name = line.removeprefix("ENTRY ").split(" ", 1)[0].lstrip("%")
            entry = name if line.startswith("ENTRY ") else entry
            instructions = computations[name] = []
        elif line.startswith("}"):
            instructions = None
        elif instructions is not None and (match := _INSTRUCTION.match(line)):
            root, name, shape, opcode, operands = match.groups()
            listed = _COMMENT.sub("", operands).split(",")
            names = tuple(each.rpartition(" ")[2].strip("% ") for each in listed if each)
            instructions.append(Instruction(name, shape, opcode, names, line, root is not None))
    head = text.partition("\n")[0]
    sizes = map(int, _DEVICES.findall(head))
    module = _MODULE.match(head)
    return Program(computations, entry, math.prod(sizes), module[1] if module else "")


def root_of(instructions: Sequence[Instruction]) -> Instruction | None:
    """Return the instruction whose result is that of a computation; None if it is empty."""
    return next((each for each in instructions if each.is_root), None)


def _trip_count(loop: str, condition: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    if known := _TRIPS.search(loop):
        return int(known[1])
    bounds = _integers(condition)
    if len(bounds) != 1:
        return 1
    return math.ceil(next(iter(bounds.values())) / _increment(condition, body))


def _increment(condition: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    """Return the number that a round adds to a loop's counter: 1, or more if it is unrolled."""
    places = [_INDEX.search(each.line) for each in condition if each.opcode == "get-tuple-element"]
    root = root_of(body)
    results = root.operands if root and root.opcode == "tuple" else ()
    place = int(places[0][1]) if places and places[0] else len(results)
    if place >= len(results):
        return 1
    added = (each for each in body if each.name == results[place] and each.opcode == "add")
    constants = _integers(body)
    names = next((each.operands for each in added), ())
    return next((constants[name] for name in names if name in constants), 1)


def _integers(instructions: Sequence[Instruction]) -> dict[str, int]:
    found = {}
    for each in instructions:
        number = _INTEGER.search(each.line)
        if number and each.opcode == "constant" and re.match(r"[su]\d+\[\]", each.shape):
            found[each.name] = int(number[1])
    return found
