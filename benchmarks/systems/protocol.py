"""The protocol between `peers.py` and the process of a system: JSON lines over its pipes.

The system says when it has started. The parent sends work, which the system prepares and
does twice: so it is compiled, and caches are warm. Then the parent asks for one measurement at a
time. Between them the process is idle.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from systems.available import System
from t2t_jax.config import Config
from t2t_jax.errors import UserError

_BENCHMARKS = Path(__file__).parents[1]
_LEAST_SECONDS = 1.0  # of a measurement; shorter work is repeated
_PAUSE_SECONDS = 0.5  # OpenMP threads spin for up to 0.2 s after their work, and disturb others


@dataclass(frozen=True)
class Training:
    """A step of training on a batch without padding: forward, backward, Adam."""

    config_json: str
    inputs: list[list[int]]
    targets: list[list[int]]
    steps: int = 1
    """The steps that a call takes without waiting in between."""

    @property
    def config(self) -> Config:
        """Return the config, which has the sizes of the network and the recipe."""
        return Config.from_json(self.config_json)


@dataclass(frozen=True)
class Decoding:
    """A search for translations of exactly `target_length` tokens, without an end of sentence."""

    config_json: str
    inputs: list[list[int]]
    target_length: int
    weights: str
    """The directory of the parameters; see `weights.py`."""

    @property
    def config(self) -> Config:
        """Return the config, which has the sizes of the network and the search."""
        return Config.from_json(self.config_json)


Work = Training | Decoding
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Training, Decoding)}

Train = Callable[[Training], Callable[[], float]]
"""A function that prepares a step; each call takes `steps` of it, waits and returns the loss."""
Decode = Callable[[Decoding], Callable[[], list[list[int]]]]
"""A function that prepares a search; each call returns the best hypothesis of each source."""


def serve(*, train: Train | None = None, decode: Decode | None = None) -> None:
    """Answer requests of the parent until it closes the pipe."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as replies:
        os.dup2(
            sys.stderr.fileno(), sys.stdout.fileno()
        )  # so that nothing that libraries print is taken for a reply
        prepare: dict[str, Any] = {"Training": train, "Decoding": decode}
        call: Callable[[], Any] | None = None
        reply: Any
        print(json.dumps("started"), file=replies, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            if request:
                call = None
                gc.collect()  # free what the work before has used
                start = time.perf_counter()
                kind = request.pop("kind")
                call = prepare[kind](_KINDS[kind](**request))
                reply = call(), time.perf_counter() - start
                call()
            else:
                assert call is not None
                reply = _seconds_of(call)
            print(json.dumps(reply), file=replies, flush=True)


def _seconds_of(call: Callable[[], Any]) -> float:
    """Return the mean seconds of a call, over enough calls for the least time of a measurement."""
    calls, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < _LEAST_SECONDS or not calls:
        call()
        calls += 1
    return seconds / calls


class Worker:
    """A handle of `peers.py` on the process of a system."""

    def __init__(self, system: System) -> None:
        """Start the process."""
        self.system = system
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by __exit__)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", f"systems.{system.module}"),
                *(system.precision, *system.arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(system.environment),
            start_new_session=True,  # Ctrl-C is for the parent alone
        )

    def __enter__(self) -> "Worker":
        """Wait until the process has made its imports.

        Raises:
          UserError: the process failed.
        """
        try:
            self._reply()
        except UserError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()

    def prepare(self, work: Work) -> tuple[Any, float]:
        """Have the process prepare work, and do it once.

        Returns:
          The output, which is a loss or hypotheses, and the seconds until it was returned.

        Raises:
          UserError: the process failed.
        """
        output, seconds = self._ask({"kind": type(work).__name__, **asdict(work)})
        return output, seconds

    def measure(self) -> float:
        """Have the process do the work that it has prepared.

        Returns:
          The seconds that it took.

        Raises:
          UserError: the process failed.
        """
        time.sleep(_PAUSE_SECONDS)
        seconds: float = self._ask({})
        return seconds

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # there is no reply then
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._reply()

    def _reply(self) -> Any:
        assert self._process.stdout is not None
        reply = self._process.stdout.readline()
        if not reply:
            code = self._process.wait()
            self._errors.seek(0)
            raise _died(self.system.name, code, self._errors.read())
        return json.loads(reply)


def call_program(name: str, command: Sequence[str | Path], **added: str) -> float:
    """Run a program to its end.

    Args:
      name: the program's name in error messages.
      command: the arguments of Python.
      added: variables to add to the program's environment.

    Returns:
      The seconds that the program took.

    Raises:
      UserError: the program failed.
    """
    start = time.perf_counter()
    program = [sys.executable, *command]
    done = subprocess.run(
        program,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(added),
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise _died(name, done.returncode, done.stderr)
    return seconds


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that imports from this folder."""
    paths = filter(None, [str(_BENCHMARKS), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **added}


def _died(name: str, code: int, errors: str) -> UserError:
    """Return the error for a process that failed, and print all that it wrote."""
    print(errors, file=sys.stderr)
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["nothing"]
    last = lines[-1].removeprefix("error: ")
    return UserError(f"{name} ended with exit code {code}, having written (all is above): {last}")
