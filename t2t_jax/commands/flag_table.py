"""List the flags of a command, for the parser, the help and the reference documentation."""

import dataclasses
import shlex
import types
import typing
from collections.abc import Callable, Collection, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, Union

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from t2t_jax.commands.foreign_flags import ALIASES
from t2t_jax.config import Config
from t2t_jax.config.config import known_fields
from t2t_jax.config.tables import NAMED
from t2t_jax.plugins import TrainingFlags, added_flags
from t2t_jax.system.opening import resolve_run

_T = TypeVar("_T")


def path_rule(resolve: Callable[[str], Path]) -> PrimitiveConstructorSpec[Path]:
    """Make a tyro rule that converts a command-line argument to a path with `resolve`."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: resolve(words[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    )


BARE = tyro.conf.arg(name="")
"""Annotation of a dataclass field whose flags have no prefix."""

_AS_RUN = tyro.conf.arg(metavar="RUN")

NewRun: TypeAlias = Annotated[Path, tyro.conf.Positional, _AS_RUN]
"""Type of the field `workdir` of a command that writes a run directory."""

RunToRead: TypeAlias = Annotated[Path, path_rule(resolve_run)]
"""Type of a run to read; `resolve_run` resolves its name."""

OneRun: TypeAlias = Annotated[RunToRead, tyro.conf.Positional, _AS_RUN]
"""Type of the field `workdir` of a command that reads one run: RUN, or --workdir RUN."""

Runs: TypeAlias = Annotated[tuple[RunToRead, ...], tyro.conf.Positional, _AS_RUN]
"""Type of the field `workdir` of a command that reads several runs."""

ConfigFields: TypeAlias = Annotated[Config, BARE, tyro.conf.FlagConversionOff]
"""Type of a command field that makes each config field a flag, without a prefix."""

MAY_STAND_ALONE = "may stand alone"
"""Annotation of a flag with an optional value: without a value, the flag sets an empty string."""

REPEATED = "repeated"
"""Annotation of a flag that can be repeated; each time, the words after it are joined to one value
with spaces."""

_TYPES = {int: "INT", float: "FLOAT", Path: "PATH", bool: "True|False", type(None): "None"}


class Flag(NamedTuple):
    """A flag or a positional argument of a command."""

    name: str
    """Dotted path of the field, such as `model.d_ff`."""
    section: str
    """Name of the config section that has the field; "" for a field of the command."""
    owner: type
    """The dataclass that has the field."""
    field: "dataclasses.Field[object]"
    default: object
    """The default, or `tyro.MISSING`."""
    hint: object
    """The type of the value."""
    settings: tuple[object, ...]
    """Metadata of the annotation, such as `tyro.conf.Positional`."""

    @property
    def is_positional(self) -> bool:
        """Return whether this is a positional argument."""
        return tyro.conf.Positional in self.settings

    @property
    def is_run(self) -> bool:
        """Return whether this is the positional argument for run directories, like `--workdir`."""
        return self.is_positional and self.name == "workdir"

    @property
    def is_switch(self) -> bool:
        """Return whether the flag takes no value, and sets its field to True."""
        return self.hint is bool and tyro.conf.FlagConversionOff not in self.settings

    @property
    def is_required(self) -> bool:
        """Return whether the command line must have this flag."""
        return self.default is tyro.MISSING

    @property
    def num_words(self) -> int | None:
        """Return the number of command-line words of the value; None is any number."""
        tuples = [kind for kind in _alternatives(self.hint) if typing.get_origin(kind) is tuple]
        if not tuples:
            return 0 if self.is_switch else 1
        element_types = typing.get_args(tuples[0])
        return None if element_types[-1] is Ellipsis else len(element_types)

    def setting(self, name: str) -> str | None:
        """Return an argument of `tyro.conf.arg` in the annotation, such as `metavar`, or None."""
        texts = (getattr(setting, name, None) for setting in self.settings)
        return next((text for text in texts if text is not None), None)

    @property
    def flag(self) -> str:
        """Return the flag with its hyphens, or the placeholder of a positional argument."""
        if self.is_positional:
            return self.setting("metavar") or self.name.upper()
        return flag_name(self.name)

    @property
    def label(self) -> str:
        """Return the flag and its possible values, for a list of flags."""
        if self.is_run:
            return f"{self.flag}, --workdir {self.flag}"
        return f"{self.flag} {self.values}".rstrip()

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return flags of other programs that mean the same, such as `--hidden-size`."""
        return ALIASES.get(self.flag, ())

    @property
    def values(self) -> str:
        """Return the possible values, such as `INT|None`; "" for a switch."""
        if self.is_switch or self.is_positional:
            return ""
        registered = NAMED[self.name].registered_parts if self.name in NAMED else ()
        return "|".join([values_of(self.hint), *registered])

    @property
    def default_text(self) -> str:
        """Return the default as command-line words; "" for an empty tuple."""
        values = self.default if isinstance(self.default, tuple) else (self.default,)
        return shlex.join(map(str, values))


def flag_name(name: str) -> str:
    """Convert the name of a field to its flag: `d_ff` to `--d-ff`."""
    return f"--{name.replace('_', '-')}"


def changed_flags(flags: Any, names: Collection[str] | None = None) -> list[str]:
    """List flags, such as "--dry-run", whose values in a dataclass object are not the defaults.

    Args:
      flags: an object of a dataclass, each field of which is a flag.
      names: the fields to compare; None means all.
    """
    fields = (field for field in dataclasses.fields(flags) if names is None or field.name in names)
    changed_names = (field.name for field in fields if getattr(flags, field.name) != field.default)
    return [*map(flag_name, changed_names)]


def _alternatives(hint: object) -> tuple[object, ...]:
    is_union = typing.get_origin(hint) in (Union, types.UnionType)
    kinds = typing.get_args(hint) if is_union else (hint,)
    # In `Literal[...] | str`, `str` allows the names of plugins, which the help does not list.
    has_names = any(typing.get_origin(kind) is Literal for kind in kinds)
    return tuple(kind for kind in kinds if not (has_names and kind is str))


def values_of(hint: object) -> str:
    """Describe the values of a type for the help, such as `INT|None`."""
    alternatives = _alternatives(hint)
    if alternatives != (hint,):
        return "|".join(map(values_of, alternatives))
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        elements = [values_of(kind) for kind in typing.get_args(hint) if kind is not Ellipsis]
        return f"{elements[0]} ..." if Ellipsis in typing.get_args(hint) else " ".join(elements)
    return _TYPES.get(hint, "TEXT") if isinstance(hint, type) else "TEXT"


def flags_of(cls: type, instance: object = None, section: str = "", prefix: str = "") -> list[Flag]:
    """List the flags of a dataclass: one per field.

    A field that holds a dataclass has the flags of that dataclass, with the name of the field as
    prefix unless the annotation is `BARE`.

    Args:
      instance: an object with the defaults. None uses the defaults of the class, and
        lists the config fields of every network architecture.
      section: the config section of the fields; "" for a command.
      prefix: the text before the name of each field, such as "decoding.".
    """
    flags: list[Flag] = []
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        hint, *metadata = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        missing = dataclasses.MISSING
        if instance is not None:
            default = getattr(instance, field.name)
        elif field.default_factory is not missing:
            default = field.default_factory()
        else:
            default = tyro.MISSING if field.default is missing else field.default
        if isinstance(default, Config):
            flags += _config_flags(default, all_families=instance is None)
        elif dataclasses.is_dataclass(default) and not isinstance(default, type):
            is_bare = any(getattr(item, "name", None) == "" for item in metadata)
            new_prefix = prefix if is_bare else f"{prefix}{field.name}."
            new_section = section if isinstance(default, TrainingFlags) else field.name
            flags += flags_of(type(default), default, new_section, new_prefix)
        else:
            name = prefix + field.name
            flags.append(Flag(name, section, cls, field, default, hint, tuple(metadata)))
    return flags


@cache
def with_plugins(command: type[_T], name: str) -> type[_T]:
    """Return a subclass of the dataclass of command `name` with the flags of plugins.

    The subclass has one field per plugin, whose value is an object of `TrainingFlags`. If no plugin
    adds flags, return the dataclass itself.
    """
    plugin_kinds = added_flags(name, tuple(flag.name for flag in flags_of(command)))
    if not plugin_kinds:
        return command
    plugin_fields = [
        (f"plugin_{index}", Annotated[kind, BARE], dataclasses.field(default_factory=kind))
        for index, kind in enumerate(plugin_kinds)
    ]
    namespace: dict[str, Any] = {"__doc__": command.__doc__}
    for attribute in ("common", "examples"):  # for the help
        lists = (getattr(kind, attribute, ()) for kind in (command, *plugin_kinds))
        namespace[attribute] = tuple(chain(*lists))
    subclass = dataclasses.make_dataclass(
        command.__name__, plugin_fields, bases=(command,), namespace=namespace, frozen=True
    )
    subclass.__module__ = command.__module__  # Python 3.12 sets it to this module
    return subclass


def flags_of_plugins(command: object) -> list[TrainingFlags]:
    """Return the `TrainingFlags` of each plugin in a parsed command."""
    return [value for value in vars(command).values() if isinstance(value, TrainingFlags)]


def _config_flags(config: Config, all_families: bool) -> Iterator[Flag]:
    for path, field in known_fields().items():
        section, _, name = path.partition(".")
        owner = getattr(config, section)
        if all_families or hasattr(owner, name):
            default = getattr(owner, name, field.default)
            settings = (tyro.conf.FlagConversionOff,)
            yield Flag(path, section, type(owner), field, default, field.type, settings)
