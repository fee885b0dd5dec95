"""Print tables, lines and progress bars of commands, and write their plots."""

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
    """Create a `rich.console.Console` for results on the standard output."""
    from t2t_jax.system.console import ResultConsole

    return ResultConsole(markup=markup, highlight=highlight)


def print_result(result: object) -> None:
    """Print a table or a line, wrapped only on a terminal."""
    result_console(markup=False, highlight=False).print(result)


def progress(*columns: "str | ProgressColumn") -> "Progress":
    """Create progress bars with columns of rich, on the standard error."""
    from rich.progress import Progress

    from t2t_jax.system.console import ProgressConsole

    return Progress(*columns, console=ProgressConsole(stderr=True))


def show_progress(items: Iterable[_T], unit: str, total: int) -> Iterator[_T]:
    """Yield items and show a progress bar.

    Args:
      unit: the plural noun for the items, which labels the bar.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

    with progress(unit, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        yield from bar.track(items, total, description="")


def grid(text_column: str, *number_columns: str) -> "Table":
    """Create an empty table with a text column and right-aligned columns of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column(text_column, overflow="fold")  # wrap long names instead of cutting them
    for column in number_columns:
        table.add_column(column, justify="right")
    return table


def check_picture(flag: str, file: Path | None) -> None:
    """Check early that the plot of `flag` can be drawn and written to `file`, unless it is None.

    Raises:
      UserError: the suffix is not .svg or .png, matplotlib is missing, or the file is not writable.
    """
    if file is None:
        return
    if file.suffix not in (".svg", ".png"):
        raise UserError(f"--{flag} {file} has to end in .svg or .png")
    import_module("t2t_jax.system.drawing")  # raises a UserError without matplotlib
    check_file_writable(file)


def write_picture(file: Path, figure: "Figure") -> None:
    """Write a plot to a file, in the format of the file name suffix."""
    from t2t_jax.system.drawing import encode_figure

    write_whole(file, encode_figure(figure, file.suffix[1:]))
