"""Stop the weak variants of a grid early by successive halving.

Variants pause at steps called rungs until every variant has its score there. Then the best are
promoted to the next rung (Jamieson and Talwalkar 2016).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.file import Grid
from t2t_jax.config.schedules import SCHEDULES
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import Cell, Scores, score_at
from t2t_jax.sweep.comparison import OF_SUBWORDS, grouped
from t2t_jax.version import EARLY_PROMOTIONS, removed_feature

_SHARED_FIELDS = "training.num_train_steps", "checkpoint.every_steps", *OF_SUBWORDS
"""Fields that must be equal in all variants to compare them at a rung."""
_USAGE = "give --halving rungs=3,keep=0.33"


@dataclass(frozen=True)
class Halving:
    """Settings of successive halving."""

    rungs: int = 3
    """The number of rungs; the last rung is the end of training."""
    keep: float = 1 / 3
    """The share of variants promoted at a rung, and the ratio of steps between rungs."""

    def __str__(self) -> str:
        """Format the settings as text that `Halving.of` parses."""
        return f"rungs={self.rungs},keep={self.keep}"

    @staticmethod
    def of(text: str) -> "Halving":
        """Parse settings such as `rungs=3,keep=0.33`."""
        values: dict[str, str] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name == "asha":
                raise removed_feature(f"--halving {text}", EARLY_PROMOTIONS)
            if name not in ("rungs", "keep") or not value or name in values:
                raise UserError(f"--halving {text!r} has {part.strip()!r}; {_USAGE}")
            values[name] = value
        try:
            rungs, keep = int(values.get("rungs", 3)), float(values.get("keep", 1 / 3))
        except ValueError as error:
            raise UserError(f"--halving {text!r} has no valid number ({error}); {_USAGE}") from None
        if not 2 <= rungs <= 100:
            raise UserError(f"--halving {text!r}: rungs={rungs} is not from 2 to 100; {_USAGE}")
        if not 0 < keep < 1:
            raise UserError(f"--halving {text!r}: keep={keep} is not in (0, 1); {_USAGE}")
        return Halving(rungs, keep)

    def steps(self, config: Config) -> list[int]:
        """Return the training steps at which runs are compared (rungs).

        They are multiples of `checkpoint.every_steps`, except the last step of training.
        """
        # `check_can_be_halved` refuses a config whose `every_steps` is None.
        total, period = config.training.num_train_steps, config.checkpoint.every_steps or 1
        shares = (self.keep**exponent for exponent in range(self.rungs - 1, 0, -1))
        steps = [*(max(1, int(total * share / period + 0.5)) * period for share in shares), total]
        if any(step >= next_step for step, next_step in pairwise(steps)):
            raise UserError(
                f"--halving rungs={self.rungs},keep={self.keep:.3g} has rungs at the steps "
                f"{', '.join(map(str, steps))}, because runs pause only at multiples of "
                f"checkpoint.every_steps={period}; ask for fewer rungs, or lower that field"
            )
        return steps


def check_can_be_halved(grid: Grid) -> None:
    """Raise a `UserError` if early scores cannot show which variants of a grid are best."""
    base_config = grid.variants[grid.base]
    for name, config in grid.variants.items():
        training = config.training
        if not SCHEDULES[training.schedule].predicts_early:
            raise UserError(
                f"{name} has training.schedule={training.schedule!r}, whose score at a rung "
                "does not predict the final score; use 'wsd' or 'inverse_sqrt' with --halving"
            )
        if config.checkpoint.every_steps is None:
            raise UserError(
                f"{name} has checkpoint.every_steps=None, but --halving pauses at steps with "
                "checkpoints; set the field"
            )
        changed = differences(base_config, config)
        if conflicts := {path: changed[path] for path in _SHARED_FIELDS if path in changed}:
            raise UserError(
                f"{grid.base} and {name} differ in {format_differences(conflicts)}, so --halving "
                "cannot compare them; give both the same values, or leave one out with --only"
            )


def best(scores: Mapping[str, Sequence[float | None]], held_out: int, count: int) -> list[str]:
    """Return the `count` names with the lowest finite mean scores; ties keep their order.

    Args:
      scores: perplexities by name and seed index; None if missing.
      held_out: the index of the seed whose scores are ignored; -1 for none.

    Returns:
      The names; [] if a score is missing, because it could change the choice.
    """
    means = {}
    for name, scores_by_seed in scores.items():
        used_scores = [score for i, score in enumerate(scores_by_seed) if i != held_out]
        known_scores = [score for score in used_scores if score is not None]
        if len(known_scores) < len(used_scores):
            return []
        means[name] = statistics.fmean(known_scores)
    finite_names = [name for name, mean in means.items() if math.isfinite(mean)]
    return sorted(finite_names, key=means.__getitem__)[:count]


class HalvedGrid:
    """Plan a grid with successive halving. All seeds of a variant pause together."""

    def __init__(
        self,
        cells: Sequence[Cell],
        groups: Sequence[Sequence[str]],
        halving: Halving,
        *,
        cross_fit: bool = False,
    ) -> None:
        """Set up the rungs, which are the steps at which variants pause.

        Args:
          cells: the cells (runs) of all variants; those of a variant in the order of seeds.
          groups: variants that compete with each other. The best of each group continue.
          cross_fit: whether to choose once for each seed, without its scores. A variant continues
            if any of these choices promotes it.
        """
        self._cells, self._groups, self._halving = cells, groups, halving
        self._cells_of = grouped((cell.variant, cell) for cell in cells)
        self.steps = halving.steps(cells[0].config)
        num_seeds = len(self._cells_of[cells[0].variant])
        self._held_out = [*range(num_seeds)] if cross_fit and num_seeds > 1 else [-1]

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells, each with the step to train to: its variant's last rung so far."""
        rung_of = dict.fromkeys(self._cells_of, 0)
        for held_out, group in product(self._held_out, self._groups):
            for rung, names in enumerate(self.members(group, held_out, scores)):
                rung_of |= {name: max(rung, rung_of[name]) for name in names}
        return [self._pause(cell, rung_of[cell.variant], scores) for cell in self._cells]

    def _pause(self, cell: Cell, rung: int, scores: Scores) -> Cell:
        """Return a copy of the cell that stops at its first rung without a score.

        The copy stops at rung `rung` at the latest.
        """
        # With a held-out seed, a variant may pass a rung before all its seeds have reached it.
        pauses = (step for step in self.steps[:rung] if score_at(scores, cell, step) is None)
        return replace(cell, last_step=next(pauses, self.steps[rung]))

    def members(self, group: Sequence[str], held_out: int, scores: Scores) -> list[list[str]]:
        """Return, for each rung, the variants that may train to it.

        Args:
          group: names of competing variants.
          held_out: the index of the seed whose scores are ignored; -1 for none.
        """
        members = [list(group)]
        for step in self.steps[:-1]:
            group_scores = {
                name: [score_at(scores, cell, step) for cell in self._cells_of[name]]
                for name in members[-1]
            }
            num_passing = max(1, int(self._halving.keep * len(group_scores) + 0.5))
            best_names = best(group_scores, held_out, num_passing)
            members.append([name for name in group_scores if name in best_names])
        return members
