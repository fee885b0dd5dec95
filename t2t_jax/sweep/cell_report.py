"""The state of each cell of a grid, read from the files in the grid's directory."""

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from t2t_jax.config import walk
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.errors import UserError, warn
from t2t_jax.run.history import History, scalars
from t2t_jax.run.job import BETWEEN, Goodput, read_goodput
from t2t_jax.run.progress import STEPS
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.comparison import Results, cell_name
from t2t_jax.sweep.launchers import last_words
from t2t_jax.sweep.stored_grid import added_later
from t2t_jax.sweep.tables import Budget, csv_text
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.perplexity import perplexity_text
from t2t_jax.workdir import read_log

DONE, UNFINISHED, FAILED = "done", "unfinished", "failed"
PAUSED, DIVERGED = "paused", "diverged"
LEFT_OUT, WAITING = "left out", "waiting"
SEEDS = "seeds.csv"
"""The file of a grid with a row for each cell."""
CURVES = "curves.csv"
"""The file of a grid with a row for each figure in the logs of its runs."""

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
    goodput: Goodput | None = None
    """The use of the time of its trainings; None if it keeps no accounts of them."""
    hours: float | None = None
    """The hours of its trainings; None if it keeps no accounts of them."""

    @property
    def steps(self) -> int:
        """Return the number of steps taken."""
        if self.result is not None:
            return int(self.result["steps"])
        return int(self.history.training[-1]["step"]) if self.history.training else 0

    @property
    def budget(self) -> Budget:
        """Return the budget of the training so far.

        All figures are None if the accounts of the jobs cover fewer steps than the cell has taken,
        for example because one is damaged.
        """
        account = self.goodput
        if account is None or sum(job.steps for job in account.jobs) < self.steps:
            return Budget()
        hours = account.device_hours
        return Budget(
            _over_steps(account, "flops"),
            _over_steps(account, "source_tokens"),
            _over_steps(account, "target_tokens"),
            hours[STEPS],
            sum(hours.values()) - hours[BETWEEN],
        )


def _over_steps(account: Goodput, name: str) -> float | None:
    """Sum a figure per step over all steps; None if a job did not record it."""
    figures = [(job.account.get(name), job.steps) for job in account.jobs]
    products = [figure * steps for figure, steps in figures if figure is not None]
    return sum(products) if len(products) == len(figures) else None


def report_on(cell: Cell) -> CellReport:
    """Return the state of a cell; a damaged result is a reason to leave the cell out."""
    report = CellReport(cell, DONE, **_of_run(cell))
    try:
        result = cell.result()
        said, rungs = ("", {}) if result is not None else (last_words(cell), cell.rungs())
    except UserError as error:
        return report._replace(state=LEFT_OUT, reason=str(error))
    if result is not None:
        return report._replace(result=result, reason="")
    for record in rungs.values():
        if record["perplexity"] is None:
            reason = record.get("diverged", "its perplexity at a pause is not a number")
            return report._replace(state=DIVERGED, reason=reason)
    reason = said if _ERROR.match(said) else report.reason or _how_far(cell, report.history)
    state = FAILED if _ERROR.match(reason) else UNFINISHED if reason else WAITING
    if state == UNFINISHED and rungs and (step := max(rungs)) >= report.steps:
        end, figure = cell.config.training.num_train_steps, rungs[step]["perplexity"]
        reason = f"step {step:,} of {end:,}, with a perplexity of {perplexity_text(figure)}"
        state = PAUSED
    return report._replace(state=state, reason=reason)


def _of_run(cell: Cell) -> dict[str, Any]:
    """Return the log of a cell's run, the use of its time, and why its last training ended."""
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
    reason = "" if code == 0 else ended
    return {"history": history, "goodput": account, "hours": hours, "reason": reason}


def _how_far(cell: Cell, history: History) -> str:
    """Describe the progress of a cell's run, with the time; "" if it has not begun."""
    if not history.training:
        return "begun, without a step in its log" if cell.workdir.is_dir() else ""
    record = history.training[-1]
    at = record.get("time")
    when = "" if at is None else time.strftime(", %d %b %Y %H:%M UTC", time.gmtime(at))
    return f"step {record['step']:,} of {cell.config.training.num_train_steps:,}{when}"


def mean_budgets(results: Results, reports: Iterable[CellReport]) -> dict[str, Budget]:
    """Return the mean budget of the seeds of each variant.

    The budget of a tuned variant counts the chosen values only.
    """
    budgets = {report.cell.name: report.budget for report in reports if report.result}
    means = {}
    for variant, seeds in results.items():
        of_seeds = (budgets.get(cell_name(variant, result), Budget()) for result in seeds)
        columns = zip(*of_seeds, strict=True)
        means[variant] = Budget(*(None if None in column else fmean(column) for column in columns))
    return means


def write_seeds(
    grid: Grid, reports: Sequence[CellReport], results: Results, workdir: Path, record: Record
) -> None:
    """Write `seeds.csv` into a grid's directory: a row for each cell, with every measure in full.

    There is a column for each config field that varies between variants, under its dotted path,
    for each figure of the budget, and for all numbers and texts of the results. `planned` is no for
    cells that were added to the grid's plan later, and empty without a plan. `chosen` is yes for
    the tuned values that the table compares. The variants are in the grid's order.
    """
    added = added_later(record)
    every = ((variant, result) for variant, seeds in results.items() for result in seeds)
    chosen = {cell_name(variant, result) for variant, result in every if "tuned_to" in result}
    fields = [{path: value for path, _, value in walk(r.cell.config)} for r in reports]
    paths = dict.fromkeys(path for values in fields for path in values if path != "training.seed")
    varied = [path for path in paths if len({values.get(path, "") for values in fields}) > 1]
    base, records = grid.variants[grid.base], []
    for report, values in zip(reports, fields, strict=True):
        cell, config = report.cell, report.cell.config
        seed = config.training.seed
        measures = {
            name: value
            for name, value in (report.result or {}).items()
            if isinstance(value, int | float | str) and name != "steps"
        }
        if "target_tokens" in measures:  # of the scored split; a budget has those of training
            measures["scored_target_tokens"] = measures.pop("target_tokens")
        records.append(
            {
                "variant": cell.variant,
                "seed": seed,
                "planned": "" if added is None else "no" if cell.name in added else "yes",
                "chosen": "" if not chosen else "yes" if cell.name in chosen else "no",
                "state": report.state,
                "differs_in": describe_difference(base.replace({"training.seed": seed}), config),
                **{path: str(values.get(path, "")) for path in varied},
                "steps": report.steps,
                "hours": report.hours,
                "parameters": num_parameters(config.model, config.data.vocab_size),
                **report.budget._asdict(),
                **measures,
                "reason": report.reason,
            }
        )
    heads = {name: None for record in records for name in record if name != "reason"}
    write_whole(workdir / SEEDS, csv_text([*heads, "reason"], records).encode())


def write_curves(reports: Iterable[CellReport], workdir: Path) -> None:
    """Write `curves.csv` into a grid's directory: a row for each finite figure in the logs.

    The rows are in long form: variant, seed, step, split (train or dev), measure and value.
    """
    heads, rows = ("variant", "seed", "step", "split", "measure", "value"), []
    for report in reports:
        cell = report.cell.variant, report.cell.config.training.seed
        for record in (*report.history.training, *report.history.evaluations):
            for name, value in scalars(record).items():
                split, _, measure = name.partition("/")
                rows.append((*cell, record["step"], split, measure, value))
    records = (dict(zip(heads, row, strict=True)) for row in rows)
    write_whole(workdir / CURVES, csv_text(heads, records).encode())
