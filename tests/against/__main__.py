"""Compare with other programs, and print a table: `python -m tests.against --help`."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import import_module

from tests.against.environment import INSTALLED, pinned_versions, python_with_programs
from tests.against.part import (
    Case,
    Difference,
    Part,
    Row,
    Runner,
    classified,
    columns,
    compare_cases,
)

PARTS = "search", "networks", "training", "kernels"


def print_difference(part: str, name: str, case: Case, difference: Difference) -> None:
    """Print a difference, and the command that repeats it."""
    command = f"python -m tests.against {part} --case '{json.dumps(case)}'"
    print(f"{part}, {name}: {difference.kind}\n  {difference.detail}\n  {command}", flush=True)


def repeat_case(part: Part, case: Case) -> bool:
    """Compute one case, and print each outcome; return whether every program agrees."""
    with closing(Runner(part)) as runner:
        outcomes = runner.outcomes({**part.simplest, **case})
    for name, outcome in outcomes.items():
        word, kind = classified(outcome, part.documented)
        words = name, word, kind, getattr(outcome, "detail", "")
        print(": ".join(filter(None, words)))
    return not any(outcomes.values())


def print_table(rows: Mapping[tuple[str, str], Row]) -> None:
    """Print how many cases were compared, and with which outcomes."""
    line = "{:<10}{:<36}" + 5 * "{:>12}"
    print(line.format("part", "with", *columns(Counter())))
    for names, row in rows.items():
        print(line.format(*names, *columns(row).values()))
    for (part, name), row in rows.items():
        for (column, kind), count in row.most_common():
            if kind:
                print(f"{part}, {name}: {count} {column}: {kind}")


def parsed_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser("python -m tests.against", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--minutes", type=float, default=60.0, help="limit of the whole command")
    parser.add_argument("--cases", type=int, default=10**9, help="limit of cases for each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=json.loads, help="repeat one case of one part")
    return parser.parse_args()


def main() -> int:
    """Return 0 if all programs agree, 1 after a difference, 2 if a comparison had no case."""
    arguments = parsed_arguments()
    python = python_with_programs()
    if python != sys.executable:
        os.execv(python, [python, "-m", "tests.against", *sys.argv[1:]])
    # These modules import no program.
    parts = {name: import_module(f"tests.against.{name}.part").PART for name in arguments.parts}
    if arguments.case is not None:
        return 0 if all(repeat_case(part, arguments.case) for part in parts.values()) else 1
    versions = (f"{name} {INSTALLED.get(name, 'missing')}" for name in pinned_versions())
    print(f"seed {arguments.seed}; {', '.join(versions)}", flush=True)
    end = time.monotonic() + 60 * arguments.minutes

    def compared(name: str) -> dict[str, Row]:
        limits = arguments.seed, end, arguments.cases
        report = partial(print_difference, name)
        return compare_cases(parts[name], *limits, report)

    # Each part waits for its programs in a thread, so that all parts share the processors.
    with ThreadPoolExecutor(len(parts)) as pool:
        tables = zip(parts, pool.map(compared, parts), strict=True)
        rows = {(part, name): row for part, table in tables for name, row in sorted(table.items())}
    print_table(rows)
    totals = {names: columns(row) for names, row in rows.items()}
    if any(row["different"] for row in totals.values()):
        return 1
    missing = {names for names, row in totals.items() if not row["compared"]}
    is_allowed = all(name in parts[part].may_not_run for part, name in missing)
    return 0 if rows and is_allowed else 2


if __name__ == "__main__":
    sys.exit(main())
