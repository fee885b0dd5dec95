"""Parse --vary and --tune: values of config fields, as lists and ranges."""

import ast
import io
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

import tyro

from t2t_jax.commands.flag_table import values_of
from t2t_jax.config import Config
from t2t_jax.config.config import known_fields, known_path
from t2t_jax.config.file import Choices, can_name_directory
from t2t_jax.errors import UserError, quote

_COMMA = re.compile(r",(?![^()]*\))")  # not between parameters, as in wsd(decay_fraction=0.2)
_RANGE = re.compile(r"([^:]+):([^:]+):(log|lin)([0-9]{0,4})")
_DIGITS = 4
"""Significant digits of the numbers inside a range, which are part of variant names."""


def choices_of(vary_texts: Sequence[str], base: Config) -> Choices:
    """Parse the values of all --vary flags into choices for `config.file.product`.

    The choices map a field path, or a tuple of paths that change together, to values. The value of
    the base config comes first, because the first variant is the baseline.

    Args:
      vary_texts: the value of each --vary, such as "model.d_ff=1024,2048", or
        "model.d_model=128,256 model.num_heads=4,8" for fields that change together.
    """
    choices: dict[str | tuple[str, ...], Sequence[object]] = {}
    varied_paths: list[str] = []
    for vary_text in vary_texts:
        columns = values_by_field("--vary", vary_text.split() or [vary_text], varied_paths)
        varied_paths += columns
        counts = [len(values) for values in columns.values()]
        if len({*counts}) > 1:
            count_text = " and ".join(map(str, counts))
            raise UserError(
                f"--vary {quote(vary_text)} changes fields together that have {count_text} values; "
                "give each as many values, or use a --vary for each to train all combinations"
            )
        rows = [*zip(*columns.values(), strict=True)]
        _check_differs(columns, rows, vary_text)
        # The sort is stable, so other rows stay in the order of the command line.
        rows.sort(key=lambda row: not _is_unchanged(base, dict(zip(columns, row, strict=True))))
        if len(columns) > 1:
            choices[tuple(columns)] = rows
        else:
            choices |= {path: [value for (value,) in rows] for path in columns}
    return choices


def _is_unchanged(base: Config, changes: Mapping[str, object]) -> bool:
    with suppress(UserError):  # of a value that is invalid without other changes
        return base.replace(changes) == base
    return False


def values_by_field(
    flag: str, words: Sequence[str], used_paths: Collection[str] = ()
) -> dict[str, list[object]]:
    """Parse FIELD=VALUES into values by field path.

    Args:
      flag: the flag that has the words, for errors.
      used_paths: paths of earlier fields, which cannot be repeated.
    """
    values: dict[str, list[object]] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not (name and text):
            raise UserError(
                f"{flag} {quote(word)} is not FIELD=VALUES, as in {flag} model.d_ff=1024,2048 or "
                f"{flag} training.learning_rate_factor=0.5:2:log5; put the directory before flags"
            )
        path = known_path(name.removeprefix("--").replace("-", "_"))
        if path in values or path in used_paths:
            raise UserError(f"{flag} names {path} twice; name it once, with all of its values")
        values[path] = values_in(flag, path, text)
    return values


def values_in(flag: str, path: str, text: str) -> list[object]:
    """Parse the values of a config field from `1024,2048` or from ranges such as `0.5:2:log5`.

    Args:
      flag: the flag that has the text, for errors.
      path: the path of the field, such as `model.d_ff`.
    """
    parts = _COMMA.split(text)
    return [value for part in parts for value in _values(f"{flag} {path}", path, part)]


def _values(flag: str, path: str, text: str) -> list[object]:
    """Parse one value, such as `4`, or a range, such as `0.5:2:log5`, into its 5 values."""
    match = _RANGE.fullmatch(text)
    if not match:
        return [_value(flag, path, text)]
    low, high = (_value(flag, path, end) for end in match.groups()[:2])
    scale, count = match[3], int(match[4] or 0)
    setting = f"{flag}={text}"
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)):
        raise UserError(f"{setting} is a range, but {path} takes no numbers; list its values")
    if low >= high or count < 2:
        raise UserError(
            f"{setting} is an empty range; write LOW:HIGH:{scale}N, with N >= 2 and LOW < HIGH"
        )
    if scale == "log" and low <= 0:
        raise UserError(f"{setting} has no geometric steps from {low}; begin above 0, or use lin")
    # NumPy would change the last digits, and so the variant names of existing grids.
    fractions = (index / (count - 1) for index in range(1, count - 1))
    inner_values = [
        low * (high / low) ** fraction if scale == "log" else low + (high - low) * fraction
        for fraction in fractions
    ]
    is_int = isinstance(low, int)
    values = [low, *(round(x) if is_int else float(f"{x:.{_DIGITS}g}") for x in inner_values), high]
    if len({*values}) < count:
        noun = "whole numbers" if is_int else f"numbers of {_DIGITS} digits"
        raise UserError(
            f"{setting} has only {len({*values})} different {noun}; ask for fewer, or list them"
        )
    return values


def _value(flag: str, path: str, word: str) -> Any:
    if path not in known_fields():  # a parameter of a part
        with suppress(SyntaxError, ValueError):
            return ast.literal_eval(word)
        return word
    hint: Any = known_fields()[path].type
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            value = tyro.cli(hint, args=[word])
    except SystemExit as error:
        raise UserError(f"{flag}={word}: {quote(word)} is not {values_of(hint)}") from error
    if not can_name_directory(f"={value}"):
        raise UserError(
            f"{flag}={word} cannot name a variant's directory; define VARIANTS in a config file"
        )
    return value


def _check_differs(columns: Mapping[str, list[object]], rows: list[tuple], vary_text: str) -> None:
    """Raise a `UserError` for a field with the same value in all rows, or for duplicate rows.

    Args:
      columns: the values of each field of one --vary.
      rows: the same values, as one tuple per combination.
      vary_text: the value of --vary, for errors.
    """
    for path, values in columns.items():
        if len({*values}) == 1:
            flag = f"--{path.replace('_', '-')} {values[0]}"
            raise UserError(
                f"{path} is {quote(values[0])} in every row of --vary {quote(vary_text)}; give it "
                f"several values, or set it for all rows by {flag}"
            )
    if len({*rows}) < len(rows):
        duplicate = next(row for row in rows if rows.count(row) > 1)
        text = " ".join(f"{path}={value}" for path, value in zip(columns, duplicate, strict=True))
        raise UserError(f"--vary {quote(vary_text)} has {text} twice; list every value once")
