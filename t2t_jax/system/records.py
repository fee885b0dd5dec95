"""JSON of a run: files with one object, and logs with one object a line.

Every such file is read here, against a schema: the fields that its readers rely on, and their
types. Somebody may be writing the file, a kill may have cut it, a disk may have damaged it.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

from t2t_jax.errors import UserError, warn

Record = dict[str, Any]

Types = Mapping[str, type | tuple[type, ...]]


class Schema(NamedTuple):
    """What the readers of a record rely on: fields, and the types that the value of each has."""

    required: Types = MappingProxyType({})
    """Fields that a record must have, and their types."""
    optional: Types = MappingProxyType({})
    """Fields that a record may lack, and their types where they are there."""


NUMBER = (int, float, NoneType)
"""A figure; null stands for one that was not finite."""


def as_line(record: Mapping[str, Any]) -> str:
    """A record as JSON, which has neither NaN nor infinity: null is both."""
    unknown = {
        name: None
        for name, value in record.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return json.dumps({**record, **unknown}, allow_nan=False)


def parse_object(text: str | bytes, schema: Schema) -> Record:
    """The JSON object that a text holds.

    Raises:
      ValueError: it is not a JSON object, or a field of the schema is missing or of another type.
    """
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


def check(record: Any, schema: Schema) -> None:
    """Refuse what does not fit a schema.

    Raises:
      ValueError: it is not an object, or a field is missing or of another type.
    """
    if not isinstance(record, dict):
        raise ValueError(f"it is not an object, but a JSON {type(record).__name__}")
    missing = [name for name in schema.required if name not in record]
    if missing:
        raise ValueError(f"it has no field {missing[0]!r}")
    for name, types in {**schema.required, **schema.optional}.items():
        if name not in record:
            continue
        value = record[name]
        accepted = types if isinstance(types, tuple) else (types,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            expected = " or ".join("null" if one is NoneType else one.__name__ for one in accepted)
            raise ValueError(f"its field {name!r} is {value!r:.60}, expected {expected}")


def read_object(path: Path, schema: Schema, way_out: str) -> Record:
    """The object that a JSON file of a run holds.

    Args:
      path: the file.
      schema: what it has to have.
      way_out: what the user can do where the file is damaged.

    Raises:
      UserError: the file cannot be read, or does not fit the schema.
    """
    try:
        return parse_object(path.read_bytes(), schema)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error


def read_records(path: Path, schema: Schema) -> list[Record]:
    """The records of a log that are whole, the oldest first; [] if there is no file."""
    return [record for _, record in read_record_lines(path, schema)]


def read_record_lines(path: Path, schema: Schema) -> list[tuple[str, Record]]:
    """The records of a log that are whole, each with its line as it stands in the file.

    A last line without its end was cut by a kill, or is still being written: it is left out. So is
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
    """Add a record to a log, on a line of its own even where a kill has cut the last one.

    Raises:
      OSError: the file cannot be written.
    """
    # Written in one call: of two processes that add a line at once, neither cuts the other's.
    with path.open("ab", buffering=0) as file:
        file.write(_end_of_cut_line(path) + as_line(record).encode() + b"\n")


def _end_of_cut_line(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"
