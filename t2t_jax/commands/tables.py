"""The tables that commands print."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from t2t_jax.system.console import ResultConsole


def result_console(**settings: Any) -> "ResultConsole":
    """Return a console for results with settings of rich, which is imported for results alone."""
    from t2t_jax.system.console import ResultConsole

    return ResultConsole(**settings)


def report_console(width: int, **settings: Any) -> "ResultConsole":
    """Return a console for a page, which is as wide as the terminal, or has a width without one."""
    columns = None if sys.stdout.isatty() else width
    return result_console(width=columns, highlight=False, **settings)


def print_result(what: Any) -> None:
    """Print a table or a line, as wide on a terminal as in a file."""
    result_console(width=100, markup=False, highlight=False).print(what)


def print_line(line: str) -> None:
    """Print a line in one piece, however wide the terminal is."""
    result_console(markup=False, highlight=False).print(line, soft_wrap=True)


def grid(first: str, *others: str) -> "Table":
    """Return a table without rows, with a first column of text and further columns of figures."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for other in others:
        table.add_column(other, justify="right")
    return table
