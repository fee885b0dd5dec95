"""The tables that commands print."""

from typing import Any

from rich.table import Table

from t2t_jax.system.console import ResultConsole


def print_result(what: Any) -> None:
    """Print a table or a line, as wide on a terminal as in a file."""
    ResultConsole(width=100, markup=False, highlight=False).print(what)


def print_line(line: str) -> None:
    """Print a line in one piece, however wide the terminal is."""
    ResultConsole(markup=False, highlight=False).print(line, soft_wrap=True)


def grid(first: str, *others: str) -> Table:
    """Return a table without rows, with a first column of text and further columns of figures."""
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for other in others:
        table.add_column(other, justify="right")
    return table
