"""Checks of the arguments that Python callers give to a model: lines and whole numbers.

A wrong type is a mistake in the program that calls, so it is a `TypeError`; a wrong value is a
`UserError`. Either names the argument.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

from t2t_jax.config import DecodingConfig
from t2t_jax.errors import UserError, quote


def whole_number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> int:
    """Return an argument that is an integer of Python or NumPy as an `int`.

    Raises:
      TypeError: the argument is no integer.
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
    """Return an argument that is a string which UTF-8 can encode.

    Raises:
      TypeError: the argument is no string.
      UserError: the argument has half of a surrogate pair.
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
    """Return the lines of an argument: of a list, a generator or an array of strings.

    Args:
      lines: the argument, which is read once.
      first_line: number of the first line, by which errors name them.

    Raises:
      TypeError: the argument does not give strings, or gives them in no order.
      UserError: a line is not text.
    """
    first = whole_number(first_line, "first_line", 0)
    if isinstance(lines, str):
        raise TypeError(f"{name} is one string; give a list of lines, as in [line]")
    if isinstance(lines, bytes | bytearray | Mapping | Set) or not isinstance(lines, Iterable):
        raise _not_a(name, lines, "a list of lines")
    given = list(lines)
    try:
        "".join(given).encode()  # all at once, in a tenth of the time
    except (TypeError, UnicodeEncodeError):
        for index, line in enumerate(given):
            text(line, f"{name}[{index}] (line {first + index})")
    return given


def _not_a(name: str, value: object, expected: str) -> TypeError:
    return TypeError(f"{name} is {quote(value)} of type {type(value).__name__}; give {expected}")


def check_num_best(num_best: int, decoding: DecodingConfig) -> None:
    """Refuse a number of translations of a line that a search cannot give.

    Raises:
      TypeError: the number is no integer.
      UserError: the search gives fewer, or the number is not positive.
    """
    if whole_number(num_best, "num_best") < 1:
        raise UserError(f"num_best={num_best} is not positive")
    if decoding.temperature > 0 and num_best > 1:
        raise UserError(
            f"num_best={num_best} with temperature={decoding.temperature}: sampling gives one "
            "translation a line; use temperature=0, or sample several times with other seeds"
        )
    if num_best > decoding.beam_size:
        raise UserError(
            f"num_best={num_best} is more than beam_size={decoding.beam_size}; raise beam_size"
        )
