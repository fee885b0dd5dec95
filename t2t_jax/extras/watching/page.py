"""The page of a report: sections with tables and curves, for a terminal and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from rich.console import Group
from rich.table import Table
from rich.text import Text

from t2t_jax.system.console import markdown_row
from t2t_jax.system.records import Record

Row = tuple[str, ...]
"""The cells of a row of a table."""

DEVIATES = "≠"
"""The mark in the first cell of a row in which the run deviates from the paper."""
UNKNOWN = "–"
"""The sign for a value that is not known."""
# Bits of the Braille characters: those of the dots of a character, 4 rows of 2.
_BRAILLE, _DOTS = 0x2800, np.array([[1, 8], [2, 16], [4, 32], [64, 128]])


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


def deviations(rows: Sequence[Row]) -> list[str]:
    """Return the names, each once, of the settings that rows mark as deviations."""
    return list(dict.fromkeys(row[1] for row in rows if row[0] == DEVIATES))


def shown(value: object) -> str:
    """Format a value for a cell: numbers with separators, floats with at most 6 digits."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return " ".join(map(shown, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def all_shown(values: Mapping[str, object]) -> str:
    """Format values by attribute of `Config`: once if all are equal, else each with its name."""
    cells = {path.rpartition(".")[2]: shown(value) for path, value in values.items()}
    if len(set(cells.values())) == 1:
        return next(iter(cells.values()))
    return " ".join(f"{name}={cell}" for name, cell in cells.items())


def power(number: float) -> str:
    """Format a large number with three digits, as 2.3e19."""
    return f"{number:.3g}".replace("e+", "e")


def curves_section(log: Sequence[Record]) -> Section:
    """Return the section that plots loss and learning rate over the logged steps."""
    curves = {
        "loss in training, label-smoothed, nats per target subword": ("train", "loss"),
        "loss on dev, label-smoothed, nats per target subword": ("dev", "loss"),
        "learning rate": ("train", "learning_rate"),
    }
    plots = []
    for title, (of, name) in curves.items():
        steps, values = series(log, of, "step", name)
        if len(steps) > 1:
            plots.append(f"{title}\n{plot_curves(steps, values)}")
    return Section("Curves", [] if plots else ["Nothing to plot yet."], plots=plots)


def series(log: Sequence[Record], of: str, *names: str) -> Float[np.ndarray, "names records"]:
    """Return figures of the records of one kind that have all of them.

    Args:
      of: the kind of record: train, or the split that was evaluated.
      names: fields of the records; null counts as missing.
    """
    rows = [[record.get(name) for name in names] for record in log if record.get("of") == of]
    known = [row for row in rows if all(isinstance(value, int | float) for value in row)]
    # Beyond, the range of an axis has no float.
    return np.array(known, np.float64).clip(-1e300, 1e300).reshape(-1, len(names)).T


def plot_curves(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], width: int = 64, height: int = 6
) -> str:
    """Draw a curve as lines of Braille characters, each of 2 columns and 4 rows of dots.

    Args:
      width: characters across, without the labels.
      height: lines, at least 2, without the last line, which shows the range of `x`.
    """
    low, high = float(y.min()), float(y.max())
    curve = np.interp(np.linspace(x[0], x[-1], 2 * width), x, y)
    level = np.rint((curve - low) / ((high - low) or 1) * (4 * height - 1))
    before = np.append(level[:1], level[:-1])
    row = np.arange(4 * height)[::-1, None]
    dots = (np.minimum(level, before) <= row) & (row <= np.maximum(level, before))
    cells = (dots.reshape(height, 4, width, 2) * _DOTS[:, None]).sum((1, 3))
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"]
    lines = [
        f"{label:>10} {''.join(map(chr, line))}"
        for label, line in zip(labels, _BRAILLE + cells, strict=True)
    ]
    first, last = f"step {x[0]:,.0f}", f"{x[-1]:,.0f}"
    return "\n".join([*lines, " " * 11 + first + last.rjust(width - len(first))])
