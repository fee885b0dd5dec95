"""The flags of a command as a table, which the parser, the help and the documents read."""

import dataclasses
import shlex
import types
import typing
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, Union

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from t2t_jax.commands.foreign_flags import ALIASES
from t2t_jax.config import Config
from t2t_jax.config.config import known_fields
from t2t_jax.plugins import TrainingFlags, added_flags
from t2t_jax.system.opening import resolve_run

_T = TypeVar("_T")


def path_by(find: Callable[[str], Path]) -> PrimitiveConstructorSpec[Path]:
    """Return tyro's rule for a path that a function finds by the word on the command line."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: find(words[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    )


BARE = tyro.conf.arg(name="")
"""Marks, in an annotation, a dataclass whose flags have no prefix."""

_AS_RUN = tyro.conf.arg(metavar="RUN")

NewRun: TypeAlias = Annotated[Path, tyro.conf.Positional, _AS_RUN]
"""The type of the field `workdir` with which a command takes the directory of a run to write."""

RunToRead: TypeAlias = Annotated[Path, path_by(resolve_run)]
"""The type of a run that a command reads, by any name that `resolve_run` takes."""

OneRun: TypeAlias = Annotated[RunToRead, tyro.conf.Positional, _AS_RUN]
"""The type of the field `workdir` with which a command reads a run: as RUN, or as --workdir RUN."""

Runs: TypeAlias = Annotated[tuple[RunToRead, ...], tyro.conf.Positional, _AS_RUN]
"""The type of the field `workdir` of a command that reads several runs."""

ConfigFields: TypeAlias = Annotated[Config, BARE, tyro.conf.FlagConversionOff]
"""The type of the field of a command that makes each field of a config a flag, without a prefix."""

MAY_STAND_ALONE = "may stand alone"
"""Marks, in an annotation, a flag that also stands without a value, and then gives an empty one."""

REPEATED = "repeated"
"""Marks, in an annotation, a flag that may be given several times; the words after it are one
value, with spaces between them."""

_TYPES = {int: "INT", float: "FLOAT", Path: "PATH", bool: "True|False", type(None): "None"}


class Flag(NamedTuple):
    """A flag of a command, or an argument that stands without a flag."""

    name: str
    """Dotted path of the field, such as `model.d_ff`."""
    section: str
    """Name of the section of the config that has the field; that of a command itself is empty."""
    owner: type
    """The dataclass that has the field."""
    field: "dataclasses.Field[object]"
    default: object
    """The default, or `tyro.MISSING`."""
    hint: object
    """The type of the value."""
    settings: tuple[object, ...]
    """What the annotation has beside the type."""

    @property
    def is_positional(self) -> bool:
        """Return whether the value stands on the command line without a flag."""
        return tyro.conf.Positional in self.settings

    @property
    def is_run(self) -> bool:
        """Return whether the value is a run, or several, which `--workdir` may name as well."""
        return self.is_positional and self.name == "workdir"

    @property
    def is_switch(self) -> bool:
        """Return whether the flag has no value: it stands for True."""
        return self.hint is bool and tyro.conf.FlagConversionOff not in self.settings

    @property
    def is_required(self) -> bool:
        """Return whether a command line without the flag is refused."""
        return self.default is tyro.MISSING

    @property
    def takes(self) -> int | None:
        """Return the number of words of the value; None means any number."""
        kinds = [one for one in _alternatives(self.hint) if typing.get_origin(one) is tuple]
        if not kinds:
            return 0 if self.is_switch else 1
        words = typing.get_args(kinds[0])
        return None if words[-1] is Ellipsis else len(words)

    def setting(self, name: str) -> str | None:
        """Return what `tyro.conf.arg` of the annotation sets under a name, or None."""
        found = (getattr(one, name, None) for one in self.settings)
        return next((one for one in found if one is not None), None)

    @property
    def flag(self) -> str:
        """Return the flag as it is typed, or the placeholder of an argument without a flag."""
        if self.is_positional:
            return self.setting("metavar") or self.name.upper()
        return spelled(self.name)

    @property
    def label(self) -> str:
        """Return the flag with the values that it takes, as a reference lists it."""
        if self.is_run:
            return f"{self.flag}, --workdir {self.flag}"
        return f"{self.flag} {self.values}".rstrip()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return the other names of the flag."""
        return ALIASES.get(self.flag, ())

    @property
    def values(self) -> str:
        """Return the values that the flag takes, such as `INT|None`; "" for a switch."""
        return "" if self.is_switch or self.is_positional else values_of(self.hint)

    @property
    def written(self) -> str:
        """Return the default as it is written on a command line; a list without values is ""."""
        value = self.default
        return shlex.join(map(str, value if isinstance(value, tuple) else (value,)))


def spelled(name: str) -> str:
    """Return the flag of a field."""
    return f"--{name.replace('_', '-')}"


def given_flags(flags: Any, names: Collection[str] | None = None) -> list[str]:
    """Return the flags of a dataclass with other values than their defaults.

    Args:
      names: the fields to look at; None is all.
    """
    fields = dataclasses.fields(flags)
    asked = (field for field in fields if names is None or field.name in names)
    return [spelled(field.name) for field in asked if getattr(flags, field.name) != field.default]


def _alternatives(hint: object) -> tuple[object, ...]:
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    several = typing.get_args(hint) if is_union else (hint,)
    # `str` beside a `Literal` stands for the names of plugins, which no help lists.
    has_names = any(typing.get_origin(kind) is Literal for kind in several)
    return tuple(kind for kind in several if not (has_names and kind is str))


def values_of(hint: object) -> str:
    """Return how a reader writes values of a type."""
    several = _alternatives(hint)
    if several != (hint,):
        return "|".join(map(values_of, several))
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        kinds = [values_of(one) for one in typing.get_args(hint) if one is not Ellipsis]
        return f"{kinds[0]} ..." if Ellipsis in typing.get_args(hint) else " ".join(kinds)
    return _TYPES.get(hint, "TEXT") if isinstance(hint, type) else "TEXT"


def flags_of(kind: type, values: object = None, section: str = "", prefix: str = "") -> list[Flag]:
    """Return the flags of a dataclass, each field of which is one.

    A field that is a dataclass has flags with its name as their prefix unless its
    annotation sets an empty name.

    Args:
      values: an object of the dataclass that has the defaults, or None for those of the class. Then
        the fields of a config are those of all families of networks.
    """
    found: list[Flag] = []
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        hint, *settings = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        missing = dataclasses.MISSING
        if values is not None:
            value = getattr(values, field.name)
        elif field.default_factory is not missing:
            value = field.default_factory()
        else:
            value = tyro.MISSING if field.default is missing else field.default
        if isinstance(value, Config):
            found += _fields_of(value, every_family=values is None)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            is_bare = any(getattr(one, "name", None) == "" for one in settings)
            below = prefix if is_bare else f"{prefix}{field.name}."
            its_section = section if isinstance(value, TrainingFlags) else field.name
            found += flags_of(type(value), value, its_section, below)
        else:
            name = prefix + field.name
            found.append(Flag(name, section, kind, field, value, hint, tuple(settings)))
    return found


@cache
def with_plugins(command: type[_T], name: str) -> type[_T]:
    """Return the dataclass of a command with the flags that plugins add to it.

    It has a field for the flags of each plugin, an object of `TrainingFlags`.
    """
    kinds = added_flags(name, tuple(flag.name for flag in flags_of(command)))
    if not kinds:
        return command
    parts = [
        (f"plugin_{index}", Annotated[kind, BARE], dataclasses.field(default_factory=kind))
        for index, kind in enumerate(kinds)
    ]
    shown = {
        shows: tuple(one for each in (command, *kinds) for one in getattr(each, shows, ()))
        for shows in ("common", "examples")
    }
    own = {"__doc__": command.__doc__, **shown}
    made = dataclasses.make_dataclass(
        command.__name__, parts, bases=(command,), namespace=own, frozen=True
    )
    made.__module__ = command.__module__  # Python from 3.12 on would name this one
    return made


def flags_of_plugins(command: object) -> list[TrainingFlags]:
    """Return the flags that plugins added to a command, with their values."""
    return [value for value in vars(command).values() if isinstance(value, TrainingFlags)]


def _fields_of(config: Config, every_family: bool) -> Iterator[Flag]:
    for path, field in known_fields().items():
        section, _, name = path.partition(".")
        owner = getattr(config, section)
        if every_family or hasattr(owner, name):
            value = getattr(owner, name, field.default)
            settings = (tyro.conf.FlagConversionOff,)
            yield Flag(path, section, type(owner), field, value, field.type, settings)
