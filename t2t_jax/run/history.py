"""The records of a run's log by kind, and early stopping by them.

A run ends before its last step if its dev score stops rising. The decision depends only on the
recorded evaluations and the config. So a resumed run ends after the same evaluation as an unbroken
one, and a run that has ended resumes if the config asks for more patience.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from t2t_jax.config import TrainingConfig
from t2t_jax.config.tasks import TASKS
from t2t_jax.system.records import Record
from t2t_jax.workdir import END, WARNING


@dataclass
class History:
    """The records of a run so far, by kind, oldest first.

    They equal the records of `log.jsonl`, where null means a figure that was not finite. So a
    resumed run has the same history as an unbroken one.
    """

    training: list[Record] = field(default_factory=list)
    """The means of the steps between two lines of the log."""
    evaluations: list[Record] = field(default_factory=list)
    """The evaluations on dev."""
    warnings: list[Record] = field(default_factory=list)
    """The warnings of the rules of `run.health`."""
    end: Record | None = None
    """The record of why training ended; None while it goes on, or if its process was killed."""

    @staticmethod
    def of(records: Iterable[Record]) -> "History":
        """Return the history of a log."""
        history = History()
        for record in records:
            history.add(record)
        return history

    def add(self, record: Record) -> None:
        """Add the next record of the log, if the history keeps its kind."""
        kinds = {"train": self.training, "dev": self.evaluations, WARNING: self.warnings}
        if record["of"] == END:
            self.end = record
        elif record["of"] in kinds:
            kinds[record["of"]].append(record)


def scalars(record: Record) -> dict[str, float]:
    """Return the finite figures of a record, by their names in TensorBoard and trackers."""
    return {
        f"{record['of']}/{name}": value
        for name, value in record.items()
        if name not in ("step", "time") and isinstance(value, int | float) and math.isfinite(value)
    }


def dev_score(evaluation: Record) -> float:
    """Return the score that selects the best checkpoint; minus infinity if it was not finite.

    Args:
      evaluation: a record of an evaluation on dev.
    """
    score = evaluation.get("score")
    return -math.inf if score is None else float(score)


def score_name(evaluation: Record) -> str:
    """Return the name of an evaluation's `dev_score`, such as BLEU."""
    if "metric" in evaluation:
        return str(evaluation["metric"])
    names = (task.score[1] for _, task in TASKS.each() if task.score[0] in evaluation)
    return next(names, "score")


def score_at(evaluations: Iterable[Record], step: float = math.inf) -> str:
    """Return the newest score up to a step, as ", BLEU 27.30 on dev at step 900"."""
    text = ""
    for one in evaluations:
        score = dev_score(one)
        if one["step"] <= step and score > -math.inf:
            text = f", {score_name(one)} {score:.2f} on dev at step {one['step']:,}"
    return text


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
    scored = [(dev_score(one), one["step"]) for one in evaluations if one.get("measure") == measure]
    first_best = max(range(len(scored)), key=lambda index: scored[index][0])
    return Plateau(*scored[first_best], *scored[-1], len(scored) - 1 - first_best)


def reason_to_stop(config: TrainingConfig, evaluations: Sequence[Record]) -> str | None:
    """Return why a run ends after its last evaluation, or None if it continues."""
    patience, since = config.stop_after_evaluations_without_gain, plateau(evaluations)
    if patience is None or since is None or since.evaluations < patience:
        return None
    return f"{since}, which ends the run (training.stop_after_evaluations_without_gain={patience})"
