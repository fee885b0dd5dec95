"""The state of each cell of a grid, read from the files in the grid's directory."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.errors import UserError, warn
from t2t_jax.run.goodput import BETWEEN, read_goodput
from t2t_jax.run.history import History
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.launchers import last_words
from t2t_jax.sweep.tables import csv_text
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import Record
from t2t_jax.workdir import read_log

DONE, UNFINISHED, FAILED = "done", "unfinished", "failed"
PAUSED, DIVERGED = "paused", "diverged"
LEFT_OUT, WAITING = "left out", "waiting"
SEEDS = "seeds.csv"
"""The file of a grid with a row for each cell."""

_ERROR = re.compile(r"error: |[\w.]+(Error|Exception|Interrupt)\b")
"""The begin of the last line of a process that failed."""


class CellReport(NamedTuple):
    """The state of a cell."""

    cell: Cell
    state: str
    """One of done, unfinished, failed, paused (at a rung of halving, perhaps for good), diverged,
    left out (its result is damaged or of another config, or the config file lacks its row) and
    waiting (it has not begun)."""
    reason: str = ""
    """Why there is no result, in one line."""
    result: Record | None = None
    """The result of a cell that is done."""
    history: History = History()
    """The log of its run."""
    hours: float | None = None
    """The hours of its trainings; None if it keeps no accounts of them."""

    @property
    def steps(self) -> int:
        """Return the number of steps taken."""
        if self.result is not None:
            return int(self.result["steps"])
        return int(self.history.training[-1]["step"]) if self.history.training else 0


def cell_reports(cells: Iterable[Cell]) -> list[CellReport]:
    """Return the state of each cell; a damaged result is a reason to leave the cell out."""
    return [_report(cell) for cell in cells]


def _report(cell: Cell) -> CellReport:
    made = CellReport(cell, DONE, **_of_run(cell))
    try:
        result = cell.result()
        said, rungs = ("", {}) if result is not None else (last_words(cell), cell.rungs())
    except UserError as error:
        return made._replace(state=LEFT_OUT, reason=str(error))
    if result is not None:
        return made._replace(result=result, reason="")
    for record in rungs.values():
        if record["perplexity"] is None:
            reason = record.get("diverged", "its perplexity at a pause is not a number")
            return made._replace(state=DIVERGED, reason=reason)
    reason = said if _ERROR.match(said) else made.reason or _how_far(cell, made.history)
    state = FAILED if _ERROR.match(reason) else UNFINISHED if reason else WAITING
    if state == UNFINISHED and rungs and (step := max(rungs)) >= made.steps:
        end, figure = cell.config.training.num_train_steps, rungs[step]["perplexity"]
        state, reason = PAUSED, f"step {step:,} of {end:,}, with a perplexity of {figure:.2f}"
    return made._replace(state=state, reason=reason)


def _of_run(cell: Cell) -> dict[str, Any]:
    """Return the log of a cell's run, the hours of its trainings, and why the last one ended."""
    try:
        history = History.of(read_log(cell.workdir))
        account = read_goodput(cell.workdir)
    except UserError as error:  # which is no reason to do without the result
        warn(str(error))
        return {}
    if account is None:
        return {"history": history}
    seconds, last = account.seconds, account.jobs[-1].account
    ended, code = last["ended"] or "", last["exit_code"]
    if ended and (code is None or 0 < code < 128) and not _ERROR.match(ended):
        ended = f"error: {ended}"
    hours = (sum(seconds.values()) - seconds[BETWEEN]) / 3600
    return {"history": history, "hours": hours, "reason": "" if code == 0 else ended}


def _how_far(cell: Cell, history: History) -> str:
    """Describe the progress of a cell's run, with the time; "" if it has not begun."""
    if not history.training:
        return "begun, without a step in its log" if cell.workdir.is_dir() else ""
    record = history.training[-1]
    at = record.get("time")
    when = "" if at is None else time.strftime(", %d %b %Y %H:%M UTC", time.gmtime(at))
    return f"step {record['step']:,} of {cell.config.training.num_train_steps:,}{when}"


def results_by_variant(reports: Iterable[CellReport]) -> dict[str, list[Record]]:
    """Return the results by variant, without variants that have none."""
    results: dict[str, list[Record]] = {}
    for one in reports:
        if one.result is not None:
            results.setdefault(one.cell.variant, []).append(one.result)
    return results


def left_out_note(reports: Iterable[CellReport]) -> list[str]:
    """Return a note on cells whose results are damaged or of another config."""
    names = ", ".join(one.cell.name for one in reports if one.state == LEFT_OUT)
    return [f"Left out, as of another config or damaged: {names}."] if names else []


def write_seeds(grid: Grid, reports: Sequence[CellReport], workdir: Path) -> None:
    """Write `seeds.csv` into a grid's directory: a row for each cell, with every measure in full.

    The measures are all numbers and texts of the results. The variants are in the grid's order.
    """
    figures = [_scalars(one.result or {}) for one in reports]
    measures = {name: None for own in figures for name in own}
    base = grid.variants[grid.base]
    lines: list[list[Any]] = [
        ["variant", "seed", "state", "differs_in", "steps", "hours", *measures, "reason"]
    ]
    for one, own in zip(reports, figures, strict=True):
        config, seed = one.cell.config, one.cell.config.training.seed
        differs = describe_difference(base.replace({"training.seed": seed}), config)
        lines.append(
            [one.cell.variant, seed, one.state, differs, one.steps, one.hours]
            + [own.get(name, "") for name in measures]
            + [one.reason]
        )
    write_whole(workdir / SEEDS, csv_text(lines).encode())


def _scalars(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and texts of a result, except its steps, which have a column already."""
    return {
        name: value
        for name, value in result.items()
        if isinstance(value, int | float | str) and name != "steps"
    }
