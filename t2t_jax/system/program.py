"""Run a program: standard streams, signals, one-line errors and exit codes.

A program imports this module first, and imports other modules inside its `main`. Before `run`
watches signals, Ctrl-C would print a traceback.
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
"""Parts of `ImportError` messages about a lack of memory or address space."""
_closed: set[str] = set()
_report: Callable[[BaseException], str] | None = None  # see `at_failure`
_begun: float | None = None


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a program on its command line, and exit with the returned code.

    Report a `UserError` or an `OSError` as one line on stderr, with a code of `system.exit_codes`.
    After a closed output pipe (`| head`) or a signal, exit silently with the code that shells
    report.
    """
    global _begun
    _begun = time.time()
    replace_closed_streams()
    # Call this before a second thread starts, because new threads get separate memory arenas.
    host.keep_freed_memory()
    with watching():
        prepare_process()
        code = _run_main(main)
    sys.exit(code)


def at_failure(report: Callable[[BaseException], str]) -> None:
    """Register `report`, which is called with the error that ends the program.

    `report` returns a prefix for the error message on stderr.
    """
    global _report
    _report = report


def begun() -> float | None:
    """Return the start time of the program in seconds since 1970; None without `run`."""
    return _begun


def replace_closed_streams() -> None:
    """Replace standard streams that the caller closed (`<&-`, `>&-`) by /dev/null.

    Otherwise, the next opened file would get the descriptor of the stream, and the output.
    """
    _closed.clear()
    for number, name in _STREAMS.items():
        try:
            os.fstat(number)
        except OSError:
            _closed.add(name)
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            assert descriptor == number
            os.set_inheritable(number, True)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def is_closed(name: str) -> bool:
    """Return whether the program was started without `stdin`, `stdout` or `stderr`."""
    return name in _closed or getattr(sys, name) is None


def command_line(command: str) -> str:
    """Return how to call a command: `t2t-jax train`, or `eval.py train` in a clone."""
    script = os.path.basename(sys.argv[0])
    return f"eval.py {command}" if script in ("train.py", "eval.py") else f"t2t-jax {command}"


def prepare_process() -> None:
    """Configure the process before it imports JAX: compilation cache, logging and memory."""
    import absl.logging

    # Without a writable cache directory, JAX compiles every program again.
    with contextlib.suppress(OSError):
        cache_directory = user_folder("cache") / "compiled"
        cache_directory.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    absl.logging.set_verbosity(absl.logging.ERROR)
    keep_orbax_quiet()
    # Training already reports an infinite loss.
    warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning)
    host.keep_libtpu_quiet()
    if isinstance(sys.stdout, io.TextIOWrapper):  # printing a translation must never fail
        sys.stdout.reconfigure(errors="backslashreplace")
    host.keep_freed_memory()
    host.collect_garbage_seldom()
    if host.num_virtual_devices() > 1:
        host.let_devices_wait()


def _run_main(main: Callable[[Sequence[str]], int]) -> int | str | None:
    """Run `main` and return its exit code; end the process after an error of the user."""
    try:
        try:
            code: int | str | None = main(sys.argv[1:])
        except SystemExit as system_exit:  # --help
            code = system_exit.code
        sys.stdout.flush()
        return code
    except UserError as error:
        _fail(str(error), error)
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as error:
        _fail(f"{_file_of(error)}: {error.strerror or error}; {way_out_of(error)}", error)
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not any(sign in str(error) for sign in _TOO_LARGE):
            raise
        _fail(f"the memory is used up ({error}); close other programs, or raise ulimit -v", error)
    except KeyboardInterrupt:  # raised by a config file
        return 128 + 2


def _file_of(error: OSError) -> str:
    if error.filename is not None:
        return str(error.filename)
    try:
        sys.stdout.flush()
    except OSError:  # the buffer still cannot be written
        return "the standard output"
    # Without a buffer (PYTHONUNBUFFERED), there is no output to flush.
    is_write = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    return "the standard output or a file" if is_write else "a file"


def _fail(message: str, error: BaseException) -> NoReturn:
    """Print an error message in one line, and exit at once."""
    prefix = _report(error) if _report else ""
    with contextlib.suppress(OSError):
        print(f"error: {prefix}{in_one_line(message)}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # `sys.exit` would let threads of a failed restore print more errors during the shutdown.
    os._exit(exit_code_of(error) or REFUSED)
