"""Python source code without what does not change a program: comments, layout and docstrings."""

import ast
from typing import Any

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


def _dump(node: Any) -> str:
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


def _is_docstring(node: Any) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return False
    return isinstance(node.value.value, str)
