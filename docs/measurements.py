"""Compare the measurements that documents quote with the files of results.

    python docs/measurements.py            print every quotation that differs
    python docs/measurements.py --write    put the measured values into the documents

`docs/results/measurements.toml` lists the measurements. Each one names its file of results and the
sentences that quote it.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = "docs/results/measurements.toml"
NUMBER = r"\d(?:[\d,.]*\d)?"


def measured_value(measurement: dict[str, Any], root: Path = ROOT) -> str:
    """Return the number of a measurement as documents print it."""
    text = (root / measurement["results"]).read_text("utf-8")
    if "pattern" in measurement:  # a table of a page: the number within the pattern
        [number] = re.findall(measurement["pattern"], text)
        return number
    # JSON lines of a run: the last record that has the values of `where`.
    records = map(json.loads, text.splitlines())
    where = measurement.get("where", {})
    *_, record = (record for record in records if where.items() <= record.items())
    for key in measurement["field"].split("."):
        record = record[key]
    return format(record, measurement["format"])


def differences(root: Path = ROOT, write: bool = False) -> Iterator[str]:
    """Yield a line for each quotation that differs, and correct it if `write` is true."""
    for name, measurement in tomllib.loads((root / TABLE).read_text("utf-8")).items():
        value = measured_value(measurement, root)
        for path, sentence in measurement["quoted"]:
            text = (root / path).read_text("utf-8")
            before, after = map(re.escape, sentence.split("{}"))
            quotations = re.findall(before + f"({NUMBER})" + after, text)
            if len(quotations) != 1:
                yield f"{path}: {sentence!r} occurs {len(quotations)} times, not once ({name})"
            elif quotations != [value]:
                yield f"{path}: {sentence!r} quotes {quotations[0]}, measured: {value} ({name})"
                if write:
                    text = re.sub(before + NUMBER + after, sentence.format(value), text)
                    (root / path).write_text(text, "utf-8")


if __name__ == "__main__":
    lines = list(differences(write="--write" in sys.argv))
    print("\n".join(lines))
    sys.exit(bool(lines))
