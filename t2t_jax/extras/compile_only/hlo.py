"""A parser for the text of a compiled program.

The text is XLA's partitioned and scheduled HLO (`jax.stages.Compiled.as_text`): one program for
every device, in computations that call each other.
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
_INTEGER = re.compile(r" = [su]\d+\[\]\S* constant\((\d+)\)")
_INDEX = re.compile(r"\), index=(\d+)")
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_MODULE = re.compile(r"HloModule ([^\s,]+)")
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n.*?\n\}", re.DOTALL)
"""Metadata of a Pallas kernel: separate lines in the middle of an instruction."""
_DEVICES = re.compile(r"\b(?:replica_count|num_partitions)=(\d+)")


@dataclass(frozen=True)
class ArrayShape:
    """The dtype and the dimensions of an array in a compiled program."""

    dtype: str
    """XLA's name of the element type, such as `bf16`."""
    bits: int
    """Bits per element."""
    sizes: tuple[int, ...]
    """The size of each dimension."""

    @property
    def count(self) -> int:
        """Return the number of elements of the array."""
        return math.prod(self.sizes)

    @property
    def num_bytes(self) -> float:
        """Return the size of the array in bytes."""
        return self.count * self.bits / 8


@dataclass(frozen=True)
class Instruction:
    """One HLO instruction of a computation, which is one line of text."""

    name: str
    """Name by which other instructions refer to the result."""
    shape: str
    """Text of the shape of the result, such as `(f32[2,3]{1,0}, bf16[4]{0})`."""
    opcode: str
    """Kind of operation."""
    operands: tuple[str, ...]
    """Names of the instructions whose results it reads."""
    line: str
    """Full text of the instruction."""
    is_root: bool
    """Whether its result is the result of the computation."""

    @property
    def arrays(self) -> list[ArrayShape]:
        """Return the shape of each array in the result of the instruction."""
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
        """Return JAX's name of the operation and of the modules around it, or "" without a name."""
        match = _OP_NAME.search(self.line)
        return match[1] if match else ""

    @property
    def called(self) -> list[str]:
        """Return the names of the computations that the instruction calls; [] for a loop."""
        return [
            name for names in _CALLED.findall(self.line) for name in re.findall(r"[\w.-]+", names)
        ]


@dataclass(frozen=True)
class Program:
    """A compiled program, parsed from XLA's HLO text."""

    computations: Mapping[str, Sequence[Instruction]]
    """Instructions of each computation, in text order."""
    entry: str
    """Name of the computation that a run starts with."""
    num_devices: int
    """Number of devices that run the program."""
    module: str
    """Name of the program in a profile."""

    def runs_of_called(self, instruction: Instruction) -> Iterator[tuple[str, int]]:
        """Yield the name of each computation that an instruction runs, and the number of its runs.

        A loop without a noted trip count counts from 0 to the only integer in its condition, as the
        loops of `jax.lax.scan` do; any other loop counts as one iteration. A conditional counts as
        one run of each branch.
        """
        if loop := _LOOP.search(instruction.line):
            condition, body = (self.computations.get(name, ()) for name in loop.groups())
            yield loop[2], _trip_count(instruction.line, condition, body)
        else:
            for name in instruction.called:
                yield name, 1

    def loops(self) -> Iterator[str]:
        """Yield the name of the body of every loop whose trip count XLA does not note."""
        for _, instruction, _ in self.executed():
            loop = _LOOP.search(instruction.line)
            if loop and not _TRIPS.search(instruction.line):
                yield loop[2]

    def executed(self, name: str = "", count: int = 1) -> Iterator[tuple[str, Instruction, int]]:
        """Yield every instruction that runs, with its computation's name and its number of runs.

        Args:
          name: computation to start with, which runs `count` times; "" means the entry.
        """
        name = name or self.entry
        for instruction in self.computations.get(name, ()):
            yield name, instruction, count
            for computation, runs in self.runs_of_called(instruction):
                yield from self.executed(computation, count * runs)


def parse_program(text: str) -> Program:
    """Parse the HLO text of a compiled program."""
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
            parts = _COMMENT.sub("", operands).split(",")
            inputs = tuple(part.rpartition(" ")[2].strip("% ") for part in parts if part)
            instructions.append(Instruction(name, shape, opcode, inputs, line, root is not None))
    header = text.partition("\n")[0]
    device_counts = map(int, _DEVICES.findall(header))
    module = _MODULE.match(header)
    return Program(computations, entry, math.prod(device_counts), module[1] if module else "")


def root_of(instructions: Sequence[Instruction]) -> Instruction | None:
    """Return the root instruction of a computation, or None if the computation is empty."""
    return next((instruction for instruction in instructions if instruction.is_root), None)


def _trip_count(line: str, condition: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    if match := _TRIPS.search(line):
        return int(match[1])
    limits = _integers(condition)
    if len(limits) != 1:
        return 1
    return math.ceil(next(iter(limits.values())) / _increment(condition, body))


def _increment(condition: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    """Return the increment of a loop's counter; it is above 1 if XLA unrolled the loop."""
    # The condition reads the counter from a tuple; the body's result has the new counter there.
    elements = [i for i in condition if i.opcode == "get-tuple-element"]
    match = _INDEX.search(elements[0].line) if elements else None
    root = root_of(body)
    results = root.operands if root and root.opcode == "tuple" else ()
    index = int(match[1]) if match else len(results)
    if index >= len(results):
        return 1
    sums = (i.operands for i in body if i.name == results[index] and i.opcode == "add")
    constants = _integers(body)
    return next((constants[name] for name in next(sums, ()) if name in constants), 1)


def _integers(instructions: Sequence[Instruction]) -> dict[str, int]:
    matches = {instruction.name: _INTEGER.search(instruction.line) for instruction in instructions}
    return {name: int(match[1]) for name, match in matches.items() if match}
