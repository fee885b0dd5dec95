"""The grammar of --vary and --tune, which give fields their values, as lists and as ranges."""

import io
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, get_args

import tyro

from t2t_jax.commands.flag_table import values_of
from t2t_jax.config import Config
from t2t_jax.config.config import known_fields, known_path
from t2t_jax.config.file import Choices, can_name_directory
from t2t_jax.errors import UserError, quote

if TYPE_CHECKING:
    from t2t_jax.sweep.sampling import Range

_RANGE = re.compile(r"([^:]+):([^:]+):(log|lin)([0-9]{0,4})")
_DIGITS = 4
"""The significant digits of the numbers within a range, which are part of the names of rows."""


def choices_of(factors: Sequence[str], base: Config) -> Choices:
    """Return the fields that --vary names and their values, as `config.file.product` takes them.

    A value that the base config has comes first, so that the row that others are compared with is
    the base itself, or as near to it as a row comes.

    Args:
      factors: for each --vary the fields that change together, such as "model.d_ff=1024,2048" or
        "model.d_model=128,256 model.num_heads=4,8".
    """
    choices: dict[str | tuple[str, ...], Sequence[object]] = {}
    seen: set[str] = set()
    for factor in factors:
        columns: dict[str, list[object]] = {}
        for word in factor.split() or [factor]:
            path, text = field_and_values("--vary", word, seen)
            seen.add(path)
            columns[path] = values_in("--vary", path, text)
        counts = [len(values) for values in columns.values()]
        if len({*counts}) > 1:
            numbers = " and ".join(map(str, counts))
            raise UserError(
                f"--vary {quote(factor)} changes fields together that have {numbers} values; give "
                "each as many, or each a --vary of its own for all combinations"
            )
        rows = [*zip(*columns.values(), strict=True)]
        _check_differs(columns, rows, factor)
        own = tuple(base.value(path) for path in columns)
        rows.sort(key=lambda row: row != own)
        if len(columns) > 1:
            choices[tuple(columns)] = rows
        else:
            choices[path] = [value for (value,) in rows]
    return choices


def field_and_values(flag: str, word: str, seen: Collection[str]) -> tuple[str, str]:
    """Return the path of a field and the text of its values, of FIELD=VALUES.

    Args:
      seen: the paths of the fields that the flag has named before.
    """
    given, equals, values = word.partition("=")
    if not (given and equals and values):
        raise UserError(
            f"{flag} {quote(word)} is not FIELD=VALUES, as in {flag} model.d_ff=1024,2048 or "
            f"{flag} training.learning_rate_factor=0.5:2:log5; a directory stands ahead of flags"
        )
    path = known_path(given.removeprefix("--").replace("-", "_"))
    if path in seen:
        raise UserError(f"{flag} names {path} twice; name it once, with all of its values")
    return path, values


def values_in(flag: str, path: str, text: str) -> list[object]:
    """Return the values of a list such as `1024,2048`, in which a range such as `0.5:2:log5` stands
    for several.
    """
    return [one for part in text.split(",") for one in _values(f"{flag} {path}", path, part)]


def tuned_fields(texts: Sequence[str], *, for_sampler: bool) -> "dict[str, list[object] | Range]":
    """Return the values of each tuned field by its path, or its range for a sampler."""
    found: dict[str, list[object] | Range] = {}
    for text in texts:
        path, values = field_and_values("--tune", text, found)
        found[path] = _range_of(path, values) if for_sampler else values_in("--tune", path, values)
    return found


def _range_of(field: str, text: str) -> "Range":
    """Parse a range such as `0.5:2:log`."""
    from t2t_jax.sweep.sampling import Range

    hint = known_fields()[field].type
    kind = int if hint is int or int in get_args(hint) else float
    try:
        low, high, scale = text.split(":")
        found = Range(kind(low), kind(high), scale)
        found.check()
    except ValueError:
        raise UserError(
            f"--tune {field}={text} is no range for a sampler; write it as 0.5:2:log or 0:0.3:lin"
        ) from None
    return found


def _values(flag: str, path: str, part: str) -> list[object]:
    """Return the values that a part of a list stands for: a range has several."""
    found = _RANGE.fullmatch(part)
    if not found:
        return [_value(flag, path, part)]
    low, high = (_value(flag, path, end) for end in found.groups()[:2])
    kind, count = found[3], int(found[4] or 0)
    shown = f"{flag}={part}"
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise UserError(f"{shown} is a range, but {path} takes no numbers; list its values")
    if low >= high or count < 2:
        raise UserError(
            f"{shown} is an empty range; write LOW:HIGH:{kind}N, for N >= 2 values from LOW to HIGH"
        )
    if kind == "log" and low <= 0:
        raise UserError(f"{shown} has no geometric steps from {low}; begin above 0, or use lin")
    # Not by NumPy, whose last digits differ: values name the rows of grids that exist.
    shares = (number / (count - 1) for number in range(1, count - 1))
    between = [
        low * (high / low) ** share if kind == "log" else low + (high - low) * share
        for share in shares
    ]
    whole = isinstance(low, int)
    values = [low, *(round(x) if whole else float(f"{x:.{_DIGITS}g}") for x in between), high]
    if len({*values}) < count:
        numbers = "whole numbers" if whole else f"numbers of {_DIGITS} digits"
        raise UserError(
            f"{shown} has only {len({*values})} different {numbers}; ask for fewer, or list them"
        )
    return values


def _value(flag: str, path: str, word: str) -> Any:
    hint: Any = known_fields()[path].type
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            value = tyro.cli(hint, args=[word])
    except SystemExit as end:
        raise UserError(f"{flag}={word}: {quote(word)} is not {values_of(hint)}") from end
    if not can_name_directory(f"={value}"):
        raise UserError(
            f"{flag}={word} gives a row a name that no directory can have; write VARIANTS in a file"
        )
    return value


def _check_differs(columns: Mapping[str, list[object]], rows: list[tuple], factor: str) -> None:
    """Refuse a field with one value in all rows, and duplicate rows."""
    for path, values in columns.items():
        if len({*values}) == 1:
            flag = f"--{path.replace('_', '-')} {values[0]}"
            raise UserError(
                f"{path} is {quote(values[0])} in every row of --vary {quote(factor)}; give it "
                f"several values, or set it for all rows by {flag}"
            )
    if len({*rows}) < len(rows):
        twice = next(row for row in rows if rows.count(row) > 1)
        shown = " ".join(f"{path}={one}" for path, one in zip(columns, twice, strict=True))
        raise UserError(f"--vary {quote(factor)} has {shown} twice; list every value once")
