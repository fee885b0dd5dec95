"""Read and write JSON files: run records, logs with one object per line, and model settings.

Each file is validated against a schema of required fields and types, because the file may be
incomplete, damaged, or from an untrusted model.
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
"""A type for `msgspec` to validate objects: a `TypedDict`, or a result of `schema`."""
FINITE = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
"""A number whose square is finite."""
COUNT = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A count or a step number."""
TIME = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds, or seconds since 1970, up to the year 5138."""
POSITIVE = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
"""A number whose logarithm is finite, such as a perplexity."""
NUMBER = float | None
"""A number; null replaces NaN and infinity."""

# Parse integers beyond 64 bits as floats, so that their conversion to float cannot overflow later.
_DECODER = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) <= 20 else float(text))


def schema(required: Mapping[str, object], optional: Mapping[str, object] | None = None) -> Schema:
    """Make a schema from the types of required and optional fields; other fields are ignored."""
    fields = {name: NotRequired.__getitem__(kind) for name, kind in (optional or {}).items()}
    return TypedDict("Record", {**required, **fields})  # type: ignore[operator]


def as_line(record: Record) -> str:
    """Serialize a record as one line of JSON, with null for NaN and infinity."""
    # JSON has no NaN or Infinity, which Python writes and parses as constants.
    finite_record = json.loads(json.dumps(record), parse_constant=lambda _: None)
    return json.dumps(finite_record)


def digest(value: object) -> str:
    """Return the hexadecimal SHA-256 of a JSON value; the order of object keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def parse_object(text: str | bytes, schema: Schema) -> Record:
    """Parse a JSON object; raise a `ValueError` if it is invalid or does not match the schema."""
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
    """Raise a `ValueError` that names a field outside the schema. True is not a number."""
    msgspec.convert(record, schema)


def read_object(path: Path, schema: Schema, way_out: str) -> Record:
    """Read a JSON file with one object.

    Raises:
      UserError: the file is unreadable or damaged; the message ends with `way_out`.
    """
    try:
        return parse_object(regular(path).read_bytes(), schema)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error


def read_records(path: Path, schema: Schema) -> list[Record]:
    """Read the complete records of a log, oldest first; [] if there is no file."""
    return [record for _, record in read_record_lines(path, schema)]


def read_record_lines(path: Path, schema: Schema) -> list[tuple[str, Record]]:
    """Read the complete records of a log, each with its line of text.

    Skip a last line without a line feed, which is incomplete. Skip a line that does not match the
    schema, with a warning. Return [] if there is no file.
    """
    try:
        lines = regular(path).read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    records = []
    for line_number, line in enumerate(lines, 1):
        try:
            record = parse_object(line, schema)
            records.append((f"{line.decode()}\n", record))
        except ValueError as error:
            if line.strip():
                warn(f"{path} line {line_number} is left out: {error}")
    return records


def append_line(path: Path, record: Record) -> None:
    """Append a record to a log on a new line, even if the last line is incomplete."""
    check_own(path)
    check_regular(path)
    # A single write call, because another process may append a line at the same time.
    with path.open("ab", buffering=0) as file:
        file.write(_missing_line_feed(path) + as_line(record).encode() + b"\n")


def _missing_line_feed(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return b"" if file.read(1) in (b"", b"\n") else b"\n"
