"""Compare with other programs, and print a table: `python -m tests.against --help`."""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

from tests.against.environment import installed_version, pinned_versions, python_with_programs
from tests.against.part import Case, Difference, Part, Row, Runner, compare_cases
from tests.against.programs import NotRun

PARTS = "search", "networks", "training", "kernels"


def part_named(name: str) -> Part:
    """Return a part; its module imports no program."""
    return import_module(f"tests.against.{name}.part").PART


def print_difference(part: str, name: str, case: Case, difference: Difference) -> None:
    """Print a difference, and the command that repeats it."""
    command = f"python -m tests.against {part} --case '{json.dumps(case)}'"
    print(f"{part}, {name}: {difference.kind}\n  {difference.detail}\n  {command}", flush=True)


def repeat_case(part_name: str, case: Case) -> bool:
    """Compute one case, and print each outcome; return whether every program agrees."""
    runner = Runner(part_named(part_name))
    outcomes = runner.outcomes({**runner.part.simplest, **case})
    runner.close()
    for name, outcome in outcomes.items():
        match outcome:
            case None:
                print(f"{name}: equal")
            case NotRun(reason):
                print(f"{name}: not run: {reason}")
            case Difference(kind, detail):
                is_documented = kind in runner.part.documented
                print(f"{name}: {kind}{' (documented)' if is_documented else ''}\n  {detail}")
    return not any(outcomes.values())


def print_table(rows: Mapping[tuple[str, str], Row]) -> None:
    """Print how many cases were compared, and with which outcomes."""
    names = [("part", "with"), *rows]
    counts = [("compared", "equal", "documented", "different", "not run")]
    for row in rows.values():
        kinds = row.documented, row.different, row.not_run
        counts.append((row.num_compared, row.equal, *(kind.total() for kind in kinds)))
    widths = [max(len(name[column]) for name in names) for column in (0, 1)]
    for (part, name), numbers in zip(names, counts, strict=True):
        cells = "".join(f"{number:>12}" for number in numbers)
        print(f"{part:<{widths[0]}}  {name:<{widths[1]}}{cells}")
    for (part, name), row in rows.items():
        for word in ("documented", "different", "not_run"):
            for kind, count in getattr(row, word).most_common():
                print(f"{part}, {name}: {count} {word.replace('_', ' ')}: {kind}")


def parsed_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser("python -m tests.against", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--minutes", type=float, default=60.0, help="limit of the whole command")
    parser.add_argument("--cases", type=int, default=10**9, help="limit of cases for each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=json.loads, help="repeat one case of one part")
    return parser.parse_args()


def main() -> int:
    """Return 0 if all programs agree, 1 after a difference, 2 if a comparison had no case."""
    arguments = parsed_arguments()
    python = python_with_programs()
    if python != sys.executable:
        os.execv(python, [python, "-m", "tests.against", *sys.argv[1:]])
    if arguments.case is not None:
        return 0 if all(repeat_case(part, arguments.case) for part in arguments.parts) else 1
    versions = (f"{name} {installed_version(name) or 'missing'}" for name in pinned_versions())
    print(f"seed {arguments.seed}; {', '.join(versions)}", flush=True)
    end = time.monotonic() + 60 * arguments.minutes

    def compared(part: str) -> dict[tuple[str, str], Row]:
        def report(name: str, case: Case, difference: Difference) -> None:
            print_difference(part, name, case, difference)

        limits = arguments.seed, end, arguments.cases
        found = compare_cases(part_named(part), *limits, report, arguments.first)
        return {(part, name): row for name, row in sorted(found.items())}

    # Each part waits for its programs in a thread, so that all parts share the processors.
    with ThreadPoolExecutor(len(arguments.parts)) as pool:
        rows = dict(row for found in pool.map(compared, arguments.parts) for row in found.items())
    print_table(rows)
    if any(row.different for row in rows.values()):
        return 1
    missing = {key for key, row in rows.items() if not row.num_compared}
    allowed = {(part, name) for part in arguments.parts for name in part_named(part).may_not_run}
    return 0 if rows and missing <= allowed else 2


if __name__ == "__main__":
    sys.exit(main())
