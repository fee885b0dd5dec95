"""Run a Python file that the user wrote, and turn its mistakes into errors of one line.

Such a file gives configs and registers functions. If it changes other state of the process, such as
the working directory, the recursion limit or the standard streams, that state is put back.
"""

import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from t2t_jax.config.registry import FILES, registering
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.system.signals import ProcessState

_T = TypeVar("_T")
_LONGEST = 500
_seen: set[str] = set()


def run_file(path: str) -> dict[str, Any]:
    """Run a Python file and return the names that it defines, with their values."""
    if Path(path).suffix != ".py":
        raise UserError(f"config file {path} is not a .py file; see configs/ for the ones that are")
    with registering():
        return guarded(path, lambda: runpy.run_path(path))


def run_registering_files() -> None:
    """Run the files that the environment variable `FILES` names, each once."""
    named = os.environ.get(FILES, "")
    for path in filter(None, named.split(os.pathsep)):
        if path not in _seen:
            _seen.add(path)  # before: the file may make configs that name what it registers
            run_file(path)


def guarded(path: str, work: Callable[[], _T]) -> _T:
    """Call a function that runs code of a user's file, and return its result.

    Whatever the code raises becomes a `UserError` that says where in the file.
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
    """Make the error of one line for an exception that a file has raised."""
    # Not by `traceback.extract_tb`, which would read the file.
    frames = traceback.walk_tb(error.__traceback__)
    lines: list[int | None] = [line for frame, line in frames if frame.f_code.co_filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f"{path} line {lines[-1]}" if lines else path
    try:
        text = in_one_line(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # of the error's own code
        text = "its text cannot be shown"
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(error, UserError):
        return UserError(f"{where}: {text}")
    return UserError(
        f"{where}: {type(error).__name__}: {text}; mend the file, where get_config() without "
        "arguments or VARIANTS gives a t2t_jax.Config, as in configs/base.py"
    )
