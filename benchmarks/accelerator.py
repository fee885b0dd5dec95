"""Measure an accelerator that is available for some minutes, the most valuable parts first.

    python benchmarks/accelerator.py --minutes 9 --out figures
    python benchmarks/accelerator.py --minutes 5 --out figures --parts decoding resume
    python benchmarks/accelerator.py --tiny --minutes 2 --out figures     # on a CPU, to try it

Each part is a process of its own with its share of the time, which grows by what earlier parts
leave over. Every row of figures is written when it is measured: `figures.jsonl` has them all, and
`page.md` is the page made of them, which is printed at the end as well. An end at any moment leaves
what was measured until then; a later call with some of the parts replaces the figures of these.
What a part has printed is in `PART.log`.

The program runs from a checkout, on a machine without a network too. docs/offline.md says which
packages such a machine needs, and how they get there; parts that lack some are left out, and the
page says so. `on_accelerator/` has the parts.
"""

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from on_accelerator.page import NOTE, PARTS, Part, page

from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.program import run
from t2t_jax.system.signals import StopSignal

_BENCHMARKS = Path(__file__).resolve().parent
_TICK = 0.2  # seconds between two checks of the clock


def main(arguments: Sequence[str]) -> int:
    """Measure the parts that the command line asks for."""
    asked = _parse(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in PARTS if not asked.parts or part.name in asked.parts]
    figures = Figures(asked.out, chosen)
    end = time.monotonic() + 60 * asked.minutes
    with StopSignal() as stop:
        for number, part in enumerate(chosen):
            left = end - time.monotonic()
            if part.lacks:
                names = ", ".join(part.lacks)
                figures.note(part, f"It needs {names}, not installed here; see docs/offline.md.")
            elif stop.number or left <= 0:
                figures.note(part, "There was no time left for this part.")
            else:
                later = sum(one.seconds for one in chosen[number:] if not one.lacks)
                _measure(part, left * part.seconds / later, asked.tiny, figures, stop)
    print(figures.page())
    return 128 + stop.number if stop.number else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "accelerator.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all parts together")
    parser.add_argument("--out", type=Path, required=True, help="folder of the figures")
    parser.add_argument(
        "--parts", nargs="+", default=[], metavar="PART", help=", ".join(p.name for p in PARTS)
    )
    parser.add_argument("--tiny", action="store_true", help="small models, to try the program")
    asked = parser.parse_args(arguments)
    unknown = {*asked.parts} - {part.name for part in PARTS}
    if unknown:
        known = ", ".join(part.name for part in PARTS)
        raise UserError(f"there is no part {', '.join(sorted(unknown))}; the parts are {known}")
    if not asked.minutes > 0:
        raise UserError(f"--minutes {asked.minutes} is not a time; give a number above 0")
    return asked


class Figures:
    """The rows of figures of all parts, which are on the disk at any moment."""

    def __init__(self, folder: Path, anew: Sequence[Part]) -> None:
        """Keep the rows of an earlier call, except those of the parts that are measured anew."""
        self._folder = folder
        self._file = folder / "figures.jsonl"
        names = {part.name for part in anew}
        self._rows = [row for row in _rows_in(self._file) if row["part"] not in names]
        self._write()

    def add(self, part: Part, row: dict[str, Any]) -> None:
        """Write down a row of figures."""
        self._rows.append(
            {"part": part.name, "time": datetime.now(UTC).isoformat("T", "seconds")} | row
        )
        self._write()

    def note(self, part: Part, text: str) -> None:
        """Write down a remark on a part, such as why it has no more figures."""
        print(f"{part.name}: {text}", file=sys.stderr, flush=True)
        self.add(part, {"table": NOTE, "note": text})

    def page(self) -> str:
        """Return the page of all figures."""
        return page(self._rows)

    def _write(self) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in self._rows)
        write_whole(self._file, lines.encode())
        write_whole(self._folder / "page.md", self.page().encode())

    def log(self, part: Part) -> Path:
        """Return the file for the output of a part's process."""
        return self._folder / f"{part.name}.log"


def _rows_in(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _measure(part: Part, seconds: float, tiny: bool, figures: Figures, stop: StopSignal) -> None:
    """Run the process of a part for at most `seconds`, and write down its rows."""
    print(f"{part.name}: at most {seconds:.0f} s", file=sys.stderr, flush=True)
    paths = [str(_BENCHMARKS), str(_BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")]
    with figures.log(part).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "on_accelerator", part.name, *["--tiny"] * tiny],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=_BENCHMARKS.parent,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {part.xla_flags}".strip(),
            },
            start_new_session=True,  # so that its own children can be ended with it
        )
        deadline = time.monotonic() + seconds
        try:
            for line in _lines(process, deadline, stop):
                figures.add(part, json.loads(line))
            is_over = time.monotonic() < deadline and not stop.number
            code = process.wait() if is_over else None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if stop.number:
        figures.note(part, "The program was stopped here.")
    elif code is None:
        figures.note(part, f"This part was ended at its limit of {seconds:.0f} s.")
    elif code:
        figures.note(
            part, f"This part failed with exit code {code}: {_last_line(figures.log(part))}"
        )


def _lines(
    process: "subprocess.Popen[bytes]", deadline: float, stop: StopSignal
) -> Iterator[bytes]:
    """Yield the lines that a process prints, until its output ends, a deadline or a signal."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    unfinished = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline and not stop.number:
            if selector.select(_TICK):
                read = os.read(process.stdout.fileno(), 1 << 16)
                if not read:
                    return
                *whole, unfinished = (unfinished + read).split(b"\n")
                yield from whole


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


if __name__ == "__main__":
    run(main)
