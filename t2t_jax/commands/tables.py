"""The tables, lines and bars that commands print, and the pictures that they draw."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import check_file_writable, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

    from t2t_jax.system.console import ResultConsole


_T = TypeVar("_T")


def result_console(*, markup: bool = True, highlight: bool = True) -> "ResultConsole":
    """Return a console for results with settings of rich, which is imported for results alone."""
    from t2t_jax.system.console import ResultConsole

    return ResultConsole(markup=markup, highlight=highlight)


def print_result(result: object) -> None:
    """Print a table or a line, which a terminal wraps and a file gets whole."""
    result_console(markup=False, highlight=False).print(result)


def print_line(line: str) -> None:
    """Print a line in one piece, however wide the terminal is."""
    result_console(markup=False, highlight=False).print(line, soft_wrap=True)


def progress(*columns: "str | ProgressColumn") -> "Progress":
    """Return bars with columns of rich, on the standard error; on a terminal they move."""
    from rich.progress import Progress

    from t2t_jax.system.console import ProgressConsole

    return Progress(*columns, console=ProgressConsole(stderr=True))


def counted(items: Iterable[_T], unit: str, total: int) -> Iterator[_T]:
    """Yield items, while a bar shows how many of them were taken.

    Args:
      unit: the name of the items in the plural, which stands ahead of the bar.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    with progress(unit, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        yield from bar.track(items, total, description="")


def grid(first: str, *others: str) -> "Table":
    """Return a table without rows, with a first column of text and further columns of figures."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for other in others:
        table.add_column(other, justify="right")
    return table


def check_picture(flag: str, file: Path | None) -> None:
    """Refuse a file for a picture that cannot be drawn or written, before anything is computed."""
    if file is None:
        return
    if file.suffix not in (".svg", ".png"):
        raise UserError(f"--{flag} {file} has to end in .svg or .png")
    import_module("t2t_jax.system.drawing")  # which needs the library
    check_file_writable(file)


def write_picture(file: Path, figure: "Figure") -> None:
    """Write a picture in the format that the suffix of its file names."""
    from t2t_jax.system.drawing import encoded

    write_whole(file, encoded(figure, file.suffix[1:]))
