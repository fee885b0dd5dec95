"""The pictures that commands draw into files."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import check_place, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_picture(flag: str, file: Path | None) -> None:
    """Refuse a file for a picture that cannot be drawn or written, before what it shows is known.

    Args:
      flag: the name of the flag that gives the file, such as "plot".
      file: the file; None is for no picture.

    Raises:
      UserError: the file has another suffix than .svg or .png, or nothing can be written in its
        directory, or the library that draws is not installed.
    """
    if file is None:
        return
    if file.suffix not in (".svg", ".png"):
        raise UserError(f"--{flag} {file} has to end in .svg or .png")
    import_module("t2t_jax.inspect.figures.drawing")  # which needs the library
    check_place(file)


def write_picture(file: Path, figure: "Figure") -> None:
    """Write a picture in the format that the suffix of its file names."""
    from t2t_jax.inspect.figures.drawing import encoded

    write_whole(file, encoded(figure, file.suffix[1:]))
