"""Score the finished cells of a grid on the test split at its end, once.

Scores on dev choose tuned values, finalists of halving, and what a researcher tries next, so they
are too good for the choices. The test split chooses nothing, as long as it is scored only once.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import SPLIT, Cell, WholeGrid
from t2t_jax.sweep.comparison import cell_name
from t2t_jax.sweep.gathering import Gathered, gathered
from t2t_jax.sweep.launchers import Launcher
from t2t_jax.sweep.run import run_cells
from t2t_jax.sweep.stored_grid import record_scoring, scorings
from t2t_jax.system.records import Record


class SplitScoring(NamedTuple):
    """The scoring of a grid's finished cells on a split at its end."""

    grid: Grid
    """The grid."""
    workdir: Path
    """The directory of the grid."""
    seeds: int
    """The requested seeds."""
    variants: list[str]
    """The names of the requested variants."""
    split: str
    """The split; the cells have their scores on dev already."""
    again: bool
    """Whether to score new and changed cells although the grid was scored before."""

    def check(self) -> None:
        """Refuse the scoring before anything is trained."""
        from t2t_jax.data.corpus import open_corpus

        if self.split == SPLIT:
            return
        for data in {self.grid.variants[name].data: None for name in self.variants}:
            if self.split not in open_corpus(data).splits:
                raise UserError(
                    f"{data.corpus} has no {self.split} split to score at the end of the grid; add "
                    "one, or leave --split out"
                )
        if scorings(self.workdir, self.split):
            self._new_cells(gathered(self.grid, self.workdir, self.seeds, self.variants))

    def run(self, launcher: Launcher, console: Console, max_hours: float | None) -> int | None:
        """Score the cells that the table compares, once all requested cells are finished.

        Args:
          max_hours: the hours after which nothing more begins; None for no limit.

        Returns:
          The number of the signal that stopped the scoring, 0 if none came; None if nothing was
          scored, because the split is dev or cells are not finished.
        """
        if self.split == SPLIT:
            return None
        state = gathered(self.grid, self.workdir, self.seeds, self.variants)
        if state.unfinished:
            line = f"{self.split} is not scored before all cells are finished"
            console.print(f"{line}: {', '.join(state.unfinished)}", soft_wrap=True)
            return None
        cells = [replace(cell, split=self.split) for cell, _ in self._compared(state)]
        if new := self._new_cells(state):
            for cell in cells:
                if cell.name in new:  # the old scores stay in the run's record of scores
                    cell.result_file.unlink(missing_ok=True)
            record_scoring(self.workdir, self.split, new)
        return run_cells(WholeGrid(cells), launcher, console, max_hours)

    def _compared(self, state: Gathered) -> list[tuple[Cell, Record]]:
        """Return the cells that the table compares, with their results on dev."""
        names = {cell_name(n, result) for n in self.variants for result in state.results.get(n, ())}
        return [(r.cell, r.result) for r in state.reports if r.result and r.cell.name in names]

    def _new_cells(self, state: Gathered) -> dict[str, str]:
        """Return the fingerprints of cells that were never scored; refuse them without `again`."""
        previous = scorings(self.workdir, self.split)
        scored = {name: mark for entry in previous for name, mark in entry["cells"].items()}
        marks = {cell.name: _fingerprint(result) for cell, result in self._compared(state)}
        new = {name: mark for name, mark in marks.items() if scored.get(name) != mark}
        names = [*new, *state.unfinished]
        if previous and names and not self.again:
            raise UserError(
                f"{self.workdir} was scored on {self.split} on {previous[-1]['date']}, and these "
                f"cells are new or changed since: {', '.join(names)}. Repeated scoring lets the "
                f"{self.split} split choose, too: leave --split out, or score it once more with "
                "--again, which the table reports"
            )
        return new


def _fingerprint(result: Record) -> str:
    """Return a hash of a dev result that changes with the scored model and its decoding."""
    facts = [result["config"], result.get("checkpoints"), result["perplexity"]]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
