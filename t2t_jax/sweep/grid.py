"""Train and score every variant of a grid, and compare the variants in a table."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console

from t2t_jax.config import Config
from t2t_jax.config.field_types import check_type
from t2t_jax.config.file import Grid, checked_grid
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import OF_TRAINING, UserError, check_installed, warn
from t2t_jax.sweep import stored_grid
from t2t_jax.sweep.cell import SPLIT, Cell, check_cells
from t2t_jax.sweep.comparison import VariantRow, cell_name, grouped
from t2t_jax.sweep.gathering import LEFT_OUT, GridState, write_curves, write_seeds
from t2t_jax.sweep.launchers import Launcher, Local
from t2t_jax.sweep.rules import GridRules, chosen_variants, plan_grid, record_rules
from t2t_jax.sweep.run import run_cells
from t2t_jax.sweep.same_code import check_same_code, other_code, software_of_result
from t2t_jax.sweep.tables import write_tables
from t2t_jax.system.bucket import as_path
from t2t_jax.system.console import ProgressConsole
from t2t_jax.system.records import Record, digest
from t2t_jax.tasks import task_of

_DEV_SET_FIELDS = (
    *("data.corpus", "data.source_language", "data.target_language", "data.task"),
    *("data.documents", "data.fields", "data.dev_lines"),
)


class GridOutcome(NamedTuple):
    """The results of a grid's finished cells, and their table."""

    results: dict[str, list[Record]]
    """The results of the finished seeds, by variant, without unfinished variants. Empty after a
    signal."""
    rows: list[VariantRow]
    """The table rows: one for each variant with results. Empty after a signal."""
    signal: int = 0
    """The number of the signal that stopped the sweep, or 0. The signal made each local run write a
    checkpoint."""
    unfinished: tuple[str, ...] = ()
    """The names of the cells that still need training or scoring."""


def run_grid(
    variants: Mapping[str, Config] | Grid,
    workdir: str | os.PathLike[str],
    *,
    seeds: int = 1,
    jobs: int = 1,
    only: Iterable[str] = (),
    first: Iterable[str] = (),
    launcher: Launcher | None = None,
    console: Console | None = None,
    rules: GridRules | None = None,
    max_hours: float | None = None,
    allow_mixed: bool = False,
    split: Literal["dev", "test"] = SPLIT,
    again: bool = False,
    comparisons: Literal["base", "all"] = "base",
) -> GridOutcome:
    """Train and score every variant of a grid, and write a table that compares them.

    Each cell, which is a variant under one seed, is a process with the run directory
    `workdir/VARIANT/seedN`. A repeated call skips finished cells and resumes interrupted ones. A
    cell that fails does not stop the others. Then the function writes `table.md`, `.tex`, `.csv`,
    `.png` and `.pdf` into `workdir`. They compare the dev scores with those of the variant `base`,
    or of the first variant, and test the differences.

    Args:
      variants: configs by name, or a grid from `t2t_jax.config.file.load_grid`.
      workdir: the directory of the grid.
      seeds: the number of seeds per variant, counted from its `training.seed`.
      jobs: the number of parallel processes here, at most one per GPU if there are GPUs.
      only: the variants to train, as names or patterns such as `A-*`; empty for all.
      first: names or patterns of variants to train first; empty to go seed by seed.
      launcher: None launches processes on this machine.
      console: shows the progress; None is the standard output.
      rules: the rules for halving or tuning variants; None reads them from `workdir`.
      max_hours: the hours after which no cell starts and local processes stop.
      allow_mixed: whether to pool cells whose code or settings differ, and mark their rows.
      split: the split of the table. "test" scores all requested cells on test once they are
        finished; every choice still uses dev.
      again: whether to score new and changed cells after the grid was scored on test.
      comparisons: the pairs of variants for which p-values are adjusted: with the base, or all.

    Raises:
      UserError: before training, if an argument is invalid, a package of the extra `train` is
        missing, two cells are identical, or a directory holds another grid, another run, or cells
        of other code or settings; after training, if no cell is finished.
    """
    check_type("seeds", seeds, int)
    check_type("jobs", jobs, int)
    check_type("max_hours", max_hours, float | None)
    only, first = ([names] if isinstance(names, str) else names for names in (only, first))
    grid = variants if isinstance(variants, Grid) else checked_grid(variants, {}, "the grid")
    chosen = chosen_variants(grid, only)
    if max_hours is not None and not max_hours > 0:
        raise UserError(f"max_hours={max_hours} is not positive; leave it out for no limit")
    workdir = as_path(workdir)
    plan = plan_grid(grid, workdir, chosen, seeds, rules or GridRules())
    scoring = SplitScoring(grid, workdir, seeds, chosen, split, again)
    plan.first = [name for pattern in first for name in chosen_variants(plan.grid, [pattern])]
    launcher, console = launcher or Local(jobs), console or ProgressConsole()
    check_cells(plan.cells({}), allow_mixed=allow_mixed, local=isinstance(launcher, Local))
    stored_grid.check_same_grid(grid, workdir)
    check_installed("train", "a grid", *OF_TRAINING)
    check_dev_sets(plan.grid)
    scoring.check()
    record_rules(plan, workdir)  # before the grid's record, which mentions the rules
    stored_grid.record_grid(grid, workdir, seeds, chosen, comparisons)
    start = time.monotonic()
    if signal := run_cells(plan.cells, launcher, console, max_hours):
        return GridOutcome({}, [], signal)
    hours_left = None if max_hours is None else max_hours - (time.monotonic() - start) / 3600
    if score_signal := scoring.run(launcher, console, hours_left):
        return GridOutcome({}, [], score_signal)
    return collect(
        *(grid, workdir, seeds, console, chosen),
        may_be_empty=max_hours is not None,
        allow_mixed=allow_mixed,
        split=SPLIT if score_signal is None else split,
        comparisons=comparisons,
    )


def collect(
    grid: Grid,
    workdir: Path,
    num_seeds: int,
    console: Console,
    chosen: Sequence[str] = (),
    *,
    may_be_empty: bool = False,
    allow_mixed: bool = False,
    columns: Sequence[str] = (),
    split: Literal["dev", "test"] = SPLIT,
    comparisons: Literal["base", "all"] = "base",
) -> GridOutcome:
    """Write the table of the finished cells in a grid's directory, without training.

    The table includes all finished seeds, also more than requested. The console shows a
    line for each result that is left out: it is damaged, or the grid lacks its config or variant.

    Args:
      chosen: the names of the requested variants; empty for all.
      may_be_empty: whether to accept a grid without a finished cell.
      allow_mixed: whether to pool cells whose code or settings differ, and mark their rows.
      columns: the columns of `table.tex`, named as in `latex.grid_latex`; empty for the default.
      split: the split of the table, "test" only for a grid that was scored on it.
      comparisons: the pairs of variants for which p-values are adjusted: with the base, or all.
    """
    state = GridState(grid, workdir, num_seeds, chosen or [*grid.variants], split)
    results, reports = state.results, [*state.reports, *state.outside]
    if split != SPLIT and not results:  # keep the tables, which may have scores on dev
        raise UserError(f"no cell of {workdir} has scores on {split}; sweep with --split {split}")
    if grid.compared_with and grid.compared_with not in results:
        raise UserError(f"--base {grid.compared_with} has no result on {split}; choose another row")
    for report in reports:
        if report.state == LEFT_OUT:
            line = f"{report.cell.name} is left out: {report.reason}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    # Write these files before the check of the code: they help to find the cells that differ.
    write_seeds(grid, reports, results, workdir, state.record)
    write_curves(reports, workdir)
    code_differences = other_code(results) if allow_mixed else {}
    if not allow_mixed:
        name_and_result = ((r.cell.name, r.result) for r in state.reports if r.result is not None)
        check_same_code({name: software_of_result(result) for name, result in name_and_result})
    if state.outside and not results:  # keep the tables, which may have results
        lost = ", ".join(dict.fromkeys(report.cell.variant for report in state.outside))
        raise UserError(
            f"no row of the config file has a result in {workdir}, which has {lost} instead; bring "
            "these rows back, or give them their new names with --rename OLD=NEW"
        )
    notes = ["No cell has a result yet."] if may_be_empty else []
    if results:
        notes = [stored_grid.plan_note(state.record, comparisons, grid.compared_with)]
    context = state.context(code_differences, notes)
    rows = write_tables(grid, results, workdir, context, comparisons, columns)
    return GridOutcome(results, rows, unfinished=state.unfinished)


def check_dev_sets(grid: Grid) -> None:
    """Refuse variants without a dev set, and warn of dev sets that differ from the base's."""
    # The check skips a corpus that this machine cannot read: another machine may train its cells.

    rows_by_fields = grouped(
        (tuple(config.value(path) for path in _DEV_SET_FIELDS), name)
        for name, config in grid.variants.items()
    )
    dev_set_of: dict[str, object] = {}
    problems = []
    for names in rows_by_fields.values():
        with suppress(UserError):
            corpus = open_corpus(grid.variants[names[0]].data)
            if SPLIT not in corpus.splits:
                problems.append(f"{names[0]}: {corpus.name} has no {SPLIT} split")
            elif len(rows_by_fields) > 1:
                is_whole = task_of(corpus.name, corpus.task).grid.whole_split
                dev_set = corpus.lines(SPLIT)[1] if is_whole else corpus.name
                dev_set_of |= dict.fromkeys(names, dev_set)
    if problems:
        raise UserError(f"nothing was started: {problems[0]}; add one, or set data.dev_lines")
    if grid.base not in dev_set_of:
        return
    if differing := [name for name in dev_set_of if dev_set_of[name] != dev_set_of[grid.base]]:
        warn(
            f"{', '.join(differing)}: the {SPLIT} set differs from {grid.base}'s, so the table "
            f"will not compare the scores; to compare them, give all rows the same {SPLIT} set"
        )


class SplitScoring(NamedTuple):
    """Score the trained variants of a grid on a split other than dev."""

    grid: Grid
    workdir: Path
    """The directory of the grid."""
    num_seeds: int
    """The number of requested seeds."""
    variants: list[str]
    """The names of the requested variants."""
    split: str
    """The split to score. Nothing happens for dev, which training scores."""
    again: bool
    """Whether to score new and changed cells if the grid was scored before."""

    def check(self) -> None:
        """Refuse a split that a corpus lacks, or to score changed cells again without `again`."""

        if self.split == SPLIT:
            return
        for data in {self.grid.variants[name].data: None for name in self.variants}:
            if self.split not in open_corpus(data).splits:
                raise UserError(f"{data.corpus} has no {self.split} split; add one or omit --split")
        self._new_cells(GridState(self.grid, self.workdir, self.num_seeds, self.variants))

    def run(self, launcher: Launcher, console: Console, max_hours: float | None) -> int | None:
        """Score the cells that the table compares, once all requested cells are finished.

        Args:
          max_hours: the hours after which no cell starts; None for no limit.

        Returns:
          The number of the signal that stopped the scoring, or 0; None if nothing was scored
          because the split is dev or some cells are unfinished.
        """
        if self.split == SPLIT:
            return None
        state = GridState(self.grid, self.workdir, self.num_seeds, self.variants)
        if state.unfinished:
            line = f"{self.split} is not scored before all cells are finished"
            console.print(f"{line}: {', '.join(state.unfinished)}", soft_wrap=True)
            return None
        cells = [replace(cell, split=self.split) for cell, _ in self._compared(state)]
        if new := self._new_cells(state):
            for cell in cells:
                if cell.name in new:  # the old scores stay in the run's record of scores
                    cell.result_file.unlink(missing_ok=True)
            stored_grid.record_scoring(self.workdir, self.split, new)
        return run_cells(lambda _: cells, launcher, console, max_hours)

    def _compared(self, state: GridState) -> list[tuple[Cell, Record]]:
        names = {cell_name(n, result) for n in self.variants for result in state.results.get(n, ())}
        return [(r.cell, r.result) for r in state.reports if r.result and r.cell.name in names]

    def _new_cells(self, state: GridState) -> dict[str, str]:
        """Return fingerprints of cells that are new or changed since the last scoring, by name.

        Raises:
          UserError: without `again`, there are such cells although the split was scored before.
        """
        previous = stored_grid.scorings(state.record, self.split)
        old_marks = {name: mark for entry in previous for name, mark in entry["cells"].items()}
        marks = {  # a fingerprint changes with the scored model and its decoding
            cell.name: digest([result["config"], result.get("checkpoints"), result["perplexity"]])
            for cell, result in self._compared(state)
        }
        new_marks = {name: mark for name, mark in marks.items() if old_marks.get(name) != mark}
        names = [*new_marks, *state.unfinished]
        if previous and names and not self.again:
            raise UserError(
                f"{self.workdir} was scored on {self.split} on {previous[-1]['date']}, and these "
                f"cells are new or changed since: {', '.join(names)}. So that {self.split} chooses "
                "nothing, leave --split out; or score again with --again, which the table reports"
            )
        return new_marks
