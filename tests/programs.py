"""Run a program to its end, as a user would start it from a clone."""

import os
import subprocess
import sys
from pathlib import Path

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
