"""The results of `table1.py`: the exponents of growth, tables in Markdown and a plot."""

import io
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from layer_types import LayerType
from rich import box
from rich.table import Table

from t2t_jax.system.console import ResultConsole

Columns: TypeAlias = dict[tuple[str, str, int], dict[str, Any]]
"""The figures of each layer, direction and length."""

DIRECTIONS = ("forward", "forward and backward")

_BY_LENGTH = (
    ("GFLOP, forward", "forward", "operations", 1e-9),
    ("milliseconds, forward", "forward", "seconds_median", 1e3),
    ("milliseconds, forward and backward", "forward and backward", "seconds_median", 1e3),
    ("MB of temporaries, forward and backward", "forward and backward", "temporary_bytes", 1e-6),
    ("MB accessed by XLA's count, forward (- where there are loops)", "forward", "xla_bytes", 1e-6),
)


def exponent(lengths: Sequence[int], figures: Sequence[float]) -> float | None:
    """Fit b of figure = a length^b by least squares of logarithms; None of fewer than two figures.

    Args:
      lengths: the lengths in ascending order; the longer half of them counts, at least two.
      figures: a positive figure for each length.
    """
    if len(lengths) < 2:
        return None
    half = min(len(lengths) // 2, len(lengths) - 2)
    return float(np.polyfit(np.log(lengths[half:]), np.log(figures[half:]), 1)[0])


def add_exponents(columns: Columns) -> None:
    """Add the exponents of operations and of time, the same to all columns of a layer."""
    for layer, direction in dict.fromkeys(key[:2] for key in columns):
        of_layer = [column for key, column in columns.items() if key[:2] == (layer, direction)]
        fits = {}
        for name, figure in (("operations", "operations"), ("seconds", "seconds_median")):
            having = [column for column in of_layer if figure in column]
            fits[f"{name}_exponent"] = exponent(
                [column["length"] for column in having], [column[figure] for column in having]
            )
        for column in of_layer:
            column |= fits


def print_tables(types: Sequence[LayerType], columns: Columns) -> None:
    """Print the paper's columns beside the measured figures, and the figures of every length."""
    console = ResultConsole(highlight=False, width=160)
    lengths = sorted({length for _, _, length in columns})
    console.print(_growth(types, columns, lengths[-1]))
    console.print(_dependence(types, columns, lengths))
    for title, direction, figure, scale in _BY_LENGTH:
        table = _table(title, *(f"{length:,}" for length in lengths))
        for layer in types:
            found = [columns[layer.name, direction, n].get(figure) for n in lengths]
            table.add_row(
                layer.name, *("-" if x is None else _significant(scale * x) for x in found)
            )
        console.print(table)
    for line in _left_out(columns):
        console.print(line)


def _growth(types: Sequence[LayerType], columns: Columns, longest: int) -> Table:
    """Return the table of the exponents of each layer type."""
    table = _table(
        "layer", "the paper", "exponent of n", "of operations", "of time", "with backward"
    )
    for layer in types:
        forward, both = (columns[layer.name, direction, longest] for direction in DIRECTIONS)
        table.add_row(
            layer.name,
            layer.complexity,
            str(layer.exponent),
            _exponent(forward["operations_exponent"]),
            _exponent(forward["seconds_exponent"]),
            _exponent(both["seconds_exponent"]),
        )
    return table


def _dependence(types: Sequence[LayerType], columns: Columns, lengths: Sequence[int]) -> Table:
    """Return the table of each layer type's dependent steps, for the least and greatest length."""
    ends = f"n = {lengths[0]:,} to {lengths[-1]:,}"
    table = _table(
        *("layer", "sequential operations", f"chain, {ends}", "maximum path", f"path, {ends}")
    )
    for layer in types:
        least, most = (columns[layer.name, "forward", n] for n in (lengths[0], lengths[-1]))
        table.add_row(
            layer.name,
            layer.sequential,
            _between(least["chain"], most["chain"]),
            layer.path,
            _between(least["path_length"], most["path_length"]),
        )
    return table


def _left_out(columns: Columns) -> Iterator[str]:
    for (layer, direction, length), column in columns.items():
        if "refused" in column:
            yield f"{layer}, {length:,}, {direction}: not run, as {column['refused']}."


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.MARKDOWN)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _exponent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _between(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _significant(value: float) -> str:
    """Format a number with three significant digits, and all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plot(types: Sequence[LayerType], columns: Columns) -> bytes:
    """Return a PNG of operations and times by length, with fitted exponents and the paper's."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(13, 9), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="col")
    lengths = sorted({length for _, _, length in columns})
    for row, direction in zip(panels, DIRECTIONS, strict=True):
        for axes, name in zip(row, ("operations", "seconds"), strict=True):
            for number, layer in enumerate(types):
                of_layer = [columns[layer.name, direction, n] for n in lengths]
                _draw(axes, of_layer, name, layer.exponent, f"C{number}")
            axes.set(xscale="log", yscale="log", xlabel="positions n", title=f"{name}, {direction}")
            axes.set_xticks(lengths, [f"{n:,}" for n in lengths], minor=False, rotation=45)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            lines = sorted(axes.lines[::2], key=lambda line: -line.get_ydata()[-1])
            axes.legend(handles=lines, title="slope (paper)", fontsize=8, loc=(1.01, 0.28))
    title = "solid: measured, with the fitted slope; dotted: with the paper's exponent of n"
    names = [layer.name for layer in types]
    figure.legend(panels[0, 0].lines[::2], names, loc="outside lower center", ncols=3, title=title)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120, metadata={"Software": None})
    return png.getvalue()


def _draw(axes: Any, columns: Sequence[Any], name: str, exponent: int, color: str) -> None:
    figure = {"operations": "operations", "seconds": "seconds_median"}[name]
    having = [column for column in columns if figure in column]
    if not having:
        return
    n, values = np.array([(column["length"], column[figure]) for column in having]).T
    label = f"{_exponent(columns[-1][f'{name}_exponent'])} ({exponent})"
    axes.plot(n, values, "o-", color=color, markersize=3, label=label)
    axes.plot(n, values[-1] * (n / n[-1]) ** exponent, ":", color=color)
