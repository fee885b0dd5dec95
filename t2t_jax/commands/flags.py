"""Flags from dataclasses, which is what the programs have in common. And those of `train.py`.

JAX and the model are imported once the flags are known to be good, so that `--help` and a misspelt
flag answer at once.
"""

import argparse
import contextlib
import dataclasses
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.text import Text

from t2t_jax.config import Config, walk
from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError, did_you_mean

_MAY_BE_EMPTY = ("--data.cache-dir", "--cache-dir")


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


def train_command(arguments: Sequence[str]) -> Train:
    """What a command line of `train.py` asks for.

    Fields that no flag names are those of the config file, or else of the run in the directory.

    Raises:
      UserError: a flag or its value is refused, or there is no config.
    """
    if not arguments:
        raise UserError(
            "train.py takes a config and the directory of the run, as in --config configs/base.py "
            "--workdir runs/base; see --help"
        )
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
    filled: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=False):
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
      UserError: there is such a flag, or one is given twice, or an empty value.
    """
    flags = [f"--{name.replace('_', '-')}" for name in [*known, "help"]]
    seen: set[str] = set()
    flag = ""
    for argument in arguments:
        value = argument
        if argument.startswith("--"):
            given, equals, value = argument.partition("=")
            flag = given.replace("_", "-")
            if flag not in flags:
                hint = did_you_mean(flag, flags, "see --help for all flags")
                raise UserError(f"unknown flag {given}; {hint}")
            if flag in seen:
                raise UserError(f"{given} is given twice; give it once, with all of its values")
            seen.add(flag)
            if not equals:
                continue
        if flag and not value and flag not in _MAY_BE_EMPTY:
            raise UserError(f"{flag} is given an empty value; is a variable of the shell unset?")


def peek(arguments: Sequence[str]) -> tuple[str | None, Path | None]:
    """The values of `--config` and (the first) `--workdir`: the defaults of all other flags.

    Raises:
      UserError: checkpoints cannot be in a directory of such a name.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--workdir", nargs="*", type=Path, default=[])
    named, _ = parser.parse_known_args(arguments)
    for workdir in named.workdir:
        check_name(workdir)
    return named.config, next(iter(named.workdir), None)


def check_name(workdir: Path) -> None:
    """Refuse a directory that checkpoints cannot be written to, as its name is no text.

    Raises:
      UserError: it is not UTF-8.
    """
    try:
        str(workdir).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the name of the directory {os.fsencode(workdir)!r} is not UTF-8, as the libraries "
            "that read and write checkpoints need it; give it another name"
        ) from error


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
