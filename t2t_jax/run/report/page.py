"""The page of a report: sections with tables, as text for a terminal and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

Row = tuple[str, ...]
"""The cells of a row of a table."""

DEVIATES = "≠"
"""The mark in the first cell of a row in which the run deviates from the paper."""
UNKNOWN = "–"
"""The sign for a value that is not known."""


@dataclass(frozen=True)
class Section:
    """A part of a report: sentences, then a table, then plots."""

    title: str
    """The section's heading."""
    notes: list[str]
    """Sentences ahead of the table, a paragraph each."""
    header: Row = ()
    """The headings of the table's columns."""
    rows: list[Row] = field(default_factory=list)
    """The rows of the table; without any, no table is shown."""
    plots: list[str] = field(default_factory=list)
    """Curves drawn as text, each with a line above that says what it shows."""

    def markdown(self) -> str:
        """Return the section as Markdown."""
        blocks = [f"## {self.title}", *self.notes]
        if self.rows:
            rule = ("---",) * len(self.header)
            blocks.append("\n".join(map(markdown_row, [self.header, rule, *self.rows])))
        return "\n\n".join([*blocks, *(f"```text\n{plotted}\n```" for plotted in self.plots)])


@dataclass(frozen=True)
class RunReport:
    """One page on a run."""

    title: str
    """The page's heading."""
    sections: list[Section]
    """The parts of the page, from top to bottom."""

    def terminal(self) -> Group:
        """Return the page for a `rich.console.Console`."""
        parts: list[Text | Table] = [Text(self.title, style="bold")]
        for section in self.sections:
            parts += [Text(f"\n{section.title}", style="bold"), *map(Text, section.notes)]
            if section.rows:
                table = Table(box=None, pad_edge=False, header_style="dim")
                for head in section.header:
                    table.add_column(head, overflow="fold")
                for row in section.rows:
                    table.add_row(*map(Text, row), style="bold" if row[0] == DEVIATES else "")
                parts.append(table)
            parts += [Text(plotted, no_wrap=True) for plotted in section.plots]
        return Group(*parts)

    def markdown(self) -> str:
        """Return the page as Markdown."""
        blocks = [f"# {self.title}", *(section.markdown() for section in self.sections)]
        return "\n\n".join(blocks) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table, with `|` escaped in its cells."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def deviations(rows: Sequence[Row]) -> list[str]:
    """Return the names, each once, of the settings that rows mark as deviations."""
    return list(dict.fromkeys(row[1] for row in rows if row[0] == DEVIATES))


def shown(value: Any) -> str:
    """Format a value for a cell: numbers with separators, floats with at most 6 digits."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return " ".join(map(shown, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def all_shown(values: Mapping[str, Any]) -> str:
    """Format values by attribute of `Config`: once if all are equal, else each with its name."""
    cells = {path.rpartition(".")[2]: shown(value) for path, value in values.items()}
    if len(set(cells.values())) == 1:
        return next(iter(cells.values()))
    return " ".join(f"{name}={cell}" for name, cell in cells.items())


def power(number: float) -> str:
    """Format a large number with three digits, as 2.3e19."""
    return f"{number:.3g}".replace("e+", "e")
