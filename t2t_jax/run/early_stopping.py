"""Early stopping: a run ends before its last step if its dev score stops rising.

The decision depends only on the recorded evaluations and the config. So a resumed run ends after
the same evaluation as an unbroken one, and a run that has ended resumes if the config asks for more
patience.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from t2t_jax.config import TrainingConfig
from t2t_jax.run.history import dev_score
from t2t_jax.system.records import Record


class Plateau(NamedTuple):
    """The best evaluation of a run, and the evaluations after it."""

    best: float
    """The best score on dev so far."""
    best_step: int
    """The first step with the best score."""
    last: float
    """The last score on dev; minus infinity if it was not finite."""
    last_step: int
    """The step of the last evaluation."""
    evaluations: int
    """The number of evaluations since the best, none of which was better."""

    def __str__(self) -> str:
        """Describe the scores, as the beginning of a sentence."""
        return (
            f"dev scored {self.best:.2f} at step {self.best_step:,}, and no better in the "
            f"{self.evaluations} evaluation(s) since ({self.last:.2f} at step {self.last_step:,})"
        )


def plateau(evaluations: Sequence[Record]) -> Plateau | None:
    """Return for how long the dev score has not risen; None without an evaluation.

    Args:
      evaluations: the records of all evaluations on dev, oldest first. Those with another measure
        than the last (another beam size, or number of sentences) are ignored.
    """
    if not evaluations:
        return None
    measure = evaluations[-1].get("measure")
    scored = [
        (-math.inf if (score := dev_score(record)) is None else score, record["step"])
        for record in evaluations
        if record.get("measure") == measure
    ]
    scores = [score for score, _ in scored]
    first_best = scores.index(max(scores))
    return Plateau(*scored[first_best], *scored[-1], len(scored) - 1 - first_best)


def reason_to_stop(config: TrainingConfig, evaluations: Sequence[Record]) -> str | None:
    """Return why a run ends after its last evaluation, as the first half of a sentence.

    Returns:
      The reason; None if the run continues.
    """
    patience, since = config.stop_after_evaluations_without_gain, plateau(evaluations)
    if patience is None or since is None or since.evaluations < patience:
        return None
    return f"{since}, which ends the run (training.stop_after_evaluations_without_gain={patience})"
