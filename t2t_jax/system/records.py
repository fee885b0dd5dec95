"""JSON files: records of a run with one object, logs with one object a line, and models' settings.

This module reads every such file against a schema: the fields that its readers rely on, and their
possible values. Somebody may be writing the file, a kill may have cut it, a disk may have damaged
it, and an imported model may come from anybody.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict

import msgspec

from t2t_jax.errors import UserError, warn
from t2t_jax.system.fetched_path import check_own
from t2t_jax.system.regular_file import check_regular, regular

Record = dict[str, Any]
Schema: TypeAlias = Any
"""A type of objects, as `msgspec` checks them: a `TypedDict`, or what `schema` returns."""
FINITE = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
"""A figure whose square is finite."""
COUNT = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number of things, or of a step."""
TIME = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds, or the seconds since 1970, which end in the year 5138."""
POSITIVE = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
"""A figure whose logarithm is finite, such as a perplexity."""
NUMBER = float | None
"""A figure; null stands for one that was not finite."""

# Integers beyond 64 bits become floats, so that no reader meets one that no float can have.
_DECODER = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) <= 20 else float(text))


def schema(required: Mapping[str, object], optional: Mapping[str, object] | None = None) -> Schema:
    """Return the type of objects with some fields; their readers ignore further fields.

    Args:
      required: the fields that a record must have, and their types.
      optional: the fields that a record may lack, and their types.
    """
    fields = {name: NotRequired.__getitem__(kind) for name, kind in (optional or {}).items()}
    return TypedDict("Record", {**required, **fields})  # type: ignore[operator]


def as_line(record: Record) -> str:
    """Return a record as one line of JSON, with null instead of NaN and infinity."""
    # JSON has no NaN or Infinity. Python writes and reads them as constants.
    finite = json.loads(json.dumps(record), parse_constant=lambda _: None)
    return json.dumps(finite)


def digest(value: object) -> str:
    """Return the SHA-256 of a JSON value in hexadecimal digits, whatever the order of its names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def parse_object(text: str | bytes, schema: Schema) -> Record:
    """Parse a JSON object, or raise a `ValueError` if it does not fit."""
    try:
        record = _DECODER.decode(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    check(record, schema)
    return record


def check(record: object, schema: Schema) -> None:
    """Raise a `ValueError` that names the field which does not fit. True is not a number."""
    msgspec.convert(record, schema)


def read_object(path: Path, schema: Schema, way_out: str) -> Record:
    """Read the object in a JSON file of a run."""
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
    """
    try:
        lines = regular(path).read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
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


def append_line(path: Path, record: Record) -> None:
    """Append a record to a log, on a separate line even if a kill has cut the last one.

    Raises:
      OSError: the file cannot be written.
      UserError: the file is a copy in a cache.
    """
    check_own(path)
    check_regular(path)
    # Written in one call: of two processes that add a line at once, neither cuts the other's.
    with path.open("ab", buffering=0) as file:
        file.write(_end_of_cut_line(path) + as_line(record).encode() + b"\n")


def _end_of_cut_line(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"
