"""The start and the end of every program: streams, signals, errors of one line and exit code.

A program imports this module first, and all else within its `main`: until `run` watches signals,
Ctrl-C would show a traceback.
"""

import contextlib
import errno
import io
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from t2t_jax.errors import UserError, in_one_line, way_out_of
from t2t_jax.system import host
from t2t_jax.system.exit_codes import REFUSED, exit_code_of
from t2t_jax.system.folders import user_folder
from t2t_jax.system.quiet import keep_orbax_quiet
from t2t_jax.system.signals import watching

_STREAMS = {0: "stdin", 1: "stdout", 2: "stderr"}
_TOO_LARGE = "failed to map segment", "annot allocate memory"
"""The signs that a library was not loaded because memory or addresses for it are lacking."""
_closed: set[str] = set()
_report: Callable[[BaseException], str] | None = None  # see `at_failure`
_begun: float | None = None


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a program on its command line and exit with the code it returns.

    A `UserError`, or a file that the system refuses, becomes one line on stderr and a code of
    `system.exit_codes`.
    A reader that goes away (`| head`) ends the program quietly, with the exit code that shells
    report. So does a signal, unless the program takes it as a request to stop.
    """
    global _begun
    _begun = time.time()
    replace_closed_streams()
    # Before there is a second thread, as its memory would have rules of its own.
    host.keep_freed_memory()
    with watching():
        prepare_process()
        code = _code_of(main)
    sys.exit(code)


def at_failure(report: Callable[[BaseException], str]) -> None:
    """Call a function with each error that ends the program; it returns the head of the message."""
    global _report
    _report = report


def begun() -> float | None:
    """Return when this program was started, in seconds since 1970; None in a user's own process."""
    return _begun


def replace_closed_streams() -> None:
    """Replace standard streams that the caller closed (`<&-`, `>&-`) by /dev/null.

    Call it before opening any other file, which would take the stream's number and receive the
    program's output.
    """
    _closed.clear()
    for number, name in _STREAMS.items():
        try:
            os.fstat(number)
        except OSError:
            _closed.add(name)
            opened = os.open(os.devnull, os.O_RDWR)  # which takes the lowest free number
            assert opened == number
            os.set_inheritable(number, True)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def is_closed(name: str) -> bool:
    """Return whether the program was started without `stdin`, `stdout` or `stderr`."""
    return name in _closed or getattr(sys, name) is None


def command_line(command: str) -> str:
    """Return the call of a command: `t2t-jax train`, or `eval.py train` from a clone's programs."""
    called = os.path.basename(sys.argv[0])
    return f"eval.py {command}" if called in ("train.py", "eval.py") else f"t2t-jax {command}"


def prepare_process() -> None:
    """Set the process-wide state of a program, before it imports JAX."""
    import absl.logging

    # What one run compiles, the next one finds. Without a place for it, nothing is kept.
    with contextlib.suppress(OSError):
        compiled = user_folder("cache") / "compiled"
        compiled.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compiled))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    absl.logging.set_verbosity(absl.logging.ERROR)
    keep_orbax_quiet()
    # Its consequences are reported anyway, such as a loss that is not finite.
    warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning)
    host.keep_libtpu_quiet()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a sample translation must not end a training
        sys.stdout.reconfigure(errors="backslashreplace")
    host.keep_freed_memory()
    host.collect_garbage_seldom()
    if host.num_virtual_devices() > 1:
        host.let_devices_wait()


def _code_of(main: Callable[[Sequence[str]], int]) -> int | str | None:
    """Return the exit code of a program that ends by itself; a refused one ends the process."""
    try:
        try:
            code: int | str | None = main(sys.argv[1:])
        except SystemExit as end:  # --help
            code = end.code
        sys.stdout.flush()
        return code
    except UserError as error:
        _refuse(str(error), error)
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        _refuse(f"{_name_in(error)}: {error.strerror or error}; {way_out_of(error)}", error)
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not any(sign in str(error) for sign in _TOO_LARGE):
            raise
        _refuse(f"the memory is used up ({error}); close other programs, or raise ulimit -v", error)
    except KeyboardInterrupt:  # of a config file
        return 128 + 2


def _name_in(error: OSError) -> str:
    if error.filename is not None:
        return str(error.filename)
    try:
        sys.stdout.flush()
    except OSError:  # what was not written before is not written now
        return "the standard output"
    # Without a buffer (PYTHONUNBUFFERED), nothing is left that could be tried again.
    is_write = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return "the standard output or a file" if is_write else "a file"


def _refuse(message: str, error: BaseException) -> NoReturn:
    """Print the message in one line, and end the process.

    It ends at once: threads of a failed restore would print more errors while Python shuts down.
    """
    place = _report(error) if _report else ""
    with contextlib.suppress(OSError):
        print(f"error: {place}{in_one_line(message)}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(exit_code_of(error) or REFUSED)
