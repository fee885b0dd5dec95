"""Compare the definitions of parts that users register: as syntax trees of files, and as code."""

import ast
import inspect
import re
import textwrap
from dataclasses import fields, is_dataclass
from types import CodeType
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


# Attributes that Python adds to classes, and methods that `dataclass` makes from the fields.
_GENERATED = re.compile(
    "__(dict|weakref|doc|module|annotat.*|static_attributes|firstlineno|match_args|dataclass_.*"
    "|init|repr|eq|hash|setattr|delattr|replace)__"
)


def source_of(part: Any) -> str:
    """Return the source text of a function or class, also of a notebook.

    Raises:
      OSError or TypeError: Python cannot find the source.
    """
    try:
        return textwrap.dedent(inspect.getsource(part))
    except (OSError, TypeError):
        if not isinstance(part, type):
            raise
    # Before Python 3.13, only the methods of a notebook's class have a source.
    leaves = [(leaf.name, str(leaf.type), repr(leaf.default)) for leaf in fields(part)]
    methods = [x for name, x in vars(part).items() if not _GENERATED.match(name)]
    texts = (textwrap.dedent(inspect.getsource(x)) for x in filter(inspect.isfunction, methods))
    return "".join([f"{leaves}\n", *texts])


def definition(value: Any) -> Any:
    """Return the code of a function or class without its lines, and any other value unchanged."""
    function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
    if code := getattr(function, "__code__", None):
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        contents = [definition(cell.cell_contents) for name, cell in cells if name != "__class__"]
        defaults = function.__defaults__, function.__kwdefaults__
        return "function", _code(code), defaults, contents, id(function.__globals__)
    if isinstance(value, type):
        members = {k: definition(x) for k, x in vars(value).items() if not _GENERATED.match(k)}
        leaves = [(x.name, str(x.type), x.default) for x in fields(value)]
        return "class", [base.__qualname__ for base in value.__bases__], members, leaves
    if is_dataclass(value):
        return type(value), [definition(getattr(value, leaf.name)) for leaf in fields(value)]
    return value


def _code(code: CodeType) -> tuple[object, ...]:
    constants = [_code(x) if isinstance(x, CodeType) else (type(x), x) for x in code.co_consts]
    names = code.co_names, code.co_varnames, code.co_freevars
    return code.co_code, names, code.co_argcount, code.co_flags, constants
