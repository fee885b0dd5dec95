"""Successive halving: stop the variants of a grid that look bad early.

Variants pause at steps called rungs, and the best of them are promoted to the next rung
(Jamieson and Talwalkar 2016). Synchronous halving waits until every variant has its score at a
rung. ASHA (Li et al. 2020) promotes a variant as soon as it is among the best that have reached the
rung. This depends on the order of arrival, so a journal records each decision before it takes
effect.
"""

import fcntl
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import Cell, Scores, mean_of, score_at
from t2t_jax.sweep.comparison import OF_SUBWORDS
from t2t_jax.system.bucket import check_local
from t2t_jax.system.records import COUNT, append_line, read_records, schema
from t2t_jax.system.regular_file import check_regular

_JOURNAL, _LOCK = "promotions.jsonl", "promotions.lock"
_JOURNAL_SCHEMA = schema({"variant": str, "rung": COUNT, "left_out": int})
_Promotion = tuple[str, int, int]
"""A variant, its new rung, and the seed without which it was chosen, as in the journal."""
_SHARED_FIELDS = "training.num_train_steps", "checkpoint.every_steps", *OF_SUBWORDS
"""The fields that must be equal in all variants, so that they can be compared at a rung."""
_USAGE = "give --halving rungs=3,keep=0.33, with ,asha to promote without waiting"


@dataclass(frozen=True)
class Halving:
    """The number of rungs, and how many variants pass each of them."""

    rungs: int = 3
    """The number of rungs, of which the last is the end of the training."""
    keep: float = 1 / 3
    """The share of the variants at a rung that go on to the next; also the ratio of the steps of
    two rungs."""
    asha: bool = False
    """Whether variants are promoted without waiting for the others."""

    def __str__(self) -> str:
        """Return the halving as text, which `of` parses."""
        return f"rungs={self.rungs},keep={self.keep}{',asha' if self.asha else ''}"

    @staticmethod
    def of(text: str) -> "Halving":
        """Parse a text such as `rungs=3,keep=0.33,asha`."""
        values: dict[str, str] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            is_valid = name in ("rungs", "keep", "asha") and (name == "asha") != bool(value)
            if not is_valid or name in values:
                raise UserError(f"--halving {text!r} has {part.strip()!r}; {_USAGE}")
            values[name] = value
        try:
            rungs, keep = int(values.get("rungs", 3)), float(values.get("keep", 1 / 3))
        except ValueError as error:
            raise UserError(f"--halving {text!r} has no number there ({error}); {_USAGE}") from None
        if not 2 <= rungs <= 100:
            raise UserError(f"--halving {text!r}: rungs={rungs} is not from 2 to 100; {_USAGE}")
        if not 0 < keep < 1:
            raise UserError(f"--halving {text!r}: keep={keep} is not in (0, 1); {_USAGE}")
        return Halving(rungs, keep, "asha" in values)

    def steps(self, config: Config) -> list[int]:
        """Return the steps of the rungs: multiples of `checkpoint.every_steps`, and the end."""
        # `check_can_be_halved` refuses a config without these steps.
        end, every = config.training.num_train_steps, config.checkpoint.every_steps or 1
        shares = (self.keep**left for left in range(self.rungs - 1, 0, -1))
        steps = [*(max(1, int(end * share / every + 0.5)) * every for share in shares), end]
        if any(step >= following for step, following in pairwise(steps)):
            raise UserError(
                f"--halving rungs={self.rungs},keep={self.keep:.3g} has rungs at the steps "
                f"{', '.join(map(str, steps))}, as a pause lies at a multiple of "
                f"checkpoint.every_steps={every}; ask for fewer rungs, or lower that field"
            )
        return steps


def check_can_be_halved(grid: Grid) -> None:
    """Refuse a grid whose variants cannot be compared before their end."""
    base = grid.variants[grid.base]
    for name, config in grid.variants.items():
        training = config.training
        if training.schedule in ("cosine", "linear"):
            raise UserError(
                f"{name} has training.schedule={training.schedule!r}, whose score at a rung says "
                "little of its end; use 'wsd' or 'inverse_sqrt' with --halving"
            )
        if config.checkpoint.every_steps is None:
            raise UserError(
                f"{name} has checkpoint.every_steps=None, and --halving pauses where checkpoints "
                "are due; give the steps"
            )
        changed = differences(base, config)
        if differing := {path: changed[path] for path in _SHARED_FIELDS if path in changed}:
            raise UserError(
                f"{grid.base} and {name} differ in {format_differences(differing)}, so --halving "
                "cannot compare them; give both the same values, or leave one out with --only"
            )


def best(means: Mapping[str, float], count: int) -> list[str]:
    """Return the names with the lowest means, without infinite ones; ties keep their order."""
    finite = [name for name, mean in means.items() if math.isfinite(mean)]
    return sorted(finite, key=means.__getitem__)[:count]


class HalvedGrid:
    """The plan of a grid whose variants are halved, each with all its seeds together."""

    def __init__(
        self,
        cells: Mapping[str, Sequence[Cell]],
        groups: Sequence[Sequence[str]],
        halving: Halving,
        workdir: Path,
        *,
        leave_out: bool = False,
    ) -> None:
        """Plan the halving of variants.

        Args:
          cells: the cells of each variant, in the order of the seeds.
          groups: the variants that compete with each other; the best of each group continue. A
            variant without competitors always does.
          leave_out: whether to choose also without each of the seeds in turn, for a fair choice for
            that seed. A variant continues if any of these choices needs it.
        """
        if halving.asha:
            check_local(workdir, "leave asha out of --halving, as its journal needs locks")
        self.keeps_journal = halving.asha
        """Whether promotions are recorded; a plan that is only read records none."""
        self.finalists: dict[tuple[int | str, ...], list[str]] = {}
        """The variants that are trained to the end by the latest scores, by the seed without which
        they are chosen and the names of their group."""
        self._cells, self._groups, self._halving, self._workdir = cells, groups, halving, workdir
        self.steps = halving.steps(next(iter(cells.values()))[0].config)
        num_seeds = len(next(iter(cells.values())))
        self._left_out = [*range(num_seeds)] if leave_out and num_seeds > 1 else [-1]

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells, each until the last rung that its variant has reached."""
        with self._journal() as journal:
            rung = dict.fromkeys(self._cells, 0)
            new = []
            for left_out in self._left_out:
                for group in self._groups:
                    reached = self._levels(group, left_out, scores, journal)
                    self.finalists[left_out, *group] = reached[-1]
                    for number, names in enumerate(reached):
                        rung |= {name: max(number, rung[name]) for name in names}
                        new += [(n, number, left_out) for n in names if number]
            if self.keeps_journal:
                self._record([key for key in dict.fromkeys(new) if key not in journal], journal)
        seeds = zip(*self._cells.values(), strict=True)
        return [self._until(cell, rung[cell.variant], scores) for cells in seeds for cell in cells]

    def _until(self, cell: Cell, rung: int, scores: Scores) -> Cell:
        """Return a cell until the first rung without its score, but no later than its `until`.

        A variant may continue by the scores of some seeds, while others are behind.
        """
        missing = (step for step in self.steps[:rung] if score_at(scores, cell, step) is None)
        return replace(cell, until=next(missing, self.steps[rung]))

    def _levels(
        self, group: Sequence[str], left_out: int, scores: Scores, journal: Sequence[_Promotion]
    ) -> list[list[str]]:
        """Return the variants of a group that have reached each rung, by the scores so far."""
        reached, is_complete = [list(group)], True
        for number, step in enumerate(self.steps[:-1], 1):
            means = {}
            for name in reached[-1]:
                cells = (cell for i, cell in enumerate(self._cells[name]) if i != left_out)
                means[name] = mean_of(score_at(scores, cell, step) for cell in cells)
            scored = {name: mean for name, mean in means.items() if mean is not None}
            is_complete = is_complete and len(scored) == len(means)
            early = int(self._halving.keep * len(scored)) if self._halving.asha else 0
            passing = max(1, int(self._halving.keep * len(scored) + 0.5))
            chosen = best(scored, passing if is_complete else early)
            reached.append([n for n in means if n in chosen or (n, number, left_out) in journal])
        return reached

    @contextmanager
    def _journal(self) -> Iterator[list[_Promotion]]:
        """Return a context with the promotions so far, in which no other sweep promotes."""
        if not self.keeps_journal:
            yield self._read()
            return
        self._workdir.mkdir(parents=True, exist_ok=True)
        check_regular(self._workdir / _LOCK)
        with (self._workdir / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()

    def _record(self, new: Sequence[_Promotion], journal: Sequence[_Promotion]) -> None:
        """Append promotions to the journal before they take effect."""
        for name, number, left_out in new:
            line = {"variant": name, "rung": number, "left_out": left_out}
            append_line(self._workdir / _JOURNAL, line)
        lock = self._workdir / _LOCK
        with lock.open("ab") as file:  # one byte for each promotion, so that a cut journal shows
            file.write(b"." * (len(journal) + len(new) - lock.stat().st_size))

    def _read(self) -> list[_Promotion]:
        if not self._halving.asha:
            return []
        path, lock = self._workdir / _JOURNAL, self._workdir / _LOCK
        recorded = lock.stat().st_size if lock.is_file() else 0  # before the journal, which grows
        records = read_records(path, _JOURNAL_SCHEMA)
        if len(records) < recorded:
            raise UserError(
                f"{path} has {len(records)} of {recorded} promotions, and others would be decided "
                f"anew; bring it back from a copy, or remove {lock.name} to decide anew"
            )
        return [(r["variant"], r["rung"], r["left_out"]) for r in records]
