"""Parse the flags of every command: each field of the command's dataclass is a flag.

This module and the top level of command modules do not import JAX. A command imports JAX after its
flags are checked, so `--help` and errors in flags are fast.
"""

import contextlib
import copy
import io
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from t2t_jax.commands.flag_table import MAY_STAND_ALONE, REPEATED, Flag, flags_of, path_rule
from t2t_jax.commands.foreign_flags import ALIASES, foreign_hint
from t2t_jax.config import Config
from t2t_jax.config.families import fields_of, foreign_field, network_config, values_in_family
from t2t_jax.config.tasks import TASKS
from t2t_jax.errors import UserError
from t2t_jax.system.opening import local_path
from t2t_jax.version import REMOVED, REMOVED_FLAGS, removed_feature

_T = TypeVar("_T")
RUN = "--workdir"
"""Optional flag before the run directory, in every command that takes a run."""
_HELP = ("--help", "--help-all")
_parsing = threading.Lock()
_MAY_BE_EMPTY = ("--data.cache-dir", "--cache-dir", "--prompt")
_MISSPELT = 0.85
"""Minimum similarity (`difflib`) to suggest another flag."""


_REGISTRY = ConstructorRegistry()
"""Rules for tyro to parse values."""


@_REGISTRY.primitive_rule
def _path_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    return path_rule(local_path) if info.type is Path else None


class CommandLine(NamedTuple):
    """The arguments of a command, divided into positional arguments and flags."""

    words: list[str]
    """Positional arguments. A run is one of them, also if it follows `--workdir`."""
    flags: dict[str, list[str]]
    """Values of each flag. The keys are flags, not aliases."""

    def value_of(self, flag: str) -> str | None:
        """Return the first value of a flag, or None."""
        return next(iter(self.flags.get(flag, ())), None)

    @property
    def run(self) -> str | None:
        """Return the first positional argument, or None."""
        return next(iter(self.words), None)


def _split(command: type, arguments: Sequence[str]) -> CommandLine:
    known_flags = flags_of(command)
    positionals = [flag for flag in known_flags if flag.is_positional]
    flags = {RUN if flag.is_run else flag.flag: flag for flag in known_flags}
    words: list[str] = []
    uses: dict[str, list[tuple[str, list[str]]]] = {}
    values, max_words = words, None
    for argument in arguments:
        if argument.startswith("--") or argument == "-h":
            alias, equals, value = argument.partition("=")
            flag = _resolve_alias(alias, flags)
            values = [value] if equals else []
            uses.setdefault(flag, []).append((alias, values))
            max_words = flags[flag].num_words if flag in flags else None
            continue
        if max_words is not None and len(values) >= max_words:
            values, max_words = words, None
        values.append(argument)
    line = CommandLine(words, {flag: _values(flag, flags, uses[flag]) for flag in uses})
    if RUN in line.flags:
        _move_run(positionals, line)
    if "" in words:
        raise UserError("an argument is empty; is a shell variable unset?")
    return line


def _values(flag: str, flags: Mapping[str, Flag], uses: list[tuple[str, list[str]]]) -> list[str]:
    """Merge the uses of a flag on a command line into one list of values.

    A use is the typed name or alias, with the values after it.
    """
    settings = flags[flag].settings if flag in flags else ()
    names, values = zip(*uses, strict=True)
    if len(uses) > 1 and REPEATED not in settings:
        clause = "" if names[0] == names[1] else f", first as {names[0]}"
        raise UserError(f"{names[1]} is given twice{clause}; give it once, with all of its values")
    if any("" in words for words in values) and flag not in _MAY_BE_EMPTY:
        raise UserError(f"{flag} is given an empty value; is a shell variable unset?")
    if REPEATED in settings:
        return [*map(" ".join, values)]
    return values[0] or [""] * (MAY_STAND_ALONE in settings)


def _move_run(positionals: Sequence[Flag], line: CommandLine) -> None:
    """Move the value of `--workdir` from the flags of `line` to the positional that names the run.

    Raise a `UserError` if the value is missing or `line` already names a run.
    """
    run_index = [positional.is_run for positional in positionals].index(True)
    non_runs = [positional for positional in positionals if not positional.is_run]
    if len(line.words) < run_index:
        raise UserError(f"{non_runs[len(line.words)].flag} is missing; see --help")
    if len(line.words) > len(non_runs) and all(positional.num_words for positional in non_runs):
        raise UserError(f"{line.words[run_index]!r} and {RUN} both name the run; give one of them")
    run_words = line.flags.pop(RUN)
    if not run_words:
        raise UserError(f"{RUN} has no value; name the directory of the run after it")
    line.words[run_index:run_index] = run_words


def _resolve_alias(alias: str, flags: Collection[str]) -> str:
    """Return the flag that an alias or a flag means; raise a `UserError` for an unknown one."""
    flag = "--help" if alias == "-h" else alias.replace("_", "-")
    if flag in (*flags, *_HELP):
        return flag
    field_path = flag.removeprefix("--").replace("-", "_")
    if field_path in REMOVED:
        raise removed_feature(alias, REMOVED[field_path].feature)
    if flag in REMOVED_FLAGS:
        raise removed_feature(alias, REMOVED_FLAGS[flag])
    for name in flags:
        if flag in ALIASES.get(name, ()):
            return name
    raise UserError(f"unknown flag {alias}; {_hint(flag, flags)}")


def _hint(flag: str, flags: Collection[str]) -> str:
    """Return advice about an unknown flag: the flag that replaces it, or else --help-all."""
    default_hint = "see --help-all for all flags"
    if (hint := foreign_hint(flag, flags)) is not None:
        return hint or default_hint
    field_names = {name: name.removeprefix("--").rpartition(".")[2] for name in flags}
    matches = get_close_matches(flag, flags, 1, _MISSPELT)
    similar_names = get_close_matches(flag.removeprefix("--"), field_names.values(), 1, _MISSPELT)
    matches = matches or [name for name in flags if [field_names[name]] == similar_names]
    return f"did you mean {' or '.join(matches)}?" if matches else default_hint


def with_family(config: Config, line: CommandLine) -> Config:
    """Return the config with the network architecture of `--model.architecture`.

    The result is not validated, because the caller has yet to apply the other flags.
    """
    family = line.value_of("--model.architecture") or config.model.architecture
    for flag in line.flags:
        section, _, name = flag.removeprefix("--").replace("-", "_").partition(".")
        if section == "model" and name not in fields_of(family):
            raise foreign_field(name, family)
    if family == config.model.architecture:
        return config
    # Copy without validation: flags of other sections, such as data.task, may have to change too.
    new_config = copy.copy(config)
    model = network_config(**values_in_family(vars(config.model), family))
    object.__setattr__(new_config, "model", model)
    return new_config


def stored_config(workdir: Path | None) -> Config | None:
    """Read the config of the run in a directory; None if there is no run."""
    if workdir is None or not workdir.is_dir():
        return None
    from t2t_jax.workdir import is_run, read_config

    return read_config(workdir) if is_run(workdir) else None


def parse_flags(
    command: type[_T],
    arguments: Sequence[str],
    program: str,
    defaults: Callable[[CommandLine], _T] | None = None,
) -> _T:
    """Parse command-line arguments into an object of a command's dataclass.

    Args:
      defaults: a function from the command line to an object with the defaults; None uses the
        defaults of the dataclass.

    Raises:
      UserError: the command line is invalid.
      SystemExit: the command line asked for help.
    """
    line = _split(command, arguments)
    default_command = defaults(line) if defaults else None
    flags = flags_of(command, default_command)
    if {*_HELP} & {*line.flags}:
        from t2t_jax.commands.help import print_help

        print_help(command, flags, program, line.flags)
        raise SystemExit(0)
    _check_positionals(flags, line.words, program)
    words = line.words.copy()
    for flag, values in line.flags.items():
        words += [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]
    _ = TASKS.all_names  # load plugins now: their warnings would be lost below
    stderr = io.StringIO()
    try:
        # Threads share tyro's registry and the standard error.
        with _parsing, contextlib.redirect_stderr(stderr):
            return tyro.cli(
                command,
                args=words,
                prog=program,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_REGISTRY,
                default=tyro.MISSING_NONPROP if default_command is None else default_command,
            )
    except SystemExit as system_exit:
        raise _parse_error(system_exit, stderr.getvalue()) from system_exit


def _check_positionals(flags: Sequence[Flag], words: Sequence[str], program: str) -> None:
    positionals = [flag for flag in flags if flag.is_positional]
    required = [positional for positional in positionals if positional.is_required]
    for missing in required[len(words) :]:
        problem = f"lacks {missing.flag}"
        if missing.is_run and missing is required[0]:
            problem = f"takes a {missing.flag.lower()}, as in {program} runs/base"
        raise UserError(f"{program} {problem}; see --help")
    first_run = len([*takewhile(lambda positional: not positional.is_run, positionals)])
    for word in words[first_run:]:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the name of the directory {os.fsencode(word)!r} is not UTF-8, "
                "which the checkpoint libraries require; choose another name"
            ) from error


def _parse_error(system_exit: BaseException, stderr: str) -> UserError:
    """Return the `UserError` behind tyro's exit, or else tyro's message in one line."""
    from rich.text import Text

    cause = system_exit.__context__
    while cause:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__context__
    lines = [line.strip("│ ") for line in Text.from_ansi(stderr).plain.splitlines()[1:]]
    message_lines = takewhile(lambda line: line and not line.startswith("─"), lines)
    text = " ".join(message_lines).rstrip(".")
    if text.startswith("Unrecognized options: -"):
        text = text.partition(",")[0]  # without the values of the flag
    return UserError(f"{text}; see --help")
