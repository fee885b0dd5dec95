"""The parser of flags for every command, in which each field of a dataclass is a flag.

Neither this module nor the top of a command's module imports JAX: a command imports it once its
flags are checked, so that `--help` and a misspelt flag answer at once.
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

from t2t_jax.commands.flag_table import MAY_STAND_ALONE, REPEATED, Flag, flags_of, path_by
from t2t_jax.commands.foreign_flags import ALIASES, foreign_hint
from t2t_jax.config import Config
from t2t_jax.config.families import fields_of, foreign_field, network_config, values_in_family
from t2t_jax.config.tasks import TASKS
from t2t_jax.errors import UserError
from t2t_jax.system.opening import local_path
from t2t_jax.version import REMOVED, removed_feature

_T = TypeVar("_T")
RUN = "--workdir"
"""The flag that may stand before the directory of a run, in every command that takes one."""
_HELP = ("--help", "--help-all")
_parsing = threading.Lock()
_MAY_BE_EMPTY = ("--data.cache-dir", "--cache-dir", "--prompt")
_MISSPELT = 0.85
"""The similarity (`difflib`) of two flags above which one may be a misspelling of the other."""


_REGISTRY = ConstructorRegistry()
"""The rules by which tyro parses values."""


@_REGISTRY.primitive_rule
def _path_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    """Return the rule for a path, which may be any that `local_path` takes."""
    return path_by(local_path) if info.type is Path else None


class CommandLine(NamedTuple):
    """A command line without the name of the command."""

    words: list[str]
    """The arguments without a flag, the run among them, whether or not `--workdir` precedes it."""
    flags: dict[str, list[str]]
    """The values of each flag. The keys are flags, not their aliases."""

    def value_of(self, flag: str) -> str | None:
        """Return the first value of a flag; None without any."""
        return next(iter(self.flags.get(flag, ())), None)

    @property
    def run(self) -> str | None:
        """Return the first argument without a flag; None without any."""
        return next(iter(self.words), None)


def _divided(command: type, arguments: Sequence[str]) -> CommandLine:
    """Divide a command line into arguments and flags."""
    table = flags_of(command)
    positionals = [flag for flag in table if flag.is_positional]
    known = {RUN if flag.is_run else flag.flag: flag for flag in table}
    words: list[str] = []
    given: dict[str, list[tuple[str, list[str]]]] = {}
    values, room = words, None
    for argument in arguments:
        if argument.startswith("--") or argument == "-h":
            name, equals, value = argument.partition("=")
            flag = _name_of(name, known)
            values = [value] if equals else []
            given.setdefault(flag, []).append((name, values))
            room = known[flag].takes if flag in known else None
            continue
        if room is not None and len(values) >= room:
            values, room = words, None
        values.append(argument)
    line = CommandLine(words, {flag: _values(flag, known, given[flag]) for flag in given})
    if RUN in line.flags:
        _place_run(positionals, line)
    if "" in words:
        raise UserError("an argument is empty; is a variable of the shell unset?")
    return line


def _values(flag: str, known: Mapping[str, Flag], given: list[tuple[str, list[str]]]) -> list[str]:
    """Return the values of a flag; `given` has a pair for each time: its name, and the values."""
    settings = known[flag].settings if flag in known else ()
    names, values = zip(*given, strict=True)
    if len(given) > 1 and REPEATED not in settings:
        first = "" if names[0] == names[1] else f", first as {names[0]}"
        raise UserError(f"{names[1]} is given twice{first}; give it once, with all of its values")
    if any("" in several for several in values) and flag not in _MAY_BE_EMPTY:
        raise UserError(f"{flag} is given an empty value; is a variable of the shell unset?")
    if REPEATED in settings:
        return [*map(" ".join, values)]
    return values[0] or [""] * (MAY_STAND_ALONE in settings)


def _place_run(positionals: Sequence[Flag], line: CommandLine) -> None:
    """Move the value of `--workdir` to the arguments without a flag, in their order."""
    index = [positional.is_run for positional in positionals].index(True)
    others = [positional for positional in positionals if not positional.is_run]
    if len(line.words) < index:
        raise UserError(f"{others[len(line.words)].flag} is missing; see --help")
    if len(line.words) > len(others) and all(positional.takes for positional in others):
        raise UserError(f"{line.words[index]!r} and {RUN} both name the run; give one of them")
    runs = line.flags.pop(RUN)
    if not runs:
        raise UserError(f"{RUN} has no value; name the directory of the run after it")
    line.words[index:index] = runs


def _name_of(given: str, known: Collection[str]) -> str:
    """Return the name of a given flag, which may be an alias; refuse an unknown one."""
    flag = "--help" if given == "-h" else given.replace("_", "-")
    if flag in (*known, *_HELP):
        return flag
    path = flag.removeprefix("--").replace("-", "_")
    if path in REMOVED:
        raise removed_feature(given, REMOVED[path].feature)
    for name in known:
        if flag in ALIASES.get(name, ()):
            return name
    raise UserError(f"unknown flag {given}; {_hint(flag, known)}")


def _hint(flag: str, known: Collection[str]) -> str:
    """Return what to give instead of an unknown flag.

    Only a likely misspelling is corrected: a similar flag may mean another thing.
    """
    otherwise = "see --help-all for all flags"
    if (hint := foreign_hint(flag, known)) is not None:
        return hint or otherwise
    fields = {name: name.removeprefix("--").rpartition(".")[2] for name in known}
    matches = get_close_matches(flag, known, 1, _MISSPELT)
    field = get_close_matches(flag.removeprefix("--"), fields.values(), 1, _MISSPELT)
    matches = matches or [name for name in known if [fields[name]] == field]
    return f"did you mean {' or '.join(matches)}?" if matches else otherwise


def with_family(config: Config, line: CommandLine) -> Config:
    """Return the config with the family of networks that `--model.architecture` names, if given.

    Whether the family fits the other sections shows only once all flags have changed them.
    """
    family = line.value_of("--model.architecture") or config.model.architecture
    for flag in line.flags:
        section, _, name = flag.removeprefix("--").replace("-", "_").partition(".")
        if section == "model" and name not in fields_of(family):
            raise foreign_field(name, family)
    if family == config.model.architecture:
        return config
    # A copy is not checked: other flags, such as that of the task, may belong to the family.
    changed = copy.copy(config)
    model = network_config(**values_in_family(vars(config.model), family))
    object.__setattr__(changed, "model", model)
    return changed


def stored_config(workdir: Path | None) -> Config | None:
    """Return the config of the run in a directory; None if there is no run."""
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
    """Return an object of a dataclass with the values that a command line gives its fields.

    Args:
      defaults: a function that makes an object of the dataclass with the defaults, out of the
        command line; None leaves them to the dataclass.

    Raises:
      UserError: the command line is refused.
      SystemExit: the command line asked for help, which has been printed.
    """
    line = _divided(command, arguments)
    default = defaults(line) if defaults else None
    flags = flags_of(command, default)
    if {*_HELP} & {*line.flags}:
        from t2t_jax.commands.help import print_help

        print_help(command, flags, program, line.flags)
        raise SystemExit(0)
    _check_places(flags, line.words, program)
    words = line.words.copy()
    for flag, values in line.flags.items():
        words += [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]
    _ = TASKS.all_names  # as a warning about a plugin would be lost below
    printed = io.StringIO()
    try:
        # tyro's registry and the standard error belong to the whole process: one thread at a time.
        with _parsing, contextlib.redirect_stderr(printed):
            return tyro.cli(
                command,
                args=words,
                prog=program,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_REGISTRY,
                default=tyro.MISSING_NONPROP if default is None else default,
            )
    except SystemExit as end:
        raise _refusal(end, printed.getvalue()) from end


def _check_places(flags: Sequence[Flag], words: Sequence[str], program: str) -> None:
    """Refuse a command line that lacks an argument, or a run that no checkpoint can be in."""
    positionals = [flag for flag in flags if flag.is_positional]
    required = [positional for positional in positionals if positional.is_required]
    for missing in required[len(words) :]:
        problem = f"lacks {missing.flag}"
        if missing.is_run and missing is required[0]:
            problem = f"takes a {missing.flag.lower()}, as in {program} runs/base"
        raise UserError(f"{program} {problem}; see --help")
    before = [*takewhile(lambda positional: not positional.is_run, positionals)]
    for word in words[len(before) :]:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the name of the directory {os.fsencode(word)!r} is not UTF-8, as the "
                "libraries that read and write checkpoints need it; give it another name"
            ) from error


def _refusal(end: BaseException, printed: str) -> UserError:
    """Return the error of a refused command line: the config's own, or else tyro's in one line."""
    from rich.text import Text

    cause = end.__context__
    while cause:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__context__
    rows = [row.strip("│ ") for row in Text.from_ansi(printed).plain.splitlines()[1:]]
    message = takewhile(lambda row: row and not row.startswith("─"), rows)
    text = " ".join(message).rstrip(".")
    if text.startswith("Unrecognized options: -"):
        text = text.partition(",")[0]  # what follows are its values
    return UserError(f"{text}; see --help")
