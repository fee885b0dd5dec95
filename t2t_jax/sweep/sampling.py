"""Let an Optuna sampler propose values of continuous fields from the scores of earlier trials.

Each variant has a separate study. A trial is one value per field. Its score is the mean dev
perplexity over all seeds. A resumed sweep replays the scores from the grid's directory, and so
proposes the same trials.
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
"""The limit on consecutive invalid proposals."""
_FARTHEST = 1e300  # samplers subtract the ends, so twice this value must not overflow
# Defaults of Optuna 4, set explicitly because Optuna 5 has other defaults.
_SAMPLERS: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    "optuna:tpe": ("TPESampler", {"multivariate": False, "constant_liar": False}),
    "optuna:random": ("RandomSampler", {}),
}


@dataclass(frozen=True)
class Range:
    """The range of a tuned field, with integer ends for an integer field."""

    low: float
    """The lower end."""
    high: float
    """The upper end."""
    scale: str
    """The scale on which the sampler draws: "log" or "lin"."""

    def check(self) -> None:
        """Refuse an empty range, an unknown scale, or a log range with a nonpositive end."""
        least = 1e-30 if self.scale == "log" else -_FARTHEST
        if self.scale not in ("log", "lin") or not least <= self.low < self.high <= _FARTHEST:
            raise UserError(
                f"{self.low}:{self.high}:{self.scale} is not a range; give two ends up to "
                f"{_FARTHEST}, the lower one first and above 0 for log, and log or lin"
            )

    def __str__(self) -> str:
        """Format the range as in a flag, such as `0.5:2:log`."""
        return f"{self.low:g}:{self.high:g}:{self.scale}"


class SampledGrid:
    """Plan a grid's runs when an Optuna sampler proposes the values of tuned fields."""

    def __init__(
        self,
        grid: Grid,
        workdir: Path,
        num_seeds: int,
        sampler: str,
        ranges: Mapping[str, Range],
        num_trials: int,
        at_once: int,
    ) -> None:
        """Create an Optuna study for every variant.

        Args:
          sampler: the name of the sampler, such as `optuna:tpe`.
          ranges: the allowed values of each tuned field, by field path.
          num_trials: the number of trials per variant.
          at_once: the number of trials to request before the first is scored.
        """
        if sampler not in _SAMPLERS:
            choices = ", ".join(_SAMPLERS)
            raise UserError(f"there is no --sampler {quote(sampler)}; there are {choices}")
        for variant in grid.variants:
            longest = f"{variant}," + ",".join(f"{path}=-1.234e-100" for path in ranges)
            if not can_name_directory(longest):
                raise UserError(f"--tune makes row names too long for a directory, as {longest}")
        with needs_extra("optuna", f"--sampler {sampler}"):
            import optuna
            from optuna.distributions import FloatDistribution, IntDistribution
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna: str = optuna.__version__
        self.candidates: dict[str, dict[str, Config]] = {name: {} for name in grid.variants}
        """Configs of the proposed trials, by variant and trial name."""
        self._distributions = {
            path: (IntDistribution if isinstance(bounds.low, int) else FloatDistribution)(
                bounds.low, bounds.high, log=bounds.scale == "log"
            )
            for path, bounds in ranges.items()
        }
        class_name, options = _SAMPLERS[sampler]
        self._studies = {}
        for variant, config in grid.variants.items():
            proposer = getattr(optuna.samplers, class_name)(**options, seed=config.training.seed)
            study = optuna.create_study(sampler=proposer, direction="minimize")
            self._studies[variant] = _Study(study)
        self._grid, self._workdir, self._num_seeds = grid, workdir, num_seeds
        self._num_trials, self._at_once = num_trials, at_once

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Propose the trials whose preceding scores are known; return the cells of all trials."""
        for variant, study in self._studies.items():
            while len(study.trials) < self._num_trials and self._report_scores(study, scores):
                self._propose(variant, study)
        studies = self._studies.values()
        return [cell for study in studies for seeds in study.cells.values() for cell in seeds]

    def _report_scores(self, study: "_Study", scores: Scores) -> bool:
        """Report to Optuna the scores due before its next trial; return False if one is missing."""
        # The trial index fixes the number of reported scores, so that a replay is deterministic.
        while study.num_reported <= len(study.trials) - self._at_once:
            trial, name = study.trials[study.num_reported]
            mean = mean_of(score_at(scores, cell, cell.last_step) for cell in study.cells[name])
            if mean is None:
                return False
            study.study.tell(trial, mean)
            study.num_reported += 1
        return True

    def _propose(self, variant: str, study: "_Study") -> None:
        from optuna.trial import TrialState

        for attempts_left in range(_MOST_REFUSED, -1, -1):
            trial = study.study.ask(fixed_distributions=self._distributions)
            # Round to four digits to keep directory names short.
            params = trial.params.items()
            values = {path: [v if isinstance(v, int) else float(f"{v:.4g}")] for path, v in params}
            try:
                ((suffix, config),) = product(self._grid.variants[variant], values).items()
                break
            except UserError:  # for example, a width that num_heads does not divide
                if not attempts_left:
                    raise
                study.study.tell(trial, state=TrialState.FAIL)
        name = f"{variant},{suffix}"
        study.trials.append((trial, name))
        if name not in study.cells:
            self.candidates[variant][name] = config
            study.cells[name] = cells(Grid({name: config}, {}), self._workdir, self._num_seeds)


class _Study:
    """The Optuna study of one variant, with its trials in the order of proposal."""

    def __init__(self, study: Any) -> None:
        self.study = study
        self.trials: list[tuple[object, str]] = []
        self.num_reported = 0
        self.cells: dict[str, list[Cell]] = {}
