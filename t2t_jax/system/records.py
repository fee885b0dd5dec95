"""JSON files: records of a run with one object, logs with one object a line, and models' settings.

This module reads every such file against a schema: the fields that its readers rely on, and their
possible values. Somebody may be writing the file, a kill may have cut it, a disk may have damaged
it, and an imported model may come from anybody.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

from t2t_jax.errors import UserError, warn
from t2t_jax.system.fetched_path import check_own
from t2t_jax.system.regular_file import regular

Record = dict[str, Any]


@dataclass(frozen=True)
class Between:
    """Numbers within bounds."""

    type: type[int] | type[float]
    """The type of the numbers; a float may be written as an integer."""
    low: float
    """The least of the numbers."""
    high: float
    """The greatest of the numbers."""


@dataclass(frozen=True)
class Each:
    """A list or an object whose values all have one kind."""

    container: type[list[Any]] | type[dict[str, Any]]
    """`list` or `dict`."""
    kinds: "Kinds"
    """The kinds that each of the values may have."""


@dataclass(frozen=True)
class Schema:
    """The fields that the readers of a record rely on, and the kinds of their values."""

    required: Mapping[str, "Kinds"] = field(default_factory=dict)
    """Fields that a record must have, and their kinds."""
    optional: Mapping[str, "Kinds"] = field(default_factory=dict)
    """Fields that a record may lack, and their kinds where they are there."""


Kind: TypeAlias = type | Between | Each | Schema
"""Values of a type, numbers within bounds, values that are all alike, or objects with fields."""
Kinds: TypeAlias = Kind | tuple[Kind, ...]
"""One kind, or several kinds that a value may have."""
NUMBER = (int, float, NoneType)
"""The kinds of a figure; null stands for one that was not finite."""


def as_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line of JSON, with null instead of NaN and infinity."""
    return json.dumps(_finite(record), allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by null, at any depth."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse_object(text: str | bytes, schema: Schema) -> Record:
    """Parse a JSON object, or raise a `ValueError` if it does not fit."""
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    check(record, schema)
    return record


def check(record: Any, schema: Schema, place: str = "") -> None:
    """Refuse a record that does not fit a schema.

    Args:
      place: the names of the fields that lead to the object, each with a dot after it.

    Raises:
      ValueError: the record is not an object, or a field is missing or of another kind.
    """
    if not isinstance(record, dict):
        raise ValueError(f"it is not an object, but a JSON {type(record).__name__}")
    missing = [name for name in schema.required if name not in record]
    if missing:
        raise ValueError(f"it has no field {place + missing[0]!r}")
    for name, kinds in {**schema.required, **schema.optional}.items():
        if name in record:
            _check_value(record[name], kinds, place + name)


def _check_value(value: Any, kinds: Kinds, place: str) -> None:
    accepted = kinds if isinstance(kinds, tuple) else (kinds,)
    for kind in accepted:
        if isinstance(kind, Schema) and isinstance(value, dict):
            return check(value, kind, f"{place}.")
        if isinstance(kind, Each) and isinstance(value, kind.container):
            for name, one in value.items() if isinstance(value, dict) else enumerate(value):
                _check_value(one, kind.kinds, f"{place}.{name}")
            return None
        if _is_of(value, kind):
            return None
    raise ValueError(f"its field {place!r:.80} is {value!r:.60}, expected {_names_of(kinds)}")


def _is_of(value: Any, kind: Kind) -> bool:
    """Return whether a value is of a type, or a number within bounds. True is not a number."""
    if isinstance(kind, Between):
        return _is_of(value, int) | _is_of(value, kind.type) and kind.low <= value <= kind.high
    if isinstance(value, bool):
        return kind is bool
    return isinstance(kind, type) and isinstance(value, kind)


def _names_of(kinds: Kinds) -> str:
    match kinds:
        case tuple():
            return " or ".join(map(_names_of, kinds))
        case Between():
            return f"{kinds.type.__name__} from {kinds.low:,} to {kinds.high:,}"
        case Each():
            return f"{kinds.container.__name__} of {_names_of(kinds.kinds)}"
        case Schema():
            return "dict"
    return "null" if kinds is NoneType else kinds.__name__


def read_object(path: Path, schema: Schema, way_out: str) -> Record:
    """Read the object in a JSON file of a run.

    Raises:
      UserError: the file cannot be read, or does not fit the schema; then it names the remedy.
    """
    try:
        return parse_object(regular(path).read_bytes(), schema)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error


def read_records(path: Path, schema: Schema) -> list[Record]:
    """Return the complete records of a log, oldest first; [] if there is no file."""
    return [record for _, record in read_record_lines(path, schema)]


def read_record_lines(path: Path, schema: Schema) -> list[tuple[str, Record]]:
    """Return the complete records of a log, each with its line in the file.

    A last line without its end was cut by a kill, or is still being written: it is skipped. So is
    a line that does not fit the schema, with a warning that names it.

    Raises:
      UserError: the file cannot be read.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    kept = []
    for number, line in enumerate(lines, 1):
        try:
            record = parse_object(line, schema)
            kept.append((f"{line.decode()}\n", record))
        except ValueError as error:
            if line.strip():
                warn(f"{path} line {number} is left out: {error}")
    return kept


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record to a log, on a separate line even if a kill has cut the last one.

    Raises:
      OSError: the file cannot be written.
      UserError: the file is a copy in a cache.
    """
    check_own(path)
    # Written in one call: of two processes that add a line at once, neither cuts the other's.
    with path.open("ab", buffering=0) as file:
        file.write(_end_of_cut_line(path) + as_line(record).encode() + b"\n")


def _end_of_cut_line(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"
