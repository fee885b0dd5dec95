"""Values of a field of the config, as a command line writes them."""

import ast
import re
from typing import Any

from t2t_jax.config import Config
from t2t_jax.config.config import known_fields
from t2t_jax.errors import UserError, did_you_mean

_RANGE = re.compile(r"([^:]+):([^:]+):(log|lin)([0-9]*)")


def values_of(field: str, text: str) -> list[Any]:
    """Return the values of a list `a,b,c`, or of a range `a:b:logN` or `a:b:linN`, ends included.

    Args:
      field: the dotted path of the field.

    Raises:
      UserError: there is no such field, or the text has no such form, or the range is empty.
    """
    if field not in (known := known_fields()):
        raise UserError(
            f"unknown config field {field!r}; {did_you_mean(field, known, 'see --help')}"
        )
    if not (found := _RANGE.fullmatch(text)):
        return [_plain(part) for part in text.split(",")]
    try:
        low, high, number = float(found[1]), float(found[2]), int(found[4])
        if number < 2 or low >= high or (found[3] == "log" and low <= 0):
            raise ValueError
    except ValueError:
        raise UserError(
            f"{field}={text} is no range; give 0.5:2:log5, five values with equal ratios between "
            "two positive ends, or 0:1:lin3"
        ) from None
    shares = [i / (number - 1) for i in range(number)]
    ratio = found[3] == "log"
    exact = [low * (high / low) ** x if ratio else low + (high - low) * x for x in shares]
    return [_like(Config().value(field), one) for one in exact]


def _like(default: Any, number: float) -> float | int:
    """Return a number with four digits, so that names are short; whole if its field is."""
    return round(number) if isinstance(default, int) else float(f"{number:.4g}")


def _plain(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
