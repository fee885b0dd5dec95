"""Compare the definitions of parts that users register: as syntax trees of files, and as code."""

import ast
import inspect
import linecache
import sys
import textwrap
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple


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


def source_of(part: Any) -> str:
    """Return the source text of a function or class, also of a notebook.

    Raises:
      OSError, TypeError or SyntaxError: Python cannot find the source.
    """
    try:
        return textwrap.dedent(inspect.getsource(part))
    except (OSError, TypeError):
        if not isinstance(part, type):
            raise
    # Python 3.11 and 3.12 know the file of a class only if its module was imported, and not for a
    # notebook or a config file. Its methods name the file, but for those that `dataclass` makes.
    functions = map(inspect.unwrap, filter(inspect.isfunction, vars(part).values()))
    files = {function.__code__.co_filename for function in functions} - {"<string>"}
    lines = [line for file in sorted(files) for line in linecache.getlines(file)]
    nodes = ast.walk(ast.parse("".join(lines)))
    classes = [x for x in nodes if isinstance(x, ast.ClassDef) and x.name == part.__name__]
    if not classes:
        raise OSError(f"the source of {part.__name__} is not known")
    last = max(classes, key=lambda node: node.lineno)  # a class may be defined again
    begin = min([last.lineno, *(decorator.lineno for decorator in last.decorator_list)])
    return textwrap.dedent("".join(lines[begin - 1 : last.end_lineno]))


def definition(value: Any) -> Any:
    """Return the source of a part and the values that it encloses, to compare two parts."""
    if isinstance(value, partial):
        return definition(value.func), definition(value.args), definition(value.keywords)
    if isinstance(value, dict):
        return {name: definition(item) for name, item in value.items()}
    if isinstance(value, list | tuple):  # also a transformation of Optax
        return [definition(item) for item in value]
    if inspect.ismethod(value):
        return definition(value.__func__), definition(value.__self__)
    if is_dataclass(value) and not isinstance(value, type):
        values = {leaf.name: getattr(value, leaf.name) for leaf in fields(value)}
        return definition(type(value)), definition(values)
    module = getattr(value, "__module__", "") or ""
    file = getattr(sys.modules.get(module), "__file__", "") or ""
    try:
        text = source_of(value)
    except (OSError, TypeError, SyntaxError):  # a plain value, or a function without source
        return value
    with suppress(SyntaxError, ValueError):  # a lambda within a longer statement
        text = syntax(text)
    if "site-packages" in file:  # an update of the package is no other part
        text = f"{module}.{value.__qualname__}"
    enclosed = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    enclosed += [x for x in getattr(value, "__mro__", ())[1:] if x.__module__ == module]
    return text, definition(enclosed), getattr(value, "__defaults__", None)
