"""Run programs as a user would start them from a clone, and what their tests need."""

import linecache
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_program(
    *command: object, cwd: Path = ROOT, stdin: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Return the exit code and the output of a program, to which the package is known.

    Args:
      command: the program and its arguments.
      cwd: the directory in which it runs.
      stdin: what it reads from its standard input.
      environment: variables in addition to those of this process.
    """
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def run_python(
    *arguments: object,
    code: int | None = None,
    cwd: Path = ROOT,
    stdin: str | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run this Python with some arguments, as `run_program` runs a program.

    It has to end with `code`, if that is given.
    """
    done = run_program(sys.executable, *arguments, cwd=cwd, stdin=stdin, **environment)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


def free_port(ports: Iterable[int] = (0,)) -> int:
    """Return the number of a port that no program of this machine listens at.

    Args:
      ports: those to choose from; 0 stands for any.
    """
    for port in ports:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return listener.getsockname()[1]
    raise AssertionError("no port is free")


def wait_until(holds: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until a condition holds, and return what makes it true."""
    latest = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < latest, "what the test waits for does not come"
        time.sleep(0.02)
    return found


def run_cell(cell: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a notebook cell, whose source Python finds as in IPython; return its names."""
    names = {"__name__": "notebook"} if names is None else names
    file = f"<cell {hash(cell)}>"
    linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
    exec(compile(cell, file, "exec"), names)
    return names
