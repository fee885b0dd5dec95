"""Read the state of a grid's cells from the files in its directory, and build tables from it."""

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference, values_by_path
from t2t_jax.config.schedules import SCHEDULES
from t2t_jax.errors import UserError, warn
from t2t_jax.run.history import History, scalars
from t2t_jax.run.job import BETWEEN, Goodput, read_goodput
from t2t_jax.run.progress import STEPS
from t2t_jax.sweep.cell import SPLIT, Cell, cells, decide, num_seeds_in, score_at
from t2t_jax.sweep.comparison import Results, cell_name, grouped, measure, verdict_on
from t2t_jax.sweep.launchers import last_output
from t2t_jax.sweep.rules import recorded_plan
from t2t_jax.sweep.same_code import devices_and_dtypes
from t2t_jax.sweep.stored_grid import added_later, read_record, rows_outside, scorings
from t2t_jax.sweep.tables import Budget, GridTable, TableContext, csv_text
from t2t_jax.sweep.tuning import tuned_results
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
"""The file of a grid with a row for each value in the logs of its runs."""

_ERROR = re.compile(r"error: |[\w.]+(Error|Exception|Interrupt)\b")
"""How the last log line of a failed process begins."""


class CellReport(NamedTuple):
    """The state of a cell (a run of the sweep), such as done or failed, with result and log."""

    cell: Cell
    state: str
    """One of done, unfinished, failed, diverged, paused (at a rung of halving, perhaps
    permanently), left out (the result is damaged or of another config, or the config file lacks
    the variant) and waiting (not started)."""
    reason: str = ""
    """The reason for a missing result, in one line."""
    result: Record | None = None
    """The result of a finished cell."""
    history: History = History()
    """The log of the cell's run."""
    goodput: Goodput | None = None
    """The time that each part of the run took; None if no job recorded it."""
    hours: float | None = None
    """The hours of all jobs of the run; None if no job recorded them."""

    @property
    def steps(self) -> int:
        """Return the number of trained steps."""
        if self.result is not None:
            return int(self.result["steps"])
        return int(self.history.training[-1]["step"]) if self.history.training else 0

    @property
    def budget(self) -> Budget:
        """Return the FLOPs, tokens and hours that the run used so far.

        All fields are None if its records cover fewer steps than it has trained, for example
        because a record is damaged.
        """
        goodput = self.goodput
        if goodput is None or sum(job.steps for job in goodput.jobs) < self.steps:
            return Budget()
        hours, names = goodput.device_hours, ("flops", "source_tokens", "target_tokens")
        flops, sources, targets = (_over_steps(goodput, name) for name in names)
        total_hours = sum(hours.values()) - hours[BETWEEN]
        return Budget(flops, sources, targets, hours[STEPS], total_hours)


def _over_steps(goodput: Goodput, name: str) -> float | None:
    """Total over all steps a figure, such as FLOPs, that jobs record per step.

    Return None if a job lacks it.
    """
    figures = [(job.account.get(name), job.steps) for job in goodput.jobs]
    products = [figure * steps for figure, steps in figures if figure is not None]
    return sum(products) if len(products) == len(figures) else None


def report_on(cell: Cell) -> CellReport:
    """Return the state of a cell. A damaged result has the state `LEFT_OUT`."""
    report = _of_run(cell)
    try:
        result = cell.result()
        output, rungs = ("", {}) if result is not None else (last_output(cell), cell.rungs())
    except UserError as error:
        return report._replace(state=LEFT_OUT, reason=str(error))
    if result is not None:
        return report._replace(result=result, reason="")
    for record in rungs.values():
        if record["perplexity"] is None:
            reason = record.get("diverged", "its perplexity at a pause is not a number")
            return report._replace(state=DIVERGED, reason=reason)
    reason = output if _ERROR.match(output) else report.reason or _how_far(cell, report.history)
    state = FAILED if _ERROR.match(reason) else UNFINISHED if reason else WAITING
    if state == UNFINISHED and rungs and (step := max(rungs)) >= report.steps:
        num_steps, score = cell.config.training.num_train_steps, rungs[step]["perplexity"]
        reason = f"step {step:,} of {num_steps:,}, with a perplexity of {perplexity_text(score)}"
        state = PAUSED
    return report._replace(state=state, reason=reason)


def _of_run(cell: Cell) -> CellReport:
    """Return a report with the log of a run, its use of time and the end of its last job."""
    try:
        history = History.of(read_log(cell.workdir))
        goodput = read_goodput(cell.workdir)
    except UserError as error:  # the result may still be readable
        warn(str(error))
        return CellReport(cell, DONE)
    if goodput is None:
        return CellReport(cell, DONE, history=history)
    seconds, last_account = goodput.seconds, goodput.jobs[-1].account
    ending, exit_code = last_account["ended"] or "", last_account["exit_code"]
    if ending and (exit_code is None or 0 < exit_code < 128) and not _ERROR.match(ending):
        ending = f"error: {ending}"
    hours = (sum(seconds.values()) - seconds[BETWEEN]) / 3600
    reason = "" if exit_code == 0 else ending
    return CellReport(cell, DONE, reason, None, history, goodput, hours)


def _how_far(cell: Cell, history: History) -> str:
    """Describe the last logged step of a run and its time; "" if the run has not started."""
    if not history.training:
        return "begun, without a step in its log" if cell.workdir.is_dir() else ""
    record = history.training[-1]
    seconds = record.get("time")
    date = "" if seconds is None else time.strftime(", %d %b %Y %H:%M UTC", time.gmtime(seconds))
    return f"step {record['step']:,} of {cell.config.training.num_train_steps:,}{date}"


def mean_budgets(results: Results, reports: Iterable[CellReport]) -> dict[str, Budget]:
    """Return each variant's budget (FLOPs, tokens, hours), averaged over its seeds.

    Runs with rejected values of a tuned field do not count. A field is None if a seed lacks it.
    """
    budgets = {report.cell.name: report.budget for report in reports if report.result}
    means = {}
    for variant, seeds in results.items():
        seed_budgets = (budgets.get(cell_name(variant, result), Budget()) for result in seeds)
        columns = zip(*seed_budgets, strict=True)
        means[variant] = Budget(*(None if None in column else fmean(column) for column in columns))
    return means


class GridState:
    """The state of a grid's cells, under the rules recorded in its directory."""

    def __init__(
        self, grid: Grid, workdir: Path, num_seeds: int, chosen: Sequence[str], split: str = SPLIT
    ) -> None:
        """Read the results of the cells, each one variant with one seed.

        Args:
          num_seeds: the number of requested seeds; results of more seeds count too.
          chosen: the names of the requested variants.
          split: the split of the results. Halving and tuning always use dev.
        """
        self.grid, self.split, self.record = grid, split, read_record(workdir)
        self.plan = recorded_plan(grid, workdir, num_seeds, chosen)
        planned_cells, self.scores = decide(self.plan.cells)
        self.cells = grouped((cell.variant, cell) for cell in planned_cells)
        """The cells of the plan so far, by row of the grid."""
        cells_in_table: Sequence[Cell] = planned_cells
        if not self.plan.candidates:
            most_seeds = max(num_seeds, self.plan.num_seeds, num_seeds_in(grid, workdir))
            cells_in_table = cells(grid, workdir, most_seeds)
        self.reports = [report_on(replace(cell, split=split)) for cell in cells_in_table]
        """The state of each cell."""
        self.results = grouped((r.cell.variant, r.result) for r in self.reports if r.result)
        """The results in the table. Tuned variants have results only for their chosen values."""
        self.infinite = [c for c in planned_cells if math.inf in self.scores[c.name].values()]
        self.diverged: Mapping[str, int] = Counter(cell.variant for cell in self.infinite)
        self.values: GridTable | None = None
        """The table of the values chosen for tuned variants."""
        if self.plan.candidates:
            by_cell = {r.cell.name: r.result for r in self.reports if r.result is not None}
            self.results, self.diverged, self.values = tuned_results(
                self.plan, self.cells, self.scores, by_cell
            )
        old_grid = Grid(rows_outside(self.record, grid, workdir), {})
        states = map(report_on, cells(old_grid, workdir, num_seeds_in(old_grid, workdir)))
        self.outside = [r._replace(state=LEFT_OUT, reason="not in the config file") for r in states]
        """The state of the cells whose variants were removed from the config file."""
        self.scorings = scorings(self.record, split)
        to_score = {name for entry in self.scorings for name in entry["cells"]}
        missing = [report.cell.name for report in self.reports if report.result is None]
        self.unscored = [name for name in missing if name in to_score]
        self.untrained = [c for c in planned_cells if score_at(self.scores, c, c.last_step) is None]
        self.unfinished = (*(cell.name for cell in self.untrained), *self.unscored)
        """The names of the cells that still need training or scoring."""

    def context(self, other_code: Mapping[str, str], first_notes: Sequence[str]) -> TableContext:
        """Collect the notes, tables and facts to print with the grid's table.

        Args:
          other_code: code differences by variant, from `same_code.other_code`.
        """
        given_up, ended = rung_table(self)
        diverged = [cell.name for cell in self.infinite]
        left_out = [report.cell.name for report in self.reports if report.state == LEFT_OUT]
        notes = [*first_notes]
        if self.results:
            missing = [name for name in self.grid.variants if name not in {*self.results, *ended}]
            notes += [*_names_note("Not finished", missing), *self._selection_note(given_up)]
            notes.append(_split_note(self))
        notes += [
            *_names_note(f"Not scored on {self.split}", self.unscored),
            *_names_note("Diverged, and so worse than every other", diverged),
            *devices_and_dtypes(self.results),
            *_names_note("Left out, as of another config or damaged", left_out),
            *_outside_note(self.outside),
        ]
        tables = [table for table in (given_up, self.values) if table is not None]
        budgets = mean_budgets(self.results, self.reports)
        return TableContext(notes, tables, self.diverged, other_code, budgets)

    def _selection_note(self, given_up: GridTable | None) -> list[str]:
        """Return a note that halving chose its finalists by the scores in the table.

        The note is [] without halving (`given_up` is None) or if the table shows another split.
        """
        # Tuning needs no note: cross-fitting removes its bias. Halving never stops the base.
        finalists = ", ".join(name for name in self.results if name != self.grid.base)
        if given_up is None or self.split != SPLIT or not finalists:
            return []
        return [
            f"After selection: {finalists}. These very scores chose the rows, so their "
            "differences are too good; score them on a test split (`--split test`)."
        ]


def _names_note(title: str, names: Iterable[str]) -> list[str]:
    listed = ", ".join(names)
    return [f"{title}: {listed}."] if listed else []


def _split_note(state: GridState) -> str:
    plan = state.plan
    choices = ["tuned values"] * bool(plan.candidates) + ["finalists"] * bool(plan.halved)
    if any(c.training.stop_after_evaluations_without_gain for c in plan.grid.variants.values()):
        choices.append("early ends of trainings")
    note = f"Splits: dev chose {', '.join(choices) or 'nothing by rule'}; {state.split} reports"
    if state.split != SPLIT:
        dates = [scoring["date"] for scoring in state.scorings]
        times = "once" if len(dates) == 1 else f"{len(dates)} times"
        note += f", scored {times} ({', '.join(dates)})"
    return f"{note}."


def _outside_note(outside: Sequence[CellReport]) -> list[str]:
    """Return a note on the seeds and perplexity of trained variants that the config file lacks."""
    variant_notes = []
    for variant, reports in grouped((report.cell.variant, report) for report in outside).items():
        text, perplexities = "no result", [r.result["perplexity"] for r in reports if r.result]
        if perplexities:
            seeds_text = "1 seed" if len(perplexities) == 1 else f"{len(perplexities)} seeds"
            text = f"{seeds_text}, perplexity {perplexity_text(fmean(perplexities))}"
        variant_notes.append(f"{variant} ({text})")
    return _names_note("Not in the config file", variant_notes)


def rung_table(state: GridState) -> tuple[GridTable | None, set[str]]:
    """Return a table that compares each paused variant with the base at the same step.

    Returns:
      The table, or None if no variant has paused; and the variants that need no more training.
    """
    cells, plan, grid = state.cells, state.plan, state.plan.grid
    open_rows = {cell.variant for cell in state.untrained}
    pause_of = {  # all seeds of the other rows have the same last step
        row: cell.last_step
        for row, (cell, *_) in cells.items()
        if row not in open_rows and cell.last_step < cell.config.training.num_train_steps
    }
    waiting_rows = {*open_rows, *(pause_of if open_rows else ())}
    ended = {*grid.variants} - {plan.rows[row] for row in waiting_rows}
    if not pause_of or plan.candidates:
        return None, ended
    rows = []
    for step in sorted(set(pause_of.values())):
        records = {
            name: [r for c in seeds if (r := c.rungs().get(step)) and r["perplexity"] is not None]
            for name, seeds in cells.items()
        }
        scored_rows = {name: seeds for name, seeds in records.items() if seeds}
        changes = measure(grid, scored_rows, "perplexity").changes
        for name in (name for name, pause in pause_of.items() if pause == step):
            change, texts = changes.get(name), ["diverged", "", ""]
            if change and len(records[name]) == len(cells[name]):
                texts = [*change.formatted, verdict_on(change)]
            differs = describe_difference(grid.variants[grid.base], grid.variants[name])
            rows.append([name, differs, str(len(cells[name])), f"{step:,}", *texts])
    notes = [f"Compared with `{grid.base}` at the same step, and with no row of another length."]
    caption = "Paused before the end, by their perplexity on dev, in a grid that is not finished:"
    if not open_rows:
        caption = "Given up before the end, by their perplexity on dev:"
        notes.append(
            "Those above, which came to the end, were chosen by scores of the same seeds. So a "
            "perplexity that is lower than the base's is partly luck: confirm it with other seeds."
        )
    schedules = (SCHEDULES[config.training.schedule] for config in grid.variants.values())
    notes += filter(None, dict.fromkeys(schedule.note_before_end for schedule in schedules))
    heads = ["variant", "differs in", "seeds", "steps", "perplexity", "Δ ± s.e."]
    return GridTable(caption, [*heads, "against the noise"], rows, notes), ended


def write_seeds(
    grid: Grid, reports: Sequence[CellReport], results: Results, workdir: Path, record: Record
) -> None:
    """Write `seeds.csv` into a grid's directory: a row for each cell, in the order of the grid.

    The columns are the config fields that vary, the fields of `Budget`, and all unrounded numbers
    and strings of the results. `planned` is "no" for cells added to the plan later, and empty
    without a plan. `chosen` is "yes" for the tuned values that the table compares.
    """
    added = added_later(record)
    pairs = ((variant, result) for variant, seeds in results.items() for result in seeds)
    chosen_cells = {cell_name(variant, result) for variant, result in pairs if "tuned_to" in result}
    configs = values_by_path(report.cell.config for report in reports)
    paths = dict.fromkeys(path for values in configs for path in values if path != "training.seed")
    varied_paths = [path for path in paths if len({values.get(path, "") for values in configs}) > 1]
    base, records = grid.variants[grid.base], []
    for report, values in zip(reports, configs, strict=True):
        cell, config = report.cell, report.cell.config
        seed = config.training.seed
        measures = {
            name: value
            for name, value in (report.result or {}).items()
            if isinstance(value, int | float | str) and name != "steps"
        }
        if "target_tokens" in measures:  # of the scored split, unlike the budget's tokens
            measures["scored_target_tokens"] = measures.pop("target_tokens")
        records.append(
            {
                "variant": cell.variant,
                "seed": seed,
                "planned": "" if added is None else "no" if cell.name in added else "yes",
                "chosen": "" if not chosen_cells else "yes" if cell.name in chosen_cells else "no",
                "state": report.state,
                "differs_in": describe_difference(base.replace({"training.seed": seed}), config),
                **{path: str(values.get(path, "")) for path in varied_paths},
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
    """Write `curves.csv` into a grid's directory: a row for each finite value in the logs.

    The columns are variant, seed, step, split (train or dev), measure and value.
    """
    heads, rows = ("variant", "seed", "step", "split", "measure", "value"), []
    for report in reports:
        labels = report.cell.variant, report.cell.config.training.seed
        for record in (*report.history.training, *report.history.evaluations):
            for name, value in scalars(record).items():
                split, _, measure = name.partition("/")
                rows.append((*labels, record["step"], split, measure, value))
    records = (dict(zip(heads, row, strict=True)) for row in rows)
    write_whole(workdir / CURVES, csv_text(heads, records).encode())
