"""Logs of JSON objects, one a line, which somebody may be writing or a kill may have cut."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def as_line(record: Mapping[str, Any]) -> str:
    """A record as JSON, which has neither NaN nor infinity: null is both."""
    unknown = {
        name: None
        for name, value in record.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    return json.dumps({**record, **unknown}, allow_nan=False)


def read_records(path: Path) -> list[Record]:
    """The whole lines of a log that are JSON objects, the oldest first; [] if there is no file."""
    return [record for _, record in read_lines(path)]


def read_lines(path: Path) -> list[tuple[str, Record]]:
    """The same with each line as it is written."""
    if not path.is_file():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if line.endswith("\n") and isinstance(record, dict):
            kept.append((line, record))
    return kept
