"""Registries: tables of the names that a config may use, which users and plugins extend.

Each name has a row, a frozen dataclass. Built-in rows contain import paths, so that reading a
config does not import JAX.
"""

import ast
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_type_hints

from t2t_jax.config.definitions import RegisteringFile, definition
from t2t_jax.config.field_types import is_plain, plain_value
from t2t_jax.errors import UserError, did_you_mean, quote, reason_of, user_code
from t2t_jax.plugins import load, load_named, rows, warn_once
from t2t_jax.system.context import with_value
from t2t_jax.version import REMOVED_PARTS, removed_feature

if TYPE_CHECKING:
    from jax import Array

Row = TypeVar("Row")
_Part = TypeVar("_Part")
Function: TypeAlias = Callable[..., "Array"]
"""A named function of arrays."""

FILES = "T2T_JAX_REGISTER"
"""The environment variable with the files that register functions, separated as in PATH."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_SNAKE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_in_file: ContextVar[bool] = ContextVar("in_file", default=False)
_is_stored: ContextVar[bool] = ContextVar("is_stored", default=False)


class Parameter(NamedTuple):
    """A parameter array of a named function, and the distribution of its initial values."""

    shape: tuple[int, ...]
    """Shape of the array; () is a scalar."""
    mean: float = 0.0
    """Mean of the normal distribution of the initial values."""
    deviation: float = 0.0
    """Standard deviation of the initial values; 0 sets every value to the mean."""


Learned: TypeAlias = Callable[[Any], Mapping[str, Parameter]]
"""A function from the width of vectors to parameters by name."""


@cache
def nothing(size: object) -> Mapping[str, Parameter]:
    """Return {}, for a function without learned parameters."""
    return {}


@dataclass(frozen=True)
class Entry:
    """A named function of a table, with its parameters."""

    function: Any = field(hash=False)  # it may be unhashable
    """The function, the import path MODULE:NAME of a function of the package, or an
    `AttentionKind`."""
    parameters: Learned = nothing
    """A function from the width of vectors to the parameters by name."""
    is_gated: bool = False
    """Whether an activation is the gate of a feed-forward network with three matrices and no biases
    (Shazeer 2020)."""
    title: str = field(default="", compare=False)
    """The name in errors, such as `activation 'relu6'`; empty for built-in functions."""

    def load(self) -> Function:
        """Return the function, and import its module if necessary."""
        return self.function if callable(self.function) else load_named(str(self.function))

    def learned(self, width: Any) -> Mapping[str, Parameter]:
        """Return the function's learned parameters, by name, for vectors of `width`.

        Raise a `UserError` for an invalid declaration.
        """
        call = f"parameters({quote(width)}) of {self.title}"
        advice = "return a dictionary of t2t_jax.Parameter by name"
        with user_code(call, advice):
            declared = self.parameters(width)
            if isinstance(declared, Mapping) and all(map(_is_valid, declared, declared.values())):
                return declared
        raise UserError(f"{call} returned {quote(declared)}; {advice}")

    def num_parameters(self, width: Any) -> int:
        """Count the scalar parameters for vectors of a width."""
        return sum(math.prod(array.shape) for array in self.learned(width).values())


def _is_valid(name: object, declared: object) -> bool:
    if not isinstance(name, str) or not isinstance(declared, Parameter):
        return False
    is_finite = math.isfinite(declared.mean + declared.deviation)
    return is_finite and all(0 < index(size) < 2**31 for size in declared.shape)


class Registered(NamedTuple):
    """A part that a user registered."""

    title: str
    """The kind and the name for errors, such as `activation 'relu6'`."""
    part: Any
    """The function, the frozen dataclass or the row of the table."""
    source: RegisteringFile | None
    """The file that registered the part; None for a program or a notebook."""


class Registry(dict[str, Row]):
    """A table of parts by name, such as the optimizers: built-in rows, plugins, and users' parts.

    A text `NAME` or `NAME(field=value, ...)` selects a row. The dictionary holds the built-in rows,
    in the order of flags and documents.
    """

    def __init__(
        self,
        kind: str,
        plugin_field: str = "",
        row_type: type[Row] | None = None,
        adapt: Callable[[Any, str], Row] | None = None,
        only_trains: bool = False,
        /,
        **built_in: Row,
    ) -> None:
        """Start with the built-in rows.

        Args:
          kind: the kind, as `register` names it.
          plugin_field: the field of `plugins.Plugin` for the kind; "" without plugins.
          row_type: the class of the rows; None takes the class of the first row.
          adapt: makes a row of a part and its title, or raises a `UserError`; None takes only rows.
          only_trains: whether a stored run can be loaded without the part.
        """
        super().__init__(**built_in)
        self.kind, self.only_trains = kind, only_trains
        self._plugin_field, self._adapt = plugin_field, adapt
        self._row_type = row_type or type(next(iter(built_in.values())))
        self.registered_parts: dict[str, Registered] = {}
        self.rows: dict[str, Row] = {}  # of registered parts and of plugins, by text
        if kind:
            REGISTRIES[kind] = self

    def _plugin_paths(self) -> Mapping[str, str]:
        return rows(self._plugin_field, (*self, *self.names)) if self._plugin_field else {}

    def __missing__(self, text: str) -> Row:
        """Make the row of a text from a registered part, a plugin or a row with parameters."""
        if text not in self.rows:
            name, arguments = _parse(self.kind, text)
            part, title = self._part(name)
            row = _with_arguments(part, title, arguments)
            self.rows[text] = self._adapt_part(row, title)
        return self.rows[text]

    def _part(self, name: str) -> tuple[Any, str]:
        """Return the part of a name, and its title for errors."""
        title = f"{self.kind} {quote(name)}"
        if name in self:
            return self[name], title
        if registered := self.registered(name):
            return registered.part, title
        path = self._plugin_paths()[name]
        return load(path), f"{path} of the package {re.split('[.:]', path)[0]}"

    def _adapt_part(self, part: Any, title: str) -> Row:
        if isinstance(part, self._row_type) and not isinstance(part, Entry):
            return part
        if self._adapt is None:
            advice = "update or uninstall it" if " of the package " in title else "give one"
            raise UserError(
                f"{title} is a {type(part).__name__}, not a {self._row_type.__name__}; {advice}"
            )
        return self._adapt(part, title)

    def find(self, text: str) -> Row | None:
        """Return the row of a text; None if its name is not registered in this process."""
        return self[text] if self.has(text) else None

    def has(self, text: object) -> bool:
        """Return whether this process knows the name in a text."""
        if not isinstance(text, str):
            return False
        return text in self or _name_in(text) in self.all_names

    def registered(self, text: str) -> Registered | None:
        """Return the registered part that a text names; None for built-in parts and plugins."""
        return self.registered_parts.get(_name_in(text))

    def each(self) -> Iterator[tuple[str, Row]]:
        """Yield all rows by name; skip broken plugin rows with a warning."""
        yield from self.items()
        for name in (*self.registered_parts, *self._plugin_paths()):
            try:
                yield name, self[name]
            except UserError as error:
                warn_once(f"left out: {name} in the {self._plugin_field}: {error}")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the built-in rows."""
        return tuple(self)

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return the built-in names, the registered names and the names of plugins."""
        return (*self.names, *self.registered_parts, *self._plugin_paths())

    @property
    def choice(self) -> object:
        """Return the type of config fields that name a row: a `Literal`, joined with `str`."""
        return Literal[self.names] | str

    def text(self, label: str, value: object) -> str:
        """Return the text of a part without parameters that have their default values.

        Args:
          label: the config field, for errors.
          value: a text, or an object of a registered dataclass.
        """
        if isinstance(value, str) and value in self:
            return value
        for name, (title, kind, _) in self.registered_parts.items():
            if type(value) is kind:
                return _format(name, _with_arguments(kind, title, _values(value)))
        self.check(label, value)
        text = str(value)
        if not self.has(text):  # a stored config; only training needs this part
            return text
        name, arguments = _parse(label, text)
        if not arguments and name not in self.registered_parts:
            return name
        part, title = self._part(name)
        instance = _with_arguments(part, title, arguments)
        return _format(name, instance) if arguments else name

    def parameters(self, text: object) -> dict[str, object]:
        """Return all parameters of the part that a text names; {} for an unknown part."""
        if not self.has(text):
            return {}
        name, arguments = _parse(self.kind, str(text))
        part, title = self._part(name)
        instance = _with_arguments(part, title, arguments)
        return {} if instance is part else _values(instance)  # `part` if it has no parameters

    def check(self, label: str, name: object) -> None:
        """Refuse a name that is not registered, and say how to register it."""
        if not self.has(name):
            from t2t_jax.config.running import run_registering_files  # which imports this module

            run_registering_files()
        if self.has(name) or (self.only_trains and isinstance(name, str) and _is_stored.get()):
            return
        if feature := REMOVED_PARTS.get(str(name)):
            raise removed_feature(f"{label}={quote(name)}", feature)
        hint = did_you_mean(str(name), self.all_names, "use one of these")
        names = ", ".join(map(repr, self.all_names))
        message = f"{label}={quote(name)} is not one of {names}; {hint}"
        if not self.kind:
            raise UserError(message)
        end = "" if message.endswith("?") else "."
        raise UnregisteredError(
            f"{message}{end} A new name must be registered first: t2t_jax.register({self.kind!r}, "
            f"{quote(_name_in(str(name)))}) in the config file, in the program, or in a file of "
            f"{FILES}, or its package installed"
        )

    def register(self, name: str, part: object, *, replace: bool = False) -> None:
        """Add a part to the table; `register` has the rules."""
        title = f"{self.kind} {quote(name)}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"{title} cannot be registered; a name has letters, digits, _ and -, and begins "
                "with a letter"
            )
        if name in self.names:
            raise UserError(f"{title} is a built-in name; register yours under another name")
        if isinstance(part, type):
            check_entry_class(title, part)
        # Refuse a part of a wrong form, unless it is a class whose parameters need values.
        if not isinstance(part, type) or all(x.default is not MISSING for x in fields(part)):
            self._adapt_part(_with_arguments(part, title, {}), title)
        new, previous = Registered(title, part, _caller_file()), self.registered_parts.get(name)
        if previous and not _is_same(previous, new):
            if not replace:
                where = f" by {previous.source.path}" if previous.source else ""
                raise UserError(
                    f"{title} is already registered{where} with another definition; register it "
                    "with replace=True, and then make configs and models anew, or choose another "
                    "name"
                )
            forget_programs()
        self.registered_parts[name] = new
        self.rows.clear()


REGISTRIES: dict[str, Registry[Any]] = {}
"""The tables by kind, as `register` names it."""


def register(kind: str, name: str = "", *, replace: bool = False) -> Callable[[_Part], _Part]:
    """Return a decorator that registers a part under a name, which configs may then use.

    The part is a function, or a frozen dataclass whose fields are parameters: `training.schedule`
    may be "step_decay(factor=0.3)" or `StepDecay(factor=0.3)`. docs/extending.md has the form of
    each kind.

    Args:
      kind: activation, normalization, attention, position, schedule, optimizer, loss, measure,
        task or family.
      name: "" takes the name of the function or class, in snake case.
      replace: whether to replace another definition of the name. Make existing configs, models
        and translators again.

    Raises:
      UserError: the kind or the form of the part is wrong, or the name is invalid or in use.
    """
    if kind not in REGISTRIES:
        hint = did_you_mean(str(kind), REGISTRIES, "use one of these")
        raise UserError(f"kind={quote(kind)} is not one of {', '.join(REGISTRIES)}; {hint}")

    def decorate(part: _Part) -> _Part:
        part_name = name or snake_case(getattr(part, "__name__", ""))
        REGISTRIES[kind].register(part_name, part, replace=replace)
        return part

    return decorate


def snake_case(name: str) -> str:
    """Convert the name of a class, such as `StepDecay`, to `step_decay`."""
    return _SNAKE.sub("_", name).lower()


class UnregisteredError(UserError):
    """The error for a config that names an unregistered part."""


def reading_stored_config() -> AbstractContextManager[None]:
    """Accept unknown names of plugins and registered parts while a stored config is read.

    Translation, for example, does not need these parts.
    """
    return with_value(_is_stored, True)


def is_stored_config() -> bool:
    """Return whether the config being made is read from a run, a checkpoint or a sweep."""
    return _is_stored.get()


def _name_in(text: str) -> str:
    return text.partition("(")[0].strip()


def _parse(label: str, text: str) -> tuple[str, dict[str, Any]]:
    """Parse `NAME` or `NAME(field=value, ...)` into the name and the arguments."""
    name, parenthesis, inner = text.partition("(")
    try:
        call: Any = ast.parse(f"f({inner}" if parenthesis else "f()", mode="eval").body
        if call.args or not all(keyword.arg for keyword in call.keywords):
            raise ValueError
        return name.strip(), {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AttributeError):
        raise UserError(
            f"{label}: {quote(text)} is not NAME or NAME(field=value, ...) with plain values, as "
            "in wsd(decay_fraction=0.2)"
        ) from None


def with_parameter(text: str, parameter: str, value: object) -> str:
    """Set a parameter in the text of a part, such as `wsd` or `wsd(decay_fraction=0.2)`."""
    name, arguments = _parse(text, text)
    return _format_call(name, {**arguments, parameter: value})


def _format_call(name: str, arguments: Mapping[str, object]) -> str:
    texts = (f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({', '.join(texts)})" if arguments else name


def _with_arguments(part: Any, title: str, arguments: Mapping[str, object]) -> Any:
    """Return an object of a dataclass with these arguments, or a part without parameters."""
    has_parameters = isinstance(part, type) or getattr(part, "has_parameters", False)
    kind = part if isinstance(part, type) else type(part)
    if not has_parameters or not is_dataclass(kind):
        if arguments:
            raise UserError(f"{title} has no parameters; leave {', '.join(arguments)} out")
        return part
    hints = get_type_hints(kind)
    names = [leaf.name for leaf in _parameters(kind)]
    for name in arguments:
        if name not in names:
            hint = did_you_mean(name, names, f"it has {', '.join(names) or 'none'}")
            raise UserError(f"{title} has no parameter {quote(name)}; {hint}")
    values = {
        name: plain_value(f"{name} of {title}", value, hints[name])
        for name, value in arguments.items()
    }
    try:
        return kind(**values)
    except Exception as error:
        raise UserError(f"{title} refuses its parameters: {reason_of(error)}") from error


def _parameters(part: Any) -> list[Field[Any]]:
    return [leaf for leaf in fields(part) if leaf.init]


def _values(part: Any) -> dict[str, Any]:
    return {leaf.name: getattr(part, leaf.name) for leaf in _parameters(part)}


def _format(name: str, part: Any) -> str:
    defaults = {leaf.name: leaf.default for leaf in _parameters(part)}
    return _format_call(name, {key: x for key, x in _values(part).items() if x != defaults[key]})


def check_entry_class(title: str, kind: type) -> None:
    """Refuse a class that is not a frozen dataclass of plain values."""
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise UserError(
            f"{title} is a class that is not a frozen dataclass; write @dataclass(frozen=True) "
            "above the class"
        )
    for leaf in _parameters(kind):
        hint = get_type_hints(kind)[leaf.name]
        if not is_plain(hint):
            raise UserError(
                f"{title} has a parameter {leaf.name}: {getattr(hint, '__name__', hint)}, which a "
                "config cannot store; use bool, int, float, str, Literal, a tuple of one of them, "
                "or None"
            )


def _caller_file() -> RegisteringFile | None:
    """Return the file that calls `register`; None outside of config files and `FILES`."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(__package__):
        frame = frame.f_back
    return _read(frame.f_code.co_filename) if _in_file.get() else None


def forget_programs() -> None:
    """Drop compiled programs and cached results, which may contain a replaced part."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__package__.partition('.')[0]}."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def _is_same(previous: Registered, new: Registered) -> bool:
    """Return whether two parts have the same definition, as when a notebook cell runs again."""
    if previous.source and new.source:  # which may be the copies of a file in two runs
        return previous.source.is_alike(new.source.text)
    try:
        return bool(definition(previous.part) == definition(new.part))
    except (TypeError, ValueError, RecursionError):  # of arrays, or of a recursive function
        return previous.part is new.part


def _read(path: str) -> RegisteringFile | None:
    """Read the file of a caller; return None if the caller is not in a file."""
    with suppress(OSError, UnicodeDecodeError):
        return RegisteringFile(os.path.abspath(path), Path(path).read_text(encoding="utf-8-sig"))
    return None


def registering() -> AbstractContextManager[None]:
    """Record the source file of every function that code within the context registers."""
    return with_value(_in_file, True)
