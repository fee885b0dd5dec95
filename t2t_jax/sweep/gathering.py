"""Gather the state of a grid's cells, and build tables from it."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.sweep.cell import (
    SPLIT,
    Cell,
    Scores,
    by_variant,
    cells,
    decided,
    num_seeds_in,
    score_at,
)
from t2t_jax.sweep.cell_report import LEFT_OUT, CellReport, mean_budgets, report_on
from t2t_jax.sweep.comparison import measure, verdict_on
from t2t_jax.sweep.rules import recorded_plan
from t2t_jax.sweep.same_code import devices_and_dtypes
from t2t_jax.sweep.stored_grid import read_record, rows_outside, scorings
from t2t_jax.sweep.tables import Beside, GridTable
from t2t_jax.sweep.tuning import tuned_results
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.perplexity import perplexity_text


class GridState:
    """The state of a grid's cells, by the rules of its directory."""

    def __init__(
        self, grid: Grid, workdir: Path, seeds: int, chosen: Sequence[str], split: str = SPLIT
    ) -> None:
        """Read the files of the cells.

        Args:
          seeds: the requested seeds; results of further ones count too.
          chosen: the names of the requested variants.
          split: the split of the results; the rules go by dev.
        """
        self.grid, self.split, self.record = grid, split, read_record(workdir)
        self.planned = recorded_plan(grid, workdir, seeds, chosen)
        wanted, self.scores = decided(self.planned.plan)
        self.cells = by_variant(wanted)
        """The cells that the plan has trained so far, by row."""
        compared: Sequence[Cell] = wanted
        if not self.planned.candidates:
            num_seeds = max(seeds, self.planned.seeds, num_seeds_in(grid, workdir))
            compared = cells(grid, workdir, num_seeds)
        self.reports = [report_on(replace(cell, split=split)) for cell in compared]
        """The state of each cell."""
        self.results = _results_by_variant(self.reports)
        """The results that are compared: of tuned variants those of the chosen values."""
        self.infinite = [c for c in wanted if math.inf in self.scores[c.name].values()]
        self.diverged: Mapping[str, int] = Counter(cell.variant for cell in self.infinite)
        self.values: GridTable | None = None
        """The table of the values that were chosen for tuned variants."""
        if self.planned.candidates:
            by_cell = {r.cell.name: r.result for r in self.reports if r.result is not None}
            self.results, self.diverged, self.values = tuned_results(
                self.planned, self.cells, self.scores, by_cell
            )
        lost = Grid(rows_outside(self.record, grid, workdir), {})
        started = map(report_on, cells(lost, workdir, num_seeds_in(lost, workdir)))
        self.outside = [
            r._replace(state=LEFT_OUT, reason="not in the config file") for r in started
        ]
        """The state of the cells whose rows the directory's grid has and the given one lacks."""
        self.scorings = scorings(self.record, split)
        to_score = {name for entry in self.scorings for name in entry["cells"]}
        missing = [report.cell.name for report in self.reports if report.result is None]
        self.unscored = [name for name in missing if name in to_score]
        self.untrained = [c for c in wanted if score_at(self.scores[c.name], c.until) is None]
        self.unfinished = (*(cell.name for cell in self.untrained), *self.unscored)
        """The names of the cells that still need training or scoring."""

    def beside(self, other_code: Mapping[str, str], first_notes: Sequence[str]) -> Beside:
        """Return the notes and further tables beside the scores of the cells."""
        given_up, over = rung_table(self)
        infinite = [cell.name for cell in self.infinite]
        left_out = [report.cell.name for report in self.reports if report.state == LEFT_OUT]
        notes = [
            *first_notes,
            *([_split_note(self)] if self.results else []),
            *_names_note(f"Not scored on {self.split}", self.unscored),
            *_names_note("Diverged, and so worse than every other", infinite),
            *devices_and_dtypes(self.results),
            *_names_note("Left out, as of another config or damaged", left_out),
            *_outside_note(self.outside),
        ]
        tables = [table for table in (given_up, self.values) if table is not None]
        budgets, selected = mean_budgets(self.results, self.reports), set[str]()
        # Candidates compete within their row, by cross-fitting. The base always continues.
        if given_up is not None and self.split == SPLIT:
            selected = {*self.results} - {self.grid.base}
        return Beside(notes, tables, over, self.diverged, other_code, budgets, selected)


def _results_by_variant(reports: Iterable[CellReport]) -> dict[str, list[Record]]:
    """Return the results by variant, without variants that have none."""
    results: dict[str, list[Record]] = {}
    for report in reports:
        if report.result is not None:
            results.setdefault(report.cell.variant, []).append(report.result)
    return results


def _names_note(title: str, names: Iterable[str]) -> list[str]:
    listed = ", ".join(names)
    return [f"{title}: {listed}."] if listed else []


def _split_note(state: GridState) -> str:
    """Return a note on the split that chose, and on the split that reports."""
    planned = state.planned
    choices = ["tuned values"] * bool(planned.candidates) + ["finalists"] * bool(planned.halved)
    trainings = [config.training for config in planned.grid.variants.values()]
    if any(training.stop_after_evaluations_without_gain for training in trainings):
        choices.append("early ends of trainings")
    note = f"Splits: dev chose {', '.join(choices) or 'nothing by rule'}; {state.split} reports"
    if state.split != SPLIT:
        dates = [scoring["date"] for scoring in state.scorings]
        times = "once" if len(dates) == 1 else f"{len(dates)} times"
        note += f", scored {times} ({', '.join(dates)})"
    return f"{note}."


def _outside_note(outside: Sequence[CellReport]) -> list[str]:
    """Return a note on rows that the config file lacks, with their seeds and perplexities."""
    results, rows = _results_by_variant(outside), []
    for row in dict.fromkeys(report.cell.variant for report in outside):
        text, perplexities = "no result", [seed["perplexity"] for seed in results.get(row, [])]
        if perplexities:
            seeds = "1 seed" if len(perplexities) == 1 else f"{len(perplexities)} seeds"
            text = f"{seeds}, perplexity {perplexity_text(fmean(perplexities))}"
        rows.append(f"{row} ({text})")
    return _names_note("Not in the config file", rows)


def _paused(cells: Mapping[str, Sequence[Cell]], scores: Scores) -> dict[str, int]:
    """Return the variants that wait at a rung or were stopped there, with the step."""
    steps = {}
    for variant, seeds in cells.items():
        step = seeds[0].until
        perplexities = [score_at(scores[cell.name], step) for cell in seeds]
        if step < seeds[0].config.training.num_train_steps and None not in perplexities:
            steps[variant] = step
    return steps


def rung_table(state: GridState) -> tuple[GridTable | None, set[str]]:
    """Return a table of the stopped variants, each beside the base at the same step.

    While the grid is not finished, they may still continue, and the table says so.

    Returns:
      The table, or None if no variant has paused; and the names of the variants that need no more
      training.
    """
    cells, planned, grid = state.cells, state.planned, state.planned.grid
    stopped = _paused(cells, state.scores)
    open_rows = {cell.variant for cell in state.untrained}
    waiting = {*open_rows, *(stopped if open_rows else ())}
    over = {*grid.variants} - {planned.rows[row] for row in waiting}
    if not stopped or planned.candidates:
        return None, over
    rows = []
    for step in sorted(set(stopped.values())):
        finite = {
            name: [r for c in seeds if (r := c.rungs().get(step)) and r["perplexity"] is not None]
            for name, seeds in cells.items()
        }
        scored = {name: seeds for name, seeds in finite.items() if seeds}
        compared = measure(grid, scored, "perplexity").changes
        for name in (name for name, last in stopped.items() if last == step):
            change, figures = compared.get(name), ["diverged", "", ""]
            if change and len(finite[name]) == len(cells[name]):
                figures = [*change.shown, verdict_on(change)]
            differs = describe_difference(grid.variants[grid.base], grid.variants[name])
            rows.append([name, differs, str(len(cells[name])), f"{step:,}", *figures])
    notes = [
        f"Each of these is compared with `{grid.base}` at the same step, and with no row of "
        "another length."
    ]
    caption = "Paused before the end, by their perplexity on dev, in a grid that is not finished:"
    if not open_rows:
        caption = "Given up before the end, by their perplexity on dev:"
        notes.append(
            "Those above, which came to the end, were chosen by scores of the same seeds. So a "
            "perplexity that is lower than the base's is partly luck: confirm it with other seeds."
        )
    if any(config.training.schedule == "wsd" for config in grid.variants.values()):
        notes.append("With the schedule wsd, this is before the decay of the learning rate.")
    heads = ["variant", "differs in", "seeds", "steps", "perplexity", "Δ ± s.e."]
    return GridTable(caption, [*heads, "against the noise"], rows, notes), over
