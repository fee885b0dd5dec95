"""Check lines and integers that Python callers pass to a model.

A wrong type raises `TypeError`; a wrong value raises `UserError`. The error names the argument.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

from t2t_jax.config import DecodingConfig
from t2t_jax.errors import UserError, quote


def whole_number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> int:
    """Convert a Python or NumPy integer to `int`; check that it is from `low` to `high`.

    Raises:
      TypeError: the argument is not an integer.
      UserError: the argument is too low or too high.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise _not_a(name, value, "an int") from None
    if isinstance(value, bool):
        raise _not_a(name, value, "an int")
    if not low <= number <= high:
        raise UserError(f"{name}={number} is outside [{low}, {high}]")
    return number


def text(value: object, name: str) -> str:
    """Return a string argument unchanged after checking that UTF-8 can encode it.

    Raises:
      TypeError: the argument is not a string.
      UserError: the argument contains half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise _not_a(name, value, "a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = ord(value[error.start])
        raise UserError(
            f"{name} is not text: character {error.start + 1} is half of a surrogate pair, "
            f"U+{half:04X}; remove it, or read the text with errors='replace'"
        ) from None
    return value


def texts(lines: object, name: str, first_line: int = 1) -> list[str]:
    """Convert an iterable of strings, such as a generator, to a list, and check each line.

    Args:
      lines: the iterable, which is read once.
      first_line: number of the first line, for error messages.

    Raises:
      TypeError: the argument contains other types than strings, or has no order.
      UserError: UTF-8 cannot encode a line.
    """
    first_line = whole_number(first_line, "first_line", 0)
    if isinstance(lines, str):
        raise TypeError(f"{name} is one string; give a list of lines, as in [line]")
    if isinstance(lines, bytes | bytearray | Mapping | Set) or not isinstance(lines, Iterable):
        raise _not_a(name, lines, "a list of lines")
    line_list = list(lines)
    try:
        "".join(line_list).encode()  # one call checks all lines in a tenth of the time
    except (TypeError, UnicodeEncodeError):
        for index, line in enumerate(line_list):
            text(line, f"{name}[{index}] (line {first_line + index})")
    return line_list


def _not_a(name: str, value: object, expected: str) -> TypeError:
    return TypeError(f"{name} is {quote(value)} of type {type(value).__name__}; give {expected}")


def check_num_best(num_best: int, decoding: DecodingConfig) -> None:
    """Check that the search can return `num_best` translations for each line.

    Raises:
      TypeError: `num_best` is not an integer.
      UserError: `num_best` is not positive, or exceeds what the search returns.
    """
    if whole_number(num_best, "num_best") < 1:
        raise UserError(f"num_best={num_best} is not positive")
    if decoding.temperature > 0 and num_best > 1:
        raise UserError(
            f"num_best={num_best} with temperature={decoding.temperature}: sampling gives one "
            "translation per line; use temperature=0, or sample several times with other seeds"
        )
    if num_best > decoding.beam_size:
        raise UserError(
            f"num_best={num_best} is more than beam_size={decoding.beam_size}; raise beam_size"
        )
