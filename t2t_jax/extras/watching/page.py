"""Lay out a report as sections with tables and curves, for a terminal or as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from rich.console import Group
from rich.table import Table
from rich.text import Text

from t2t_jax.config import Config
from t2t_jax.system.console import markdown_row
from t2t_jax.system.records import Record
from t2t_jax.workdir import LOG_FIGURES

Row = tuple[str, ...]
"""The cells of a table row."""

DEVIATES = "≠"
"""The mark in the first cell of a table row where the run deviates from the paper."""
UNKNOWN = "–"
"""The text of a cell whose value is unknown."""
# A Braille character is _BRAILLE plus one bit for each of its dots, 4 rows of 2.
_BRAILLE, _DOTS = 0x2800, np.array([[1, 8], [2, 16], [4, 32], [64, 128]])


@dataclass(frozen=True)
class Section:
    """A section of a report: notes, then a table, then plots."""

    title: str
    notes: list[str]
    """Paragraphs before the table."""
    header: Row = ()
    """The column headings of the table."""
    rows: list[Row] = field(default_factory=list)
    """The rows of the table; no rows mean no table."""
    plots: list[str] = field(default_factory=list)
    """Curves drawn as text, each below a line with its title."""

    def markdown(self) -> str:
        """Return the section as Markdown."""
        blocks = [f"## {self.title}", *self.notes]
        if self.rows:
            rule = ("---",) * len(self.header)
            blocks.append("\n".join(map(markdown_row, [self.header, rule, *self.rows])))
        return "\n\n".join([*blocks, *(f"```text\n{plot}\n```" for plot in self.plots)])


@dataclass(frozen=True)
class RunReport:
    """A report on a training run, as sections under a title."""

    title: str
    sections: list[Section]
    """The sections from top to bottom."""

    def terminal(self) -> Group:
        """Return the report for `rich.console.Console.print`."""
        blocks: list[Text | Table] = [Text(self.title, style="bold")]
        for section in self.sections:
            blocks += [Text(f"\n{section.title}", style="bold"), *map(Text, section.notes)]
            if section.rows:
                table = Table(box=None, pad_edge=False, header_style="dim")
                for heading in section.header:
                    table.add_column(heading, overflow="fold")
                for row in section.rows:
                    table.add_row(*map(Text, row), style="bold" if row[0] == DEVIATES else "")
                blocks.append(table)
            blocks += [Text(plot, no_wrap=True) for plot in section.plots]
        return Group(*blocks)

    def markdown(self) -> str:
        """Return the report as Markdown."""
        blocks = [f"# {self.title}", *(section.markdown() for section in self.sections)]
        return "\n\n".join(blocks) + "\n"


def deviations(rows: Sequence[Row]) -> list[str]:
    """Return the names of the settings that rows mark as deviations, without duplicates."""
    return list(dict.fromkeys(row[1] for row in rows if row[0] == DEVIATES))


def format_cell(value: object) -> str:
    """Format a cell value: integers with separators, floats with up to 6 significant digits."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return " ".join(map(format_cell, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_cells(values: Mapping[str, object]) -> str:
    """Format config values: one value if all are equal, else name=value for each."""
    cells = {path.rpartition(".")[2]: format_cell(value) for path, value in values.items()}
    if len(set(cells.values())) == 1:
        return next(iter(cells.values()))
    return " ".join(f"{name}={cell}" for name, cell in cells.items())


def scientific(number: float) -> str:
    """Format a large number with up to three digits, such as 2.3e19."""
    return f"{number:.3g}".replace("e+", "e")


def metric_names(log: Sequence[Record]) -> list[str]:
    """Return the names of the user's metrics in the training records of a log."""
    return sorted({name for x in log if x["of"] == "train" for name in x} - LOG_FIGURES)


def has_own_loss(config: Config) -> bool:
    """Return whether a run minimizes another loss than the paper."""
    return config.training.loss != Config().training.loss


def curves_section(log: Sequence[Record]) -> Section:
    """Return a section that plots losses, learning rate and metrics over the logged steps."""
    curves = {
        "loss in training": ("train", "loss"),
        "loss on dev, label-smoothed, nats per target subword": ("dev", "loss"),
        "learning rate": ("train", "learning_rate"),
        **{f"{name} in training": ("train", name) for name in metric_names(log)},
    }
    plots = []
    for title, (kind, name) in curves.items():
        steps, values = series(log, kind, "step", name)
        if len(steps) > 1:
            plots.append(f"{title}\n{plot_curves(steps, values)}")
    return Section("Curves", [] if plots else ["Nothing to plot yet."], plots=plots)


def series(log: Sequence[Record], kind: str, *names: str) -> Float[np.ndarray, "names records"]:
    """Return the values of some fields over the log records that have all of these fields.

    Args:
      kind: the kind of records to read: train, or the split of an evaluation.
      names: the fields. A null counts as missing.
    """
    rows = [[record.get(name) for name in names] for record in log if record.get("of") == kind]
    complete_rows = [row for row in rows if all(isinstance(value, int | float) for value in row)]
    # The range of an axis with larger values would overflow.
    return np.array(complete_rows, np.float64).clip(-1e300, 1e300).reshape(-1, len(names)).T


def plot_curves(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], width: int = 64, height: int = 6
) -> str:
    """Draw a curve with Braille characters, each of which has 2 columns and 4 rows of dots.

    Args:
      width: characters per line, without the labels.
      height: lines of the curve, at least 2. One more line shows the range of `x`.
    """
    low, high = float(y.min()), float(y.max())
    curve = np.interp(np.linspace(x[0], x[-1], 2 * width), x, y)
    levels = np.rint((curve - low) / ((high - low) or 1) * (4 * height - 1))
    previous = np.append(levels[:1], levels[:-1])  # each column connects two levels
    dot_rows = np.arange(4 * height)[::-1, None]
    dots = (np.minimum(levels, previous) <= dot_rows) & (dot_rows <= np.maximum(levels, previous))
    cells = (dots.reshape(height, 4, width, 2) * _DOTS[:, None]).sum((1, 3))
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"]
    lines = [
        f"{label:>10} {''.join(map(chr, line))}"
        for label, line in zip(labels, _BRAILLE + cells, strict=True)
    ]
    first_label, last_label = f"step {x[0]:,.0f}", f"{x[-1]:,.0f}"
    return "\n".join([*lines, " " * 11 + first_label + last_label.rjust(width - len(first_label))])
