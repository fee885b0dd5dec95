"""Run a program in a process of its own, with limits of time and memory."""

import importlib
import multiprocessing
import os
import resource
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

MOST_MEMORY = 8 * 2**30
"""Bytes that a process may allocate."""
START_SECONDS, CASE_SECONDS = 120.0, 120.0
"""Limits of the import of a program, and of the computation of a case."""
_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
"""Settings of XLA that shorten compiling, as in `tests/conftest.py`."""
CASES_PER_PROCESS = 100
"""After so many cases a process starts anew, as compiled functions take memory."""


class NotRun(NamedTuple):
    """The reason why a program gave no answer: it is missing, too slow, or it ended."""

    reason: str


class Failed(NamedTuple):
    """The error that a program raised."""

    error: str


@dataclass
class Program:
    """A module of this folder in a process of its own, which starts with the first call.

    Attributes:
      memory: most bytes of the process.
      niceness: how far the process yields to others, as for `os.nice`.
      seconds: the limit of each call.
    """

    module: str
    memory: int = MOST_MEMORY
    niceness: int = 0
    seconds: float = CASE_SECONDS
    _process: Any = None
    _connection: Any = None
    _num_calls: int = 0

    def call(self, function: str, *arguments: Any) -> Any:
        """Return the result of a function of the module, or why there is none."""
        answer = self._start() if self._process is None else None
        if isinstance(answer, Failed):
            answer = NotRun(f"cannot start: {answer.error}")
        if not isinstance(answer, NotRun):
            self._num_calls += 1
            answer = self._exchange((function, arguments), self.seconds)
        if isinstance(answer, NotRun) or self._num_calls >= CASES_PER_PROCESS:
            self.close()
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process, self._num_calls = None, 0

    def _start(self) -> Any:
        """Start the process, and return the names in the module, or why there are none."""
        spawn = multiprocessing.get_context("spawn")
        self._connection, remote = spawn.Pipe()
        arguments = remote, self.module, self.memory, self.niceness
        self._process = spawn.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        remote.close()
        return self._exchange(("__dir__", ()), START_SECONDS)

    def _exchange(self, request: Any, seconds: float) -> Any:
        try:
            self._connection.send(request)
            if self._connection.poll(seconds):
                return self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return NotRun(f"ended with exit code {self._process.exitcode}")
        return NotRun(f"gave no answer in {seconds:g} s")


def _serve(connection: Connection, module: str, memory: int, niceness: int) -> None:
    """Answer the calls of a `Program`, in its process."""
    # One thread each: the programs of all parts run side by side, and results are repeatable.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    os.environ["XLA_FLAGS"] = _FLAGS
    # The table is the output. What goes wrong is an answer, and not a message.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    os.nice(niceness)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    while True:
        connection.send(_answer(module, *connection.recv()))


def _answer(module: str, function: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(importlib.import_module(module), function)(*arguments)
    except MemoryError:
        os._exit(137)
    except Exception as error:
        (frame,) = traceback.extract_tb(error.__traceback__)[-1:]
        where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
        return Failed(f"{type(error).__name__} at {where}: {error}"[:600])
