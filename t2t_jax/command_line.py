"""What the programs have in common: flags from dataclasses, errors in one line. And `train.py`'s.

JAX and the model are imported once the flags are known to be good, so that `--help` and a misspelt
flag answer at once.
"""

import argparse
import contextlib
import dataclasses
import glob
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, NoReturn

import absl.logging
import platformdirs
import tyro
from rich.text import Text

from t2t_jax.config import Config, walk
from t2t_jax.config_file import load_config
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.parallel.host import (
    collect_garbage_seldom,
    keep_freed_memory,
    let_devices_wait,
    num_virtual_devices,
)


@dataclass(frozen=True)
class Train:
    """Train a Transformer, or go on with a run that was stopped."""

    workdir: Path = tyro.MISSING
    """Directory of the run."""
    config: str | None = None
    """Config file: configs/base.py, or configs/grid.py:NAME. A run goes on without one."""
    compile_only: str | None = None
    """Train nothing: compile the step and say whether it fits, and how fast it can be. For the
    devices of this machine, or for TPUs that need not be there: v5e:4x4. Needs no --workdir."""
    coordinator: str | None = None
    """Of a run of several processes: HOST:PORT of process 0. Without these three flags, the
    environment (Slurm, Open MPI, a TPU pod) says whether there are others."""
    num_processes: int | None = None
    """Of a run of several processes: how many there are."""
    process_id: int | None = None
    """Of a run of several processes: which one this is, from 0."""
    fields: Annotated[Config, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff] = field(
        default_factory=Config
    )


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a program on its command line and exit with the code it returns.

    A `UserError`, or a file that the system refuses, becomes one line on stderr and exit code 2.
    Ctrl-C and a reader that goes away (`| head`) end the program quietly, with the exit codes that
    shells give them.
    """
    prepare_process()
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except UserError as error:
        _refuse(str(error))
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + 13
    except OSError as error:
        _refuse(
            f"{error.filename or 'a file'}: {error.strerror or error}; check place and permission"
        )
    except KeyboardInterrupt:
        code = 128 + 2
    sys.exit(code)


def prepare_process() -> None:
    """Set what has to be set before JAX is imported."""
    # What one run compiles, the next one finds.
    compiled = platformdirs.user_cache_path("t2t_jax") / "compiled"
    with contextlib.suppress(OSError):  # then nothing is kept
        compiled.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(compiled))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    absl.logging.set_verbosity(absl.logging.ERROR)  # Orbax warns of everything it does
    if not any(glob.iglob("/dev/accel*")) and not any(glob.iglob("/dev/vfio/*")):
        # No TPU: its library, where it is installed, would complain that it finds none.
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    if isinstance(sys.stdout, io.TextIOWrapper):  # a sample translation must not end a training
        sys.stdout.reconfigure(errors="backslashreplace")
    keep_freed_memory()
    collect_garbage_seldom()
    if num_virtual_devices() > 1:
        let_devices_wait()


def _refuse(message: str) -> NoReturn:
    """Say why in one line, and end the process.

    At once: threads of a restore that failed would go on to complain while Python shuts down.
    """
    print("error:", " ".join(message.split()), file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(2)


def train_command(arguments: Sequence[str]) -> Train:
    """What a command line of `train.py` asks for.

    Fields that no flag names are those of the config file, or else of the run in the directory.

    Raises:
      UserError: a flag or its value is refused, or there is no config.
    """
    check_flags(arguments, [*names(Train), *(path for path, _, _ in walk(Config()))])
    arguments = _with_empty_value(arguments, "--compile-only")
    config_file, workdir = peek(arguments)
    base = load_config(config_file) if config_file else stored_config(workdir)
    defaults = Train(fields=base or Config())
    if "--compile-only" in arguments:
        defaults = dataclasses.replace(defaults, workdir=Path())  # which nobody reads
    command = parse(Train, arguments, prog="train.py", default=defaults)
    if base is None:
        without = f"{workdir} holds no run to go on with" if workdir else "there is no config"
        raise UserError(f"{without}; name a config, as in --config configs/base.py")
    return command


def _with_empty_value(arguments: Sequence[str], flag: str) -> list[str]:
    """Give a flag an empty value where it stands alone: tyro knows no optional ones."""
    filled = []
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=True):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") != flag:
            filled.append(argument)
        elif equals:
            filled += [flag, value]
        else:
            filled += [flag, ""] if following.startswith("--") else [flag]
    return filled


def names(command: type) -> list[str]:
    """Names of a dataclass's fields, which are its flags."""
    return [field.name for field in dataclasses.fields(command)]


def check_flags(arguments: Sequence[str], known: list[str]) -> None:
    """Refuse a flag that is none of the known ones, and propose the nearest.

    Raises:
      UserError: there is such a flag.
    """
    flags = [f"--{name.replace('_', '-')}" for name in [*known, "help"]]
    seen = set()
    for flag in (argument.partition("=")[0] for argument in arguments):
        if not flag.startswith("--"):
            continue
        if (dashed := flag.replace("_", "-")) not in flags:
            hint = did_you_mean(dashed, flags, "see --help for all flags")
            raise UserError(f"unknown flag {flag}; {hint}")
        if dashed in seen:
            raise UserError(f"{flag} is given twice; give it once, with all of its values")
        seen.add(dashed)


def peek(arguments: Sequence[str]) -> tuple[str | None, Path | None]:
    """The values of `--config` and (the first) `--workdir`: the defaults of all other flags."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--workdir", nargs="*", type=Path, default=[])
    named, _ = parser.parse_known_args(arguments)
    return named.config, next(iter(named.workdir), None)


def stored_config(workdir: Path | None) -> Config | None:
    """The config of the run in a directory; None if there is no run.

    Raises:
      UserError: it is damaged.
    """
    if workdir is None or not workdir.is_dir():
        return None
    from t2t_jax.workdir import is_run, read_config

    return read_config(workdir) if is_run(workdir) else None


def parse(command: Any, arguments: Sequence[str], **settings: Any) -> Any:
    """`tyro.cli`, with its boxes of red text turned into a `UserError`.

    Raises:
      UserError: the command line is refused.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(
                command, args=arguments, config=(tyro.conf.FlagCreatePairsOff,), **settings
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise _refusal(end, printed.getvalue()) from end


def _refusal(end: BaseException, printed: str) -> UserError:
    """Why the command line was refused: by the config itself, or else by tyro's own words."""
    cause = end.__context__
    while cause:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__context__
    rows = [row.strip("│ ") for row in Text.from_ansi(printed).plain.splitlines()[1:]]
    message = takewhile(lambda row: row and not row.startswith("─"), rows)
    return UserError(f"{' '.join(message).rstrip('.')}; see --help")
