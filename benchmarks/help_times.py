"""Measure how long every command takes to answer --help, and how many lines the answer has.

    python benchmarks/help_times.py
    python benchmarks/help_times.py --other ../before      # and those of another checkout

A row has the least seconds of the command, each time in a new process, the median seconds of the
processor, and the lines of the answer at 80 columns. The commands take turns, and so do the two
checkouts. A command that the other checkout lacks has no figures there. The load of the machine is
printed first: beside other work, all seconds are more.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from t2t_jax.commands.flags import parse_flags
from t2t_jax.commands.groups import COMMANDS
from t2t_jax.commands.tables import grid, print_result
from t2t_jax.errors import UserError
from t2t_jax.system.host import processor_name
from t2t_jax.system.program import run

_HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class HelpTimes:
    """The flags of this benchmark."""

    other: Path | None = None
    """Another checkout, whose commands are measured in turns with those of this one."""
    repeats: int = 5
    """Times that every command is called."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked: HelpTimes = parse_flags(HelpTimes, arguments)
    if asked.repeats < 1:
        raise UserError(f"--repeats {asked.repeats} is not positive")
    checkouts = [_HERE, *([asked.other.resolve()] if asked.other else [])]
    names = ["", *(name for group in COMMANDS.values() for name in group)]
    lines = {(at, name): _help(at, name) for name in names for at in checkouts}
    took: dict[tuple[Path, str], list[tuple[float, float]]] = {key: [] for key in lines}
    for _ in range(asked.repeats):
        for key in (key for key, found in lines.items() if found):
            start, before = time.perf_counter(), _processor_seconds()
            _help(*key)
            took[key].append((time.perf_counter() - start, _processor_seconds() - before))
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print_result(f"{processor_name()}, {os.cpu_count()} cores, load {load}")
    titles = ("least s", "processor s", "lines")
    there = [f"{title} there" for title in titles] if asked.other else []
    table = grid("command", *titles, *there)
    for name in names:
        cells = [cell for at in checkouts for cell in _cells(took[at, name], lines[at, name])]
        table.add_row(name or "t2t-jax", *cells)
    print_result(table)
    return 0


def _cells(took: Sequence[tuple[float, float]], lines: int) -> list[str]:
    """Return the figures of a command: its seconds, those of the processor, and its lines."""
    if not took:
        return [""] * 3
    walls, processor = zip(*took, strict=True)
    return [f"{min(walls):.2f}", f"{statistics.median(processor):.2f}", f"{lines}"]


def _processor_seconds() -> float:
    """Return the seconds that the processor has spent on the programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _help(checkout: Path, command: str) -> int:
    """Return the number of lines of the help of a command of a checkout; 0 if there is none."""
    done = subprocess.run(
        [sys.executable, "-m", "t2t_jax", *command.split(), "--help"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    return len(done.stdout.splitlines()) if done.returncode == 0 else 0


if __name__ == "__main__":
    run(main)
