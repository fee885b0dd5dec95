"""The page of the figures of `accelerator.py`: descriptions of the parts, tables and goals."""

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from measuring import cell

from on_accelerator.published import PUBLISHED

NOTE = "note"
"""The name of the table for remarks on a part."""

_Row = Mapping[str, Any]


class Part(NamedTuple):
    """A part of the program."""

    name: str
    """The name of the module that measures the part."""
    title: str
    """The headline of the part on the page."""
    seconds: int
    """The part's share of the time, in relation to those of other parts."""
    packages: tuple[str, ...] = ()
    """The packages that the part needs beside JAX, Flax, Optax and jaxtyping."""
    xla_flags: str = ""
    """Flags of XLA in the part's process."""

    @property
    def lacks(self) -> list[str]:
        """Return those of `packages` that are not installed."""
        return [name for name in self.packages if find_spec(name) is None]


_TRAINER = ("grain", "orbax", "sentencepiece", "tensorboardX", "tyro")

PARTS = (
    Part("devices", "Devices", 30),
    Part("parity", "The same results as on the CPU", 90),
    Part("attention", "Fused attention", 30),
    Part("training", "Training steps", 140),
    Part("programs", "Whole programs", 70, (*_TRAINER, "sacrebleu", "sacremoses")),
    Part(
        "parts_of_a_step",
        "Where the time of a step goes",
        70,
        xla_flags="--xla_gpu_enable_command_buffer=",  # a profile names what graphs do by the graph
    ),
    Part("decoding", "Searches", 70),
    Part("resume", "Killed and resumed", 50, (*_TRAINER, "sacrebleu", "sacremoses")),
    Part("pytorch", "Beside PyTorch", 60, ("torch", "tyro")),
    Part("choices", "What each choice is worth", 200),
)
"""All parts, the most valuable ones first."""


class Goal(NamedTuple):
    """A goal that a figure is compared with."""

    text: str
    """The goal in words."""
    part: str
    """The part with the figure that is compared."""
    find: Callable[[Sequence[_Row]], float | None]
    """A function that returns the figure in the part's rows; None if it was not measured."""
    least: float
    """The least figure that reaches the goal."""


def _figure(
    pick: Callable[[Iterable[float]], float], name: str, **where: str
) -> Callable[[Sequence[_Row]], float | None]:
    """Return a function that finds one figure by its name, in rows whose cells hold these texts."""

    def find(rows: Sequence[_Row]) -> float | None:
        matching = (row for row in rows if all(text in row.get(n, "") for n, text in where.items()))
        found = [row[name] for row in matching if name in row]
        return pick(found) if found else None

    return find


GOALS = (
    Goal(
        "base: 40% of the bfloat16 peak",
        "training",
        _figure(max, "share_of_peak", model="base", dtype="bfloat16"),
        0.4,
    ),
    Goal(
        "big: 50% of the bfloat16 peak",
        "training",
        _figure(max, "share_of_peak", model="big", dtype="bfloat16"),
        0.5,
    ),
    Goal(
        "1.3 times as fast as compiled PyTorch",
        "pytorch",
        _figure(min, "times_the_milliseconds_of_ours", system="PyTorch"),
        1.3,
    ),
    Goal(
        "the loop at 95% of the bare step's speed",
        "programs",
        _figure(min, "speed_beside_the_bare_step"),
        0.95,
    ),
    *(
        Goal(
            f"the CPU's tokens in float32, {search}",
            "parity",
            _figure(min, f"{tokens} equal", **{"computed in": "float32, highest precision"}),
            1.0,
        )
        for search, tokens in (("greedy", "greedy tokens"), ("beam 4", "tokens of a beam of 4"))
    ),
)
"""The goals that the figures are compared with."""


def page(rows: Sequence[_Row]) -> str:
    """Return the page in Markdown, from rows as `accelerator.py` writes them down."""
    by_part = {part.name: [row for row in rows if row["part"] == part.name] for part in PARTS}
    text = ["# An accelerator, measured", "", *_goals(by_part)]
    for part in PARTS:
        text += ["", f"## {part.title}", "", _description(part)]
        own = by_part[part.name]
        for row in own:
            if row["table"] == NOTE:
                text += ["", f"**{row['note']}**"]
        for table in dict.fromkeys(row["table"] for row in own if row["table"] != NOTE):
            text += ["", f"### {table[0].upper()}{table[1:]}", ""]
            text += _table([row for row in own if row["table"] == table])
        if not own:
            text += ["", "Not measured."]
    text += ["", "## Published by others", "", *_published(by_part)]
    return "\n".join(text) + "\n"


def _goals(by_part: Mapping[str, Sequence[_Row]]) -> list[str]:
    lines = ["| goal | measured | |", "|---|---|---|"]
    for goal in GOALS:
        figure = goal.find(by_part[goal.part])
        if figure is None:
            lines.append(f"| {goal.text} | not measured | |")
        else:
            verdict = "reached" if figure >= goal.least else "missed"
            lines.append(f"| {goal.text} | {_cell(figure)} | {verdict} |")
    return lines


def _published(by_part: Mapping[str, Sequence[_Row]]) -> list[str]:
    """Return the lines on the big model's speed as measured here, and as others publish theirs."""
    lines = ["| model | devices | tokens a second | of each device | work | source |"]
    lines.append("|---" * 6 + "|")
    fastest = _figure(max, "target_tokens_per_second", model="big", dtype="bfloat16")
    if (speed := fastest(by_part["training"])) is not None:
        devices = next((row["devices"] for row in by_part["devices"] if "devices" in row), "")
        work = "random tokens without padding, bfloat16, target tokens, the bare step"
        lines.append(f"| big | {devices} | {_cell(speed)} | | {work} | this page |")
    for one in PUBLISHED:
        speeds = one.tokens_per_second, one.tokens_per_second / one.num_devices
        cells = one.model, f"{one.num_devices} x {one.device}", *map(_cell, speeds)
        lines.append(f"| {' | '.join((*cells, one.work, one.source))} |")
    return lines


@cache
def _description(part: Part) -> str:
    """Return the docstring of the part's module, without an import, which may lack packages."""
    source = Path(__file__).with_name(f"{part.name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _table(rows: Sequence[_Row]) -> list[str]:
    """Return a table with a column for each figure; for a single row, a line for each figure."""
    hidden = {"part", "time", "table"}
    names = [name for name in dict.fromkeys(n for row in rows for n in row) if name not in hidden]
    if len(rows) == 1:
        pairs = [f"| {_words(name)} | {_cell(rows[0][name])} |" for name in names]
        return ["| | |", "|---|---|", *pairs, "", f"Measured at {rows[0]['time']}."]
    head = [f"| {' | '.join(map(_words, names))} |", "|---" * len(names) + "|"]
    cells = ([_cell(row.get(name, "")) for name in names] for row in rows)
    times = f"Measured from {rows[0]['time']} to {rows[-1]['time']}."
    return [*head, *(f"| {' | '.join(row)} |" for row in cells), "", times]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return cell(value)
