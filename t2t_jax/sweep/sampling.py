"""Values of continuous fields that an Optuna sampler proposes from the scores of earlier ones.

Each variant has a separate study. A trial is one value of each field, under every seed of the
variant, and its score is the mean perplexity on dev. The trial numbers determine which scores the
sampler knows before it proposes a trial, so the same scores give the same trials. The grid's
directory is the whole record: a resumed sweep replays it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2t_jax.config import Config
from t2t_jax.config.file import Grid, can_name_directory, product
from t2t_jax.errors import UserError, needs_extra, quote
from t2t_jax.sweep.cell import Cell, Scores, cells, mean_of, score_at

_MOST_REFUSED = 100
"""The proposals that a config refuses, one after the other, before the sweep gives up."""
_FARTHEST = 1e300  # samplers subtract the ends of a range
# The options are defaults of Optuna 4. Those of Optuna 5 differ.
_SAMPLERS: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    "optuna:tpe": ("TPESampler", {"multivariate": False, "constant_liar": False}),
    "optuna:random": ("RandomSampler", {}),
}


@dataclass(frozen=True)
class Range:
    """A range of a field; integer fields have integer ends."""

    low: float
    """The lower end."""
    high: float
    """The upper end."""
    scale: str
    """The scale, "log" if ratios count, or else "lin"."""

    def check(self) -> None:
        """Refuse an empty range, another scale, or a log range from 0 or less."""
        least = 1e-30 if self.scale == "log" else -_FARTHEST
        if self.scale not in ("log", "lin") or not least <= self.low < self.high <= _FARTHEST:
            raise UserError(
                f"{self.low}:{self.high}:{self.scale} is no range; give two ends up to "
                f"{_FARTHEST}, the lower one first and above 0 for log, and log or lin"
            )

    def __str__(self) -> str:
        """Return the range in the form of a flag, such as `0.5:2:log`."""
        return f"{self.low:g}:{self.high:g}:{self.scale}"


class SampledGrid:
    """The plan of a grid whose variants get values from a sampler."""

    def __init__(
        self,
        grid: Grid,
        workdir: Path,
        seeds: int,
        sampler: str,
        ranges: Mapping[str, Range],
        trials: int,
        at_once: int,
    ) -> None:
        """Plan the trials of every variant.

        Args:
          ranges: the ranges by the path of a field.
          at_once: the number of trials to request before the first of them is scored.
        """
        if sampler not in _SAMPLERS:
            known = ", ".join(_SAMPLERS)
            raise UserError(f"there is no --sampler {quote(sampler)}; there are {known}")
        for variant in grid.variants:
            longest = f"{variant}," + ",".join(f"{path}=-1.234e-100" for path in ranges)
            if not can_name_directory(longest):
                raise UserError(f"--tune gives rows names too long for a directory, as {longest}")
        with needs_extra("optuna", f"--sampler {sampler}"):
            import optuna
            from optuna.distributions import FloatDistribution, IntDistribution
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna: str = optuna.__version__
        self.candidates: dict[str, dict[str, Config]] = {name: {} for name in grid.variants}
        """The configs of the trials so far, by variant and by trial name."""
        self._distributions = {
            path: (IntDistribution if isinstance(values.low, int) else FloatDistribution)(
                values.low, values.high, log=values.scale == "log"
            )
            for path, values in ranges.items()
        }
        kind, options = _SAMPLERS[sampler]
        self._studies = {}
        for variant, config in grid.variants.items():
            proposer = getattr(optuna.samplers, kind)(**options, seed=config.training.seed)
            study = optuna.create_study(sampler=proposer, direction="minimize")
            self._studies[variant] = _Study(study)
        self._grid, self._workdir, self._seeds = grid, workdir, seeds
        self._trials, self._at_once = trials, at_once

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return the cells of the trials so far, each of which is trained to its end."""
        for variant, study in self._studies.items():
            while len(study.asked) < self._trials and self._tell(study, scores):
                self._ask(variant, study)
        studies = self._studies.values()
        return [cell for study in studies for seeds in study.cells.values() for cell in seeds]

    def _tell(self, study: "_Study", scores: Scores) -> bool:
        """Tell the study the scores before the next trial; return whether they were known."""
        while study.told <= len(study.asked) - self._at_once:
            trial, name = study.asked[study.told]
            mean = mean_of(score_at(scores, c, c.until) for c in study.cells[name])
            if mean is None:
                return False
            study.study.tell(trial, mean)
            study.told += 1
        return True

    def _ask(self, variant: str, study: "_Study") -> None:
        from optuna.trial import TrialState

        for left in range(_MOST_REFUSED, -1, -1):
            trial = study.study.ask(fixed_distributions=self._distributions)
            # Four digits, so that the name of the directory is short.
            drawn = trial.params.items()
            values = {p: [v if isinstance(v, int) else float(f"{v:.4g}")] for p, v in drawn}
            try:
                ((inner, config),) = product(self._grid.variants[variant], values).items()
                break
            except UserError:  # as of a width that the number of heads does not divide
                if not left:
                    raise
                study.study.tell(trial, state=TrialState.FAIL)
        name = f"{variant},{inner}"
        study.asked.append((trial, name))
        if name not in study.cells:
            self.candidates[variant][name] = config
            study.cells[name] = cells(Grid({name: config}, {}), self._workdir, self._seeds)


class _Study:
    """The trials of a variant."""

    def __init__(self, study: Any) -> None:
        self.study = study
        self.asked: list[tuple[object, str]] = []
        self.told = 0
        self.cells: dict[str, list[Cell]] = {}
