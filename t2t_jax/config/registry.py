"""Registries: tables of the names that a config may use, which config files and plugins extend.

Each name has a row, a frozen dataclass of facts. Rows of functions contain the import path of the
function, so that reading a config imports neither JAX nor the module. `config.tables` and
`config.tasks` define the tables. A run identifies registered code by its `syntax`.
"""

import ast
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter, index
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from t2t_jax.errors import UserError, did_you_mean, in_one_line, quote
from t2t_jax.plugins import load, load_named, rows, warn_once
from t2t_jax.system.context import with_value

if TYPE_CHECKING:
    from jax import Array

Row = TypeVar("Row")
Function: TypeAlias = Callable[..., "Array"]
"""A named function of arrays."""

FILES = "T2T_JAX_REGISTER"
"""The environment variable with the files that register functions, separated as in PATH."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_in_file: ContextVar[bool] = ContextVar("in_file", default=False)


class Parameter(NamedTuple):
    """A parameter array of a named function, and the distribution of its initial values."""

    shape: tuple[int, ...]
    """Shape of the array; () is a scalar."""
    mean: float = 0.0
    """Mean of the normal distribution of the initial values."""
    deviation: float = 0.0
    """Standard deviation of the initial values; 0 sets every value to the mean."""


class RegisteringFile(NamedTuple):
    """A file that registers functions."""

    path: str
    """The absolute path of the file."""
    text: str
    """The text of the file."""

    def is_alike(self, text: str) -> bool:
        """Return whether another text has the same Python syntax tree."""
        try:
            return syntax(self.text) == syntax(text)
        except (SyntaxError, ValueError):
            return self.text == text


Learned: TypeAlias = Callable[[int], Mapping[str, Parameter]]
"""A function from the width of vectors to parameters by name."""


@cache
def nothing(size: object) -> Mapping[str, Parameter]:
    """Return {}, for a function without learned parameters."""
    return {}


@dataclass(frozen=True)
class Entry:
    """A named function of a table, with its parameters."""

    function: Function | str | None = field(hash=False)  # it may be unhashable
    """The function, or the import path MODULE:NAME of a function of the package. None stands for
    dot-product scores."""
    parameters: Learned = nothing
    """A function from the width of vectors to the parameters by name."""
    is_gated: bool = False
    """Whether an activation is the gate of a feed-forward network with three matrices and no biases
    (Shazeer 2020)."""
    title: str = field(default="", compare=False)
    """The name in errors, such as `activation 'relu6'`; empty for built-in functions."""
    source: RegisteringFile | None = field(default=None, compare=False)
    """The file that registered the function; None for built-in functions and for functions of a
    program or a notebook."""

    def load(self) -> Function:
        """Return the function, and import its module if necessary."""
        return self.function if callable(self.function) else load_named(str(self.function))

    def learned(self, width: int) -> Mapping[str, Parameter]:
        """Return the function's learned parameters, by name, for vectors of `width`.

        Raise a `UserError` for an invalid declaration.
        """
        try:
            declared = self.parameters(width)
            if isinstance(declared, Mapping) and all(map(_is_sound, declared, declared.values())):
                return declared
            reason = f"gave {declared}"
        except Exception as error:
            reason = f"raised {type(error).__name__}: {error}"
        raise UserError(
            f"the parameters of {self.title} are declared by a function of the width, which must "
            f"return a dictionary of t2t_jax.Parameter by name; for {width} it "
            f"{in_one_line(reason)[:200]}; fix the function"
        )

    def num_parameters(self, width: int) -> int:
        """Count the scalar parameters for vectors of a width."""
        return sum(math.prod(array.shape) for array in self.learned(width).values())


def _is_sound(name: object, declared: object) -> bool:
    if not isinstance(name, str) or not isinstance(declared, Parameter):
        return False
    is_finite = math.isfinite(declared.mean + declared.deviation)
    return is_finite and all(0 < index(size) < 2**31 for size in declared.shape)


class Rows(dict[str, Row]):
    """A table of rows by name, such as the optimizers, in the order of flags and documents.

    The row of a plugin is loaded at the first look-up, as plugin modules may import this module.
    """

    def __init__(self, plugin_field: str = "", /, **built_in: Row) -> None:
        """Start with the built-in rows.

        Args:
          plugin_field: the field of `plugins.Plugin` with rows of this kind; "" without plugins.
        """
        super().__init__(**built_in)
        self._plugin_field = plugin_field

    def _plugin_paths(self) -> Mapping[str, str]:
        return rows(self._plugin_field, (*self, *self.names)) if self._plugin_field else {}

    def __missing__(self, name: str) -> Row:
        """Load the row `name` of this table from a plugin."""
        path, row_type = self._plugin_paths()[name], type(next(iter(self.values())))
        row = load(path)
        if not isinstance(row, row_type):
            package = re.split("[.:]", path)[0]
            raise UserError(
                f"{path} of the package {package} is a {type(row).__name__}, not a "
                f"{row_type.__name__}; update or uninstall it"
            )
        return row

    def each(self) -> Iterator[tuple[str, Row]]:
        """Yield all rows by name; skip broken plugin rows with a warning."""
        yield from self.items()
        for name in self._plugin_paths():
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
        """Return the built-in names and the names of plugins."""
        return (*self.names, *self._plugin_paths())

    @property
    def choice(self) -> object:
        """Return the type of config fields that name a row of this table.

        It is a `Literal`, joined with `str` if plugins may add rows.
        """
        built_in: object = Literal[self.names]
        return built_in | str if self._plugin_field else built_in

    def check(self, label: str, name: object) -> None:
        """Refuse an unknown name."""
        if isinstance(name, str) and (name in self.names or name in self.all_names):
            return
        otherwise = ", or install the package that adds it" if self._plugin_field else ""
        hint = did_you_mean(str(name), self.all_names, f"use one of these{otherwise}")
        names = ", ".join(map(repr, self.all_names))
        raise UserError(f"{label}={quote(name)} is not one of {names}; {hint}")


class Table(Rows[Entry]):
    """Named functions of one kind, to which a config file may add its own."""

    def __init__(self, kind: str, **entries: Entry) -> None:
        """Set `kind`, such as "activation"; add named functions."""
        super().__init__(**entries)
        self.kind = kind

    def check(self, label: str, name: object) -> None:
        """Refuse a name that is not registered, and say how to register it."""
        if name not in self:
            hint = did_you_mean(str(name), self, "use one of these.")
            raise UnregisteredError(
                f"{label}={quote(name)} is not one of {', '.join(map(repr, self))}; {hint} A new "
                "name must be registered first: t2t_jax.register_"
                f"{self.kind.replace(' ', '_')}({quote(name)}, ...) in the config file, in the "
                f"program, or in a file of {FILES}"
            )

    def register(self, name: str, entry: Entry) -> None:
        """Add an entry to the table."""
        title = f"{self.kind} {quote(name)}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"{title} cannot be registered; a name has letters, digits, _ and -, and begins "
                "with a letter"
            )
        if not callable(entry.function):
            raise UserError(f"{title} is a {type(entry.function).__name__}; register a function")
        code = sys._getframe(2).f_code  # the caller of `tables.register_activation` etc.
        source = _read(code.co_filename) if _in_file.get() else None
        entry = replace(entry, title=title, source=source)
        previous = self.setdefault(name, entry)
        if not previous.title:
            raise UserError(f"{title} is a built-in name; register yours under another name")
        if not _is_same(previous, entry):
            where = f" by {previous.source.path}" if previous.source else ""
            raise UserError(
                f"{title} is already registered{where}, and a process cannot replace a registered "
                "function, which compiled programs use; choose another name, or restart the process"
            )


class UnregisteredError(UserError):
    """The error for a config that names an unregistered function."""


def _is_same(previous: Entry, entry: Entry) -> bool:
    """Return whether two entries register the same function, as a repeated notebook cell does."""
    if previous.source and entry.source:
        return previous.source == entry.source
    return (
        _is_alike(previous.function, entry.function)
        and _is_alike(previous.parameters, entry.parameters)
        and previous.is_gated == entry.is_gated
    )


def _is_alike(function: object, second: object) -> bool:
    """Return whether two functions are identical or have the same code and module."""
    if function is second:
        return True
    code, second_code = (getattr(f, "__code__", None) for f in (function, second))
    if code is None or code != second_code or code.co_freevars:
        return False
    (globals_, defaults), pair = map(attrgetter("__globals__", "__defaults__"), (function, second))
    return globals_ is pair[0] and defaults == pair[1]


def _read(path: str) -> RegisteringFile | None:
    """Read the file of a caller; return None if the caller is not in a file."""
    with suppress(OSError, UnicodeDecodeError):
        return RegisteringFile(os.path.abspath(path), Path(path).read_text(encoding="utf-8-sig"))
    return None


def registering() -> AbstractContextManager[None]:
    """Record the source file of every function that code within the context registers."""
    return with_value(_in_file, True)


_UNUSED = ("kind", "type_comment")


def syntax(text: str) -> str:
    """Return the syntax tree of Python code as text, equal in every Python version.

    The tree omits comments, positions, docstrings and other string statements.

    Raises:
      SyntaxError: the text is not Python code.
      ValueError: the text has a NUL character or is nested too deeply.
    """
    try:
        return _dump(ast.parse(text))
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def _dump(node: object) -> str:
    if isinstance(node, list):
        return f"[{','.join(_dump(child) for child in node if not _is_docstring(child))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds empty strings
        node.values = [part for part in node.values if getattr(part, "value", None) != ""]
    # Later versions of Python add fields, which are empty for older syntax.
    fields = [
        f"{name}={_dump(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _UNUSED and value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
