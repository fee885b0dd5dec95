"""Tables of the names that a config may give, and how a config file adds a row to a table.

A name stands for a row: a frozen dataclass of all that the rest of the program asks about the name.
Where a name stands for a function, the row has the place of the function and not the function
itself, so that reading a config imports neither JAX nor the module. `config.tables` and
`config.tasks` have the tables themselves. A run knows registered code by its `syntax`: without what
does not change a program, as comments, layout and docstrings.
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
"""The environment variable that names files which register functions, separated as in PATH."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_in_file: ContextVar[bool] = ContextVar("in_file", default=False)


class Parameter(NamedTuple):
    """An array of numbers that a named function learns, and the values that it starts with."""

    shape: tuple[int, ...]
    """Sizes of the axes of the array; () is a single number."""
    mean: float = 0.0
    """Mean of the normal distribution from which each number is drawn at the start."""
    deviation: float = 0.0
    """Standard deviation of that distribution; 0 starts every number with the mean itself."""


class RegisteringFile(NamedTuple):
    """A file that registers functions."""

    path: str
    """The absolute path of the file."""
    text: str
    """The text of the file."""

    def is_alike(self, text: str) -> bool:
        """Return whether another text is the same program; see `syntax`."""
        try:
            return syntax(self.text) == syntax(text)
        except (SyntaxError, ValueError):
            return self.text == text


Learned: TypeAlias = Callable[[int], Mapping[str, Parameter]]
"""A function from the width of vectors to the parameters that a function learns, by name."""


@cache
def nothing(size: object) -> Mapping[str, Parameter]:
    """Return no parameters, as a function does that learns nothing."""
    return {}


@dataclass(frozen=True)
class Entry:
    """The row of a named function: the function, and the facts about it that others need."""

    function: Function | str | None = field(hash=False)  # it may be unhashable
    """The function, or for a function of the package its place, as MODULE:NAME, so that reading a
    config imports no JAX. None stands for scores that are products of queries and keys."""
    parameters: Learned = nothing
    """A function from the width of vectors to the parameters that are learned, by name."""
    is_gated: bool = False
    """Whether an activation is the gate of a network with three matrices, without biases
    (Shazeer 2020)."""
    title: str = field(default="", compare=False)
    """The entry's name in errors, such as `activation 'relu6'`; empty for the package's own."""
    source: RegisteringFile | None = field(default=None, compare=False)
    """The file that registered the function; None for the package's own functions, and for those
    that a program or a notebook registered."""

    def load(self) -> Function:
        """Return the function, whose module is imported if the entry has only its place."""
        return self.function if callable(self.function) else load_named(str(self.function))

    def learned(self, width: int) -> Mapping[str, Parameter]:
        """Return the parameters for vectors of a width."""
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
            f"{in_one_line(reason)[:200]}; mend the function"
        )

    def num_parameters(self, width: int) -> int:
        """Count the numbers that the function learns for vectors of a width."""
        return sum(math.prod(each.shape) for each in self.learned(width).values())


def _is_sound(name: object, declared: object) -> bool:
    if not isinstance(name, str) or not isinstance(declared, Parameter):
        return False
    is_finite = math.isfinite(declared.mean + declared.deviation)
    return is_finite and all(0 < index(size) < 2**31 for size in declared.shape)


class Rows(dict[str, Row]):
    """The rows of one kind by their names, in the order in which flags and documents list them.

    The row of a plugin is loaded when its name is looked up, as the plugin's modules may import
    this one.
    """

    def __init__(self, plugin_field: str = "", /, **own: Row) -> None:
        """Begin with the package's own rows.

        Args:
          plugin_field: the field of `plugins.Plugin` with rows of this kind; "" for none.
        """
        super().__init__(**own)
        self._plugin_field = plugin_field

    def _places(self) -> Mapping[str, str]:
        """Return the places of the rows of plugins."""
        return rows(self._plugin_field, (*self, *self.names)) if self._plugin_field else {}

    def __missing__(self, name: str) -> Row:
        """Load the row of a plugin."""
        place, kind = self._places()[name], type(next(iter(self.values())))
        row = load(place)
        if not isinstance(row, kind):
            package = re.split("[.:]", place)[0]
            raise UserError(
                f"{place} of the package {package} is a {type(row).__name__}, not a "
                f"{kind.__name__}; update or uninstall it"
            )
        return row

    def each(self) -> Iterator[tuple[str, Row]]:
        """Yield all rows by name, without broken ones of plugins."""
        yield from self.items()
        for name in self._places():
            try:
                yield name, self[name]
            except UserError as error:
                warn_once(f"left out: {name} in the {self._plugin_field}: {error}")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the built-in names that a config may give."""
        return tuple(self)

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return `names` and those of plugins."""
        return (*self.names, *self._places())

    @property
    def choice(self) -> object:
        """Return the type of a field that names a row; flags and documents list its names."""
        own: object = Literal[self.names]
        return own | str if self._plugin_field else own

    def check(self, label: str, name: object) -> None:
        """Refuse a name that no row has."""
        if isinstance(name, str) and (name in self.names or name in self.all_names):
            return
        otherwise = ", or install the package that adds it" if self._plugin_field else ""
        hint = did_you_mean(str(name), self.all_names, f"use one of these{otherwise}")
        names = ", ".join(map(repr, self.all_names))
        raise UserError(f"{label}={quote(name)} is not one of {names}; {hint}")


class Table(Rows[Entry]):
    """Named functions of one kind, to which a config file may add its own."""

    def __init__(self, kind: str, **entries: Entry) -> None:
        """Begin with the package's own entries."""
        super().__init__(**entries)
        self.kind = kind

    def check(self, label: str, name: object) -> None:
        """Refuse a name that is not registered, and say how to register it."""
        if name not in self:
            hint = did_you_mean(str(name), self, "use one of these.")
            raise UnregisteredError(
                f"{label}={quote(name)} is not one of {', '.join(map(repr, self))}; {hint} A name "
                "of your own has to be registered first: t2t_jax.register_"
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
        code = sys._getframe(2).f_code  # of the caller of `tables.register_activation` or the like
        source = _read(code.co_filename) if _in_file.get() else None
        entry = replace(entry, title=title, source=source)
        before = self.setdefault(name, entry)
        if not before.title:
            raise UserError(f"{title} is the package's own; register yours by another name")
        if not _is_same(before, entry):
            where = f" by {before.source.path}" if before.source else ""
            raise UserError(
                f"{title} is registered already{where}, and stands for one function as long as the "
                "process lives: programs are compiled with it; choose another name, or start again"
            )


class UnregisteredError(UserError):
    """The error for a config that names a function which is not registered."""


def _is_same(before: Entry, entry: Entry) -> bool:
    """Return whether two entries are the same, as when a file or a notebook cell is run twice."""
    if before.source and entry.source:
        return before.source == entry.source
    return (
        _is_alike(before.function, entry.function)
        and _is_alike(before.parameters, entry.parameters)
        and before.is_gated == entry.is_gated
    )


def _is_alike(function: object, other: object) -> bool:
    """Return whether two functions are one, or were made by the same code of the same module."""
    if function is other:
        return True
    code, its = (getattr(each, "__code__", None) for each in (function, other))
    if code is None or code != its or code.co_freevars:
        return False
    first, second = map(attrgetter("__globals__", "__defaults__"), (function, other))
    return first[0] is second[0] and first[1] == second[1]


def _read(path: str) -> RegisteringFile | None:
    """Read the file of a caller; return None where the caller is in no file."""
    with suppress(OSError, UnicodeDecodeError):
        return RegisteringFile(os.path.abspath(path), Path(path).read_text(encoding="utf-8-sig"))
    return None


def registering() -> AbstractContextManager[None]:
    """Record the file that registers a function, for every function registered in the block."""
    return with_value(_in_file, True)


_UNUSED = ("kind", "type_comment")


def syntax(text: str) -> str:
    """Return the syntax tree of Python code as text, the same in every version of Python.

    The tree has no comments, no positions, and no strings that stand as a statement, as docstrings
    do.

    Raises:
      SyntaxError: the text is no Python code.
      ValueError: the text has a NUL character, or is nested too deeply.
    """
    try:
        return _dump(ast.parse(text))
    except (RecursionError, MemoryError) as error:
        raise ValueError("it is nested too deeply") from error


def _dump(node: object) -> str:
    if isinstance(node, list):
        return f"[{','.join(_dump(one) for one in node if not _is_docstring(one))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds empty strings
        node.values = [one for one in node.values if getattr(one, "value", None) != ""]
    # Later versions of Python add fields, which are empty for older syntax.
    fields = [
        f"{name}={_dump(value)}"
        for name, value in ast.iter_fields(node)
        if name not in _UNUSED and value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(fields)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
