"""How a file of Python that the user wrote is run: its mistakes are errors of one line.

Such a file gives configs and registers functions. What it changes of the process besides, such as
the working directory, the recursion limit or the standard streams, is put back.
"""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from t2t_jax.config.registry import registering
from t2t_jax.errors import UserError
from t2t_jax.system.process_state import ProcessState

_T = TypeVar("_T")
_LONGEST = 500


def run_file(path: str) -> dict[str, Any]:
    """The names that a file of Python defines.

    Args:
      path: the file.

    Raises:
      UserError: there is no such file, or it is no Python, or it raises an error.
    """
    if Path(path).suffix != ".py":
        raise UserError(f"config file {path} is not a .py file; see configs/ for the ones that are")
    with registering():
        return guarded(path, lambda: runpy.run_path(path))


def guarded(path: str, work: Callable[[], _T]) -> _T:
    """What a function of a file returns.

    Args:
      path: the file.
      work: what is done with it.

    Raises:
      UserError: it raised anything, for which the error says where in the file.
    """
    limit, state = sys.getrecursionlimit(), ProcessState()
    try:
        return work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a file has no business to end the program
        sys.setrecursionlimit(limit)  # before anything is called: the file may have lowered it
        raise _mistake(path, error) from error
    finally:
        sys.setrecursionlimit(limit)
        state.put_back()


def _mistake(path: str, error: BaseException) -> UserError:
    """One line for what a file has raised."""
    lines = _lines(error.__traceback__, path)
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f"{path} line {lines[-1]}" if lines else path
    if isinstance(error, UserError):
        return UserError(f"{where}: {_text_of(error)}")
    return UserError(
        f"{where}: {_name_of(error)}: {_text_of(error)}; mend the file, where get_config() without "
        "arguments or VARIANTS gives a t2t_jax.Config, as in configs/base.py"
    )


def _lines(traceback: TracebackType | None, path: str) -> list[int | None]:
    """The lines of a file in a traceback. No file is read for them: the file says what they are."""
    lines: list[int | None] = []
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == path:
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return lines


def _text_of(error: BaseException) -> str:
    """What an error says, in one line; its own `__str__` may be wrong, too."""
    try:
        return _line(error.msg if isinstance(error, SyntaxError) else str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "its text cannot be shown"


def _name_of(error: BaseException) -> str:
    try:
        return _line(type(error).__name__)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "an error"


def _line(text: Any) -> str:
    """A text, whatever its class, as one line of a length that can be read."""
    words = " ".join(str.split(text))
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."
