"""The parser of flags for every command, in which each field of a dataclass is a flag.

Neither this module nor the top of a command's module imports JAX: a command imports it once its
flags are checked, so that `--help` and a misspelt flag answer at once.
"""

import contextlib
import copy
import io
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from t2t_jax.commands.flag_table import MAY_STAND_ALONE, REPEATED, Flag, flags_of
from t2t_jax.commands.foreign_flags import ALIASES, foreign_hint
from t2t_jax.config import Config
from t2t_jax.config.families import fields_of, foreign_field, network_config, values_in_family
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import as_path
from t2t_jax.system.opening import opened
from t2t_jax.version import REMOVED, removed_feature

RUN = "--workdir"
"""The flag that may stand before the directory of a run, in every command that takes one."""
_HELP = ("--help", "--help-all")
_parsing = threading.Lock()
_MAY_BE_EMPTY = ("--data.cache-dir", "--cache-dir", "--prompt")
_MISSPELT = 0.85
"""The similarity (`difflib`) of two flags above which one may be a misspelling of the other."""


def check_flags(
    arguments: Sequence[str], known: Sequence[str], repeated: Sequence[str] = ()
) -> None:
    """Refuse a flag of a command line that is not known, given twice or empty; propose the nearest.

    Args:
      repeated: the flags that may be given several times.

    Raises:
      UserError: a flag is refused.
    """
    seen: dict[str, str] = {}
    flag = ""
    for argument in arguments:
        value = argument
        if argument.startswith("--"):
            given, equals, value = argument.partition("=")
            flag = _name_of(given, known)
            path = flag.removeprefix("--").replace("-", "_")
            if path in REMOVED and flag not in known:
                raise removed_feature(given, REMOVED[path].feature)
            if flag not in (*known, *_HELP):
                raise UserError(f"unknown flag {given}; {_hint(flag, known)}")
            if flag in seen and flag not in repeated:
                first = "" if seen[flag] == given else f", first as {seen[flag]}"
                raise UserError(
                    f"{given} is given twice{first}; give it once, with all of its values"
                )
            seen[flag] = given
            if not equals:
                continue
        if flag and not value and flag not in _MAY_BE_EMPTY:
            raise UserError(f"{flag} is given an empty value; is a variable of the shell unset?")


def _name_of(given: str, known: Sequence[str]) -> str:
    """Return the name in this command of a flag that is given, perhaps by an alias."""
    flag = "--help" if given == "-h" else given.replace("_", "-")
    return next((one for one in known if flag in ALIASES.get(one, ()) and flag not in known), flag)


def _hint(flag: str, known: Sequence[str]) -> str:
    """Return what to give instead of an unknown flag.

    A similar flag may mean another thing. Only a likely misspelling is corrected, of a flag with or
    without its section.
    """
    otherwise = "see --help-all for all flags"
    if (hint := foreign_hint(flag, known)) is not None:
        return hint or otherwise
    short = {one: one.removeprefix("--").rpartition(".")[2] for one in known}
    whole = get_close_matches(flag, known, 1, _MISSPELT)
    name = get_close_matches(flag.removeprefix("--"), short.values(), 1, _MISSPELT)
    found = whole or [one for one in known if [short[one]] == name]
    return f"did you mean {' or '.join(found)}?" if found else otherwise


def ordered(made: type, arguments: Sequence[str]) -> list[str]:
    """Return a checked command line in the order in which every later step reads it.

    Words without a flag come first, the run among them, whether or not `--workdir` stood before it;
    then come the flags, spelt with hyphens and apart from their values.

    Raises:
      UserError: a flag is refused, or a run is given in both ways.
    """
    table = flags_of(made)
    places = [flag for flag in table if flag.is_positional]
    takes = {flag.flag: flag.takes for flag in table if not flag.is_positional}
    run = next((index for index, place in enumerate(places) if place.is_run), None)
    if run is not None:
        takes[RUN] = places[run].takes
    repeated = [flag.flag for flag in table if REPEATED in flag.settings]
    check_flags(arguments, list(takes), repeated)
    words, flags = _divided(arguments, takes, repeated)
    runs = flags.pop(RUN, None)
    if runs is not None and run is not None:
        _check_place(places, run, words)
        if not runs:
            raise UserError(f"{RUN} has no value; name the directory of the run after it")
        words[run:run] = runs
    if "" in words:
        raise UserError("an argument is empty; is a variable of the shell unset?")
    if run is not None:
        _check_runs(words[run:] if places[run].takes is None else words[run : run + 1])
    for flag in table:
        if MAY_STAND_ALONE in flag.settings and flags.get(flag.flag) == []:
            flags[flag.flag] = [""]
    return [*words, *(word for flag, values in flags.items() for word in _spelt(flag, values))]


def _spelt(flag: str, values: Sequence[str]) -> list[str]:
    """Return the words of a flag and its values: one word for a value that looks like a flag."""
    is_joined = len(values) == 1 and values[0].startswith("--")
    return [f"{flag}={values[0]}"] if is_joined else [flag, *values]


def _divided(
    arguments: Sequence[str], takes: dict[str, int | None], repeated: Sequence[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the words without a flag, and each flag with its values."""
    words: list[str] = []
    flags: dict[str, list[str]] = {}
    known = [*takes]
    each_time: dict[str, list[list[str]]] = {name: [] for name in repeated}
    values, room = words, None
    for argument in arguments:
        if argument.startswith("--") or argument == "-h":
            name, equals, value = argument.partition("=")
            name = _name_of(name, known)
            values = [value] if equals else []
            if name in each_time:
                each_time[name].append(values)
            else:
                values = flags.setdefault(name, values)
            room = takes.get(name)
        else:
            if room is not None and len(values) >= room:
                values, room = words, None
            values.append(argument)
    flags |= {name: [*map(" ".join, times)] for name, times in each_time.items() if times}
    return words, flags


def _check_place(places: Sequence[Flag], run: int, words: Sequence[str]) -> None:
    """Refuse `--workdir` beside a run without it, or where what stands ahead of a run is missing.

    Args:
      places: what stands without a flag, of which number `run` is the run.
    """
    others = [place for place in places if not place.is_run]
    if len(words) < run:
        raise UserError(f"{others[len(words)].flag} is missing; see --help")
    if len(words) > len(others) and all(place.takes for place in others):
        raise UserError(f"{words[run]!r} and {RUN} both name the run; give one of them")


def _check_runs(directories: Iterable[str]) -> None:
    """Refuse a run whose name is not UTF-8: checkpoints cannot be in it."""
    for directory in directories:
        try:
            directory.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the name of the directory {os.fsencode(directory)!r} is not UTF-8, as the "
                "libraries that read and write checkpoints need it; give it another name"
            ) from error


def peek(
    arguments: Sequence[str], place: Callable[[str], Path] = as_path
) -> tuple[str | None, Path | None]:
    """Return the `--config` and the first word of a command line as `ordered` returns it.

    The word is the (first) run; both give the defaults of all other flags.

    Args:
      place: the function that makes a path of a name: `as_path`, or `opened` for a run that is only
        read.

    Raises:
      UserError: there is no such place.
    """
    words = _words(arguments)
    return _value_of("--config", arguments), place(words[0]) if words else None


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """Return the value of a flag on a command line as `ordered` returns it."""
    following = arguments[arguments.index(flag) + 1 :] if flag in arguments else ()
    return next((word for word in following[:1] if not word.startswith("--")), None)


def with_family(config: Config, arguments: Sequence[str]) -> Config:
    """Return the config with the family of networks that `--model.architecture` names, if given.

    Whether the family fits the other sections shows only once all flags have changed them.

    Args:
      arguments: the command line as `ordered` returns it.

    Raises:
      UserError: there is no such family, or a flag is for the field of another one.
    """
    family = _value_of("--model.architecture", arguments) or config.model.architecture
    given = (one.partition("=")[0] for one in arguments if one.startswith("--model."))
    for name in (one.removeprefix("--model.").replace("-", "_") for one in given):
        if name not in fields_of(family):
            raise foreign_field(name, family)
    if family == config.model.architecture:
        return config
    # A copy is not checked: other flags, such as that of the task, may belong to the family.
    changed = copy.copy(config)
    model = network_config(**values_in_family(vars(config.model), family))
    object.__setattr__(changed, "model", model)
    return changed


def stored_config(workdir: Path | None) -> Config | None:
    """Return the config of the run in a directory; None if there is no run.

    Raises:
      UserError: the config is damaged.
    """
    if workdir is None or not workdir.is_dir():
        return None
    from t2t_jax.workdir import is_run, read_config

    return read_config(workdir) if is_run(workdir) else None


def parse_flags(
    command: Any,
    arguments: Sequence[str],
    program: str | None = None,
    defaults: Callable[[list[str]], Any] | None = None,
) -> Any:
    """Return an object of a dataclass with the values that a command line gives its fields.

    Args:
      command: the dataclass, whose fields are flags.
      program: the name of the program in help and errors; None is that of the process.
      defaults: a function that makes an object of the dataclass with the defaults, out of the
        command line as `ordered` returns it; None leaves them to the dataclass.

    Raises:
      UserError: the command line is refused.
      SystemExit: the command line asked for help, which has been printed.
    """
    arguments = ordered(command, arguments)
    default = defaults(arguments) if defaults else None
    flags = flags_of(command, default)
    if {*_HELP} & {*arguments}:
        from t2t_jax.commands.help import print_help

        print_help(command, flags, program, arguments)
        raise SystemExit(0)
    _check_places(flags, arguments, program)
    printed = io.StringIO()
    try:
        # tyro's registry and the standard error belong to the whole process: one thread at a time.
        with _parsing, contextlib.redirect_stderr(printed):
            return tyro.cli(
                command,
                args=arguments,
                prog=program,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=_registry(),
                **({} if default is None else {"default": default}),
            )
    except SystemExit as end:
        raise _refusal(end, printed.getvalue()) from end


def _words(arguments: Sequence[str]) -> list[str]:
    """Return the words before the first flag."""
    return [*takewhile(lambda word: not word.startswith("--"), arguments)]


def _check_places(flags: Sequence[Flag], arguments: Sequence[str], program: str | None) -> None:
    required = [flag for flag in flags if flag.is_positional and flag.is_required]
    for place in required[len(_words(arguments)) :]:
        what = f"lacks {place.flag}"
        if place.is_run and place is required[0]:
            what = f"takes a {place.flag.lower()}, as in {program} runs/base"
        raise UserError(f"{program} {what}; see --help")


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
