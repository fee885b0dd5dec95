"""Run a Python config file of the user, and turn its exceptions into one-line errors.

After the file has run, changed process state, such as the working directory, the recursion limit or
the standard streams, is restored.
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
    """Run a Python file and return its global variables."""
    if Path(path).suffix != ".py":
        raise UserError(f"{path} is not a .py file; see configs/ for the config files")
    if not Path(path).is_file():
        raise UserError(f"{path}: No such file; check the path")
    with registering():
        return guarded(path, lambda: runpy.run_path(path))


def run_registering_files() -> None:
    """Run each file in the environment variable `FILES` once."""
    paths = os.environ.get(FILES, "")
    for path in filter(None, paths.split(os.pathsep)):
        if path not in _seen:
            _seen.add(path)  # before the run, because the file may make configs
            run_file(path)


def guarded(path: str, work: Callable[[], _T]) -> _T:
    """Call a function that runs code of a user's file.

    Exceptions become a `UserError` with the line number in the file.
    """
    limit, state = sys.getrecursionlimit(), ProcessState()
    try:
        return work()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too: a config file must not end the program
        sys.setrecursionlimit(limit)  # first, because the file may have lowered the limit
        raise _mistake(path, error) from error
    finally:
        sys.setrecursionlimit(limit)
        state.restore()


def _mistake(path: str, error: BaseException) -> UserError:
    """Make a one-line error of an exception in a user's file."""
    # `traceback.extract_tb` would read the file.
    frames = traceback.walk_tb(error.__traceback__)
    lines: list[int | None] = [line for frame, line in frames if frame.f_code.co_filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines = [error.lineno]
    where = f"{path} line {lines[-1]}" if lines else path
    try:
        text = in_one_line(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # raised by the code of the exception
        text = "its text cannot be shown"
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    if isinstance(error, UserError):
        return UserError(f"{where}: {text}")
    return UserError(
        f"{where}: {type(error).__name__}: {text}; mend the file; as a config, it needs "
        "get_config() without arguments or VARIANTS, as in configs/base.py"
    )
