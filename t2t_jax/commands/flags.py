"""The parser of flags for every command, in which each field of a dataclass is a flag.

Neither this module nor the top of a command's module imports JAX: a command imports it once its
flags are checked, so that `--help` and a misspelt flag answer at once.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import tyro
from rich.text import Text
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
)

from t2t_jax.config import Config
from t2t_jax.config.config import known_fields
from t2t_jax.config.families import fields_of, foreign_field
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.system.bucket import as_path
from t2t_jax.system.opening import opened

_parsing = threading.Lock()
_OTHER_NAMES = {
    "--training.peak-learning-rate": ("--lr", "--max-lr"),
    "--training.num-train-steps": ("--steps", "--max-steps", "--train-steps", "--epochs"),
    "--training.ema-decay": ("--ema",),
    "--data.target-tokens-per-step": ("--batch-size", "--max-tokens"),
    "--model.num-encoder-layers": ("--layers", "--num-layers"),
    "--model.num-heads": ("--heads",),
    "--model.compute-dtype": ("--dtype", "--bf16", "--fp16", "--precision"),
    "--parallel.data": ("--devices", "--num-devices", "--num-gpus"),
    "--parallel.fsdp": ("--fsdp",),
    "--parallel.tensor": ("--tensor", "--tensor-parallel-size"),
    "--workdir": ("--output-dir", "--save-dir", "--model-dir"),
    "--beam-size": ("--beam", "--num-beams"),
}
"""The names of flags in other programs, where they are not close to the names of this package."""
_MAY_BE_EMPTY = ("--data.cache-dir", "--cache-dir")


def names(command: type) -> list[str]:
    """Return the names of a dataclass's fields, which are its flags.

    A field that is a dataclass has flags of its own, with its name as their prefix unless its
    annotation sets an empty name. A field whose value stands on the command line without a flag is
    left out.
    """
    found: list[str] = []
    for field in dataclasses.fields(command):
        kind = _dataclass_of(field)
        if kind is None:
            found += [] if _is_positional(field) else [field.name]
        elif kind is Config:
            found += known_fields()
        else:
            settings = getattr(field.type, "__metadata__", ())
            is_bare = any(getattr(one, "name", None) == "" for one in settings)
            found += [name if is_bare else f"{field.name}.{name}" for name in names(kind)]
    return found


def _is_positional(field: "dataclasses.Field[Any]") -> bool:
    """Return whether the value of a field stands on the command line without a flag."""
    return tyro.conf.Positional in getattr(field.type, "__metadata__", ())


def _dataclass_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the dataclass that is the default of a field; None for other defaults."""
    kind = field.default_factory
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def takes_run(command: type) -> bool:
    """Return whether a command takes the directories of runs without a flag."""
    fields = dataclasses.fields(command)
    return any(_is_positional(one) and one.name in ("runs", "run_directory") for one in fields)


def check_flags(arguments: Sequence[str], known: list[str], *, takes_run: bool = False) -> None:
    """Refuse a flag of a command line that is not known, given twice or empty; propose the nearest.

    With `takes_run`, the directories of runs stand without a flag.
    """
    flags = [f"--{name.replace('_', '-')}" for name in known]
    seen: set[str] = set()
    flag = ""
    for argument in arguments:
        value = argument
        if argument.startswith("--"):
            given, equals, value = argument.partition("=")
            flag = given.replace("_", "-")
            if flag not in (*flags, "--help"):
                raise UserError(f"unknown flag {given}; {_hint(flag, flags, takes_run)}")
            if flag in seen:
                raise UserError(f"{given} is given twice; give it once, with all of its values")
            seen.add(flag)
            if not equals:
                continue
        if flag and not value and flag not in _MAY_BE_EMPTY:
            raise UserError(f"{flag} is given an empty value; is a variable of the shell unset?")


def _hint(flag: str, flags: Sequence[str], takes_run: bool) -> str:
    """Return the advice for an unknown flag."""
    if flag == "--version":
        return "the version is printed by t2t-jax --version"
    if flag == "--workdir" and takes_run:
        return "the directory of a run stands without a flag here, as in watch runs/base"
    for known in flags:
        if flag in _OTHER_NAMES.get(known, ()):
            return f"did you mean {known}?"
    return did_you_mean(flag, flags, "see --help for all flags")


def peek(
    arguments: Sequence[str], place: Callable[[str], Path] = as_path
) -> tuple[str | None, Path | None]:
    """Return `--config` and (the first) `--workdir`, which give the defaults of all other flags.

    The name of a directory has to be UTF-8, as checkpoints cannot be in it otherwise.

    Args:
      arguments: the command line.
      place: the function that makes a path of a name: `as_path`, or `opened` for a run that is only
        read.

    Raises:
      UserError: there is no such place, or its name is not UTF-8, so checkpoints cannot be in it.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--workdir", nargs="*", default=[])
    named, _ = parser.parse_known_args(arguments)
    for workdir in named.workdir:
        try:
            workdir.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the name of the directory {os.fsencode(workdir)!r} is not UTF-8, as the "
                "libraries that read and write checkpoints need it; give it another name"
            ) from error
    return named.config, next(map(place, named.workdir), None)


def with_family(config: Config, arguments: Sequence[str]) -> Config:
    """Return the config with the family of networks that `--model.architecture` names, if given.

    Args:
      config: the config that gives the defaults of flags.
      arguments: the command line, without the program's name.

    Raises:
      UserError: there is no such family, or a flag is for the field of another one.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--model.architecture", dest="family", default=config.model.architecture)
    family = parser.parse_known_args(arguments)[0].family
    config = config.replace({"model.architecture": family})
    given = (one.partition("=")[0] for one in arguments if one.startswith("--model."))
    for name in (one.removeprefix("--model.").replace("-", "_") for one in given):
        if name not in fields_of(family):
            raise foreign_field(name, family)
    return config


def stored_config(workdir: Path | None) -> Config | None:
    """Return the config of the run in a directory; None if there is no run.

    Raises:
      UserError: the config is damaged.
    """
    if workdir is None or not workdir.is_dir():
        return None
    from t2t_jax.workdir import is_run, read_config

    return read_config(workdir) if is_run(workdir) else None


def parse_flags(command: Any, arguments: Sequence[str], **settings: Any) -> Any:
    """Parse a command line into a dataclass: `tyro.cli` with settings, and with one-line errors.

    Raises:
      UserError: the command line is refused.
    """
    printed = io.StringIO()
    try:
        # tyro's registry and the standard error belong to the whole process: one thread at a time.
        with _parsing, contextlib.redirect_stderr(printed):
            return tyro.cli(
                command,
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_registry(),
                **settings,
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise _refusal(end, printed.getvalue()) from end


def _registry() -> ConstructorRegistry:
    """Return the rules by which tyro parses values: a path may be any that `opened` takes."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def paths(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
        if info.type is not Path:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=lambda words: opened(words[0]),
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda path: [str(path)],
        )

    return registry


def _refusal(end: BaseException, printed: str) -> UserError:
    """Return the error of a refused command line: the config's own, or else tyro's in one line."""
    cause = end.__context__
    while cause:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__context__
    rows = [row.strip("│ ") for row in Text.from_ansi(printed).plain.splitlines()[1:]]
    message = takewhile(lambda row: row and not row.startswith("─"), rows)
    return UserError(f"{' '.join(message).rstrip('.')}; see --help")
