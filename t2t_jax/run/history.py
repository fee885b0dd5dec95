"""The records of a run's log by kind, and early stopping.

Early stopping depends only on the recorded evaluations and the config. A resumed run therefore
stops after the same evaluation as an uninterrupted run, and more patience continues a stopped run.
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
    """The records of a run's `log.jsonl` by kind, oldest first.

    None stands for a non-finite value.
    """

    training: list[Record] = field(default_factory=list)
    """The mean metrics of the steps between two log lines."""
    evaluations: list[Record] = field(default_factory=list)
    """The evaluations on dev."""
    warnings: list[Record] = field(default_factory=list)
    """The warnings of the health rules."""
    end: Record | None = None
    """The record of the end of training; None while the run continues or after a kill."""

    @staticmethod
    def of(records: Iterable[Record]) -> "History":
        """Sort the records of a run's log by kind."""
        history = History()
        for record in records:
            history.add(record)
        return history

    def add(self, record: Record) -> None:
        """Add a log record to the history, which ignores other kinds of records."""
        kinds = {"train": self.training, "dev": self.evaluations, WARNING: self.warnings}
        if record["of"] == END:
            self.end = record
        elif record["of"] in kinds:
            kinds[record["of"]].append(record)


def scalars(record: Record) -> dict[str, float]:
    """Return the finite values of a record, by their names in TensorBoard and trackers."""
    return {
        f"{record['of']}/{name}": value
        for name, value in record.items()
        if name not in ("step", "time") and isinstance(value, int | float) and math.isfinite(value)
    }


def dev_score(evaluation: Record) -> float:
    """Return the score of a dev evaluation that selects the best checkpoint.

    A score that is not finite counts as minus infinity.
    """
    score = evaluation.get("score")
    return -math.inf if score is None else float(score)


def score_name(evaluation: Record) -> str:
    """Return the name of the score, such as BLEU, that selects the best checkpoint."""
    if "metric" in evaluation:
        return str(evaluation["metric"])
    names = (task.score[1] for _, task in TASKS.each() if task.score[0] in evaluation)
    return next(names, "score")


def score_at(evaluations: Iterable[Record], step: float = math.inf) -> str:
    """Describe the newest score up to a step, as ", BLEU 27.30 on dev at step 900"."""
    description = ""
    for record in evaluations:
        score = dev_score(record)
        if record["step"] <= step and score > -math.inf:
            description = f", {score_name(record)} {score:.2f} on dev at step {record['step']:,}"
    return description


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
    """The number of evaluations since the best evaluation."""

    def __str__(self) -> str:
        """Describe the best and the last dev score as the start of a sentence."""
        return (
            f"dev scored {self.best:.2f} at step {self.best_step:,}, and no better in the "
            f"{self.evaluations} evaluation(s) since ({self.last:.2f} at step {self.last_step:,})"
        )


def plateau(evaluations: Sequence[Record]) -> Plateau | None:
    """Find the best dev evaluation and the evaluations since; None without an evaluation.

    Args:
      evaluations: the records of all dev evaluations, oldest first. Records whose `measure`, such
        as the beam size, differs from the last record are ignored.
    """
    if not evaluations:
        return None
    comparable = [e for e in evaluations if e.get("measure") == evaluations[-1].get("measure")]
    scored_steps = [(dev_score(e), e["step"]) for e in comparable]
    best_index = max(range(len(scored_steps)), key=lambda index: scored_steps[index][0])
    return Plateau(*scored_steps[best_index], *scored_steps[-1], len(scored_steps) - 1 - best_index)


def reason_to_stop(config: TrainingConfig, evaluations: Sequence[Record]) -> str | None:
    """Return why early stopping ends a run after its last evaluation; None if the run continues."""
    patience, stall = config.stop_after_evaluations_without_gain, plateau(evaluations)
    if patience is None or stall is None or stall.evaluations < patience:
        return None
    return f"{stall}, which ends the run (training.stop_after_evaluations_without_gain={patience})"
