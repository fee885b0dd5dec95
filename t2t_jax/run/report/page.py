"""The page of a report: sections with tables, as text for a terminal and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

Row = tuple[str, ...]
"""Cells of a table."""

DEVIATES = "≠"
"""The first cell of a row about something in which the run is not as the paper states."""
UNKNOWN = "–"
"""Stands for a value that is not known."""


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


@dataclass(frozen=True)
class RunReport:
    """One page on a run."""

    title: str
    """The page's heading."""
    deviations: list[str]
    """Names of the settings that are not the paper's."""
    sections: list[Section]
    """The parts of the page, from top to bottom."""

    def terminal(self) -> Group:
        """The page for a terminal: print it with a `rich.console.Console`."""
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
        """The page as Markdown."""
        blocks = [f"# {self.title}"]
        for section in self.sections:
            blocks += [f"## {section.title}", *section.notes]
            if section.rows:
                rule = ("---",) * len(section.header)
                rows = [section.header, rule, *section.rows]
                blocks.append("\n".join(map(_markdown_row, rows)))
            blocks += [f"```text\n{plotted}\n```" for plotted in section.plots]
        return "\n\n".join(blocks) + "\n"


def _markdown_row(cells: Row) -> str:
    """A row of a Markdown table; `|` within a cell is escaped."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def deviations(rows: Sequence[Row]) -> list[str]:
    """The names, each once, of the settings in rows that are marked as deviations."""
    return list(dict.fromkeys(row[1] for row in rows if row[0] == DEVIATES))


def shown(value: Any) -> str:
    """A value as a cell has it: numbers with separators, no more than 6 digits of a float."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return " ".join(map(shown, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def all_shown(values: Mapping[str, Any]) -> str:
    """Values by attribute of `Config`: one if all are the same, or else each with its name."""
    cells = {path.rpartition(".")[2]: shown(value) for path, value in values.items()}
    if len(set(cells.values())) == 1:
        return next(iter(cells.values()))
    return " ".join(f"{name}={cell}" for name, cell in cells.items())
