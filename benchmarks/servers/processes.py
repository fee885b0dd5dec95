"""The processes that a benchmark of servers starts and ends."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from systems.protocol import call_program

from t2t_jax.errors import UserError

_BENCHMARKS = Path(__file__).parents[1]
_SECONDS_TO_STOP = 90.0


def allow_many_connections() -> None:
    """Let this process, and those that it starts, have as many open files as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Program:
    """A program that prints lines on its standard output, and runs until it is ended."""

    def __init__(self, name: str, command: Sequence[str | Path]) -> None:
        """Start the program.

        Args:
          name: the program's name in error messages.
          command: the arguments of Python.
        """
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by __exit__)
        paths = filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH", "")])
        # The other program would inherit signals that this one ignores, as under nohup.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the parent alone
        )
        signal.signal(signal.SIGHUP, before)

    def __enter__(self) -> "Program":
        """Return the program itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the program, if it still runs."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
        self.errors.close()

    def said(self) -> str:
        """Wait for the next line that the program prints, and return it.

        Raises:
          UserError: the program has ended.
        """
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        code = self.process.wait()
        print(self.written(), file=sys.stderr)
        raise UserError(f"{self.name} ended with exit code {code}; what it wrote is above")

    def written(self) -> str:
        """Return what the program has written to its standard error so far."""
        # Do not seek: the program writes at the same position of the file.
        file = self.errors.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")

    def stop(self) -> int | None:
        """Ask the program to end; return its exit code, or None if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            return None


class Served(Program):
    """A server of translations.

    Attributes:
      address: the address of the server, as http://127.0.0.1:5000; known once it is entered.
    """

    address: str

    def __enter__(self) -> "Served":
        """Wait until the server takes requests."""
        try:
            self.address = self.said().split()[-1]
        except UserError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Ask the server to end, and kill it if it does not."""
        if self.process.poll() is None:
            self.stop()
        super().__exit__()


class Offline(Program):
    """A process that translates lines offline by t2t_jax.

    Attributes:
      found: the translations; known once it is entered.
    """

    found: list[str]

    def __init__(
        self, workdir: Path, beam_size: int, longest: int, lines: Sequence[str], folder: Path
    ) -> None:
        """Start the process.

        Args:
          workdir: directory of the run.
          beam_size: the number of hypotheses of the search.
          longest: the most subwords of a line that is translated as a whole.
          lines: the lines.
          folder: a directory for files.
        """
        given, self._out = folder / "lines.json", folder / "translations.json"
        given.write_text(json.dumps(list(lines)), encoding="utf-8")
        command = ["-m", "servers.offline", workdir, str(beam_size), str(longest)]
        command += [given, self._out]
        super().__init__("offline translation", command)

    def __enter__(self) -> "Offline":
        """Wait until the process has translated the lines once."""
        try:
            self.said()
        except UserError:
            self.__exit__()
            raise
        self.found = json.loads(self._out.read_text(encoding="utf-8"))
        return self

    def seconds(self) -> float:
        """Have the process translate the lines again, and return the seconds that it took."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return float(self.said())


def run_job(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Put a server under load, in a process of its own; see `servers.load`.

    Args:
      job: the job.

    Returns:
      The outcome of each request.

    Raises:
      UserError: the process failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "servers.load"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        cwd=_BENCHMARKS,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise UserError("the load ended before its time; what it wrote is above")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def exported(workdir: Path, folder: Path) -> Path:
    """Export the model of a run for CTranslate2, in float32, and return its directory.

    Args:
      workdir: directory of the run.
      folder: the folder in which the directory is made, unless it exists.
    """
    model = folder / "ctranslate2"
    if not model.exists():
        call_program("export", ["-m", "t2t_jax", "export", workdir, "--to", "ctranslate2", model])
    return model
