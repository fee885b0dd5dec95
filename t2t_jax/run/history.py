"""The records of a run's log by their kind, for all who read them: while it trains, and after."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from t2t_jax.config.tasks import TASKS
from t2t_jax.system.records import Record
from t2t_jax.workdir import END, WARNING


@dataclass
class History:
    """What a run has recorded so far, the oldest first.

    The records are those of `log.jsonl`, in which null stands for a figure that was not finite. So
    a run that goes on knows of its past what it would know had it never been stopped.
    """

    training: list[Record] = field(default_factory=list)
    """The means of the steps between two lines of the log."""
    evaluations: list[Record] = field(default_factory=list)
    """The evaluations on dev."""
    warnings: list[Record] = field(default_factory=list)
    """What the rules of `run.health` found."""
    end: Record | None = None
    """Why the training ended; None while it goes on, and if its process was killed."""

    @staticmethod
    def of(records: Iterable[Record]) -> "History":
        """The history that the records of a log tell."""
        history = History()
        for record in records:
            history.add(record)
        return history

    def add(self, record: Record) -> None:
        """Take the next record of the log; one of another kind is passed over."""
        kinds = {"train": self.training, "dev": self.evaluations, WARNING: self.warnings}
        if record["of"] == END:
            self.end = record
        elif record["of"] in kinds:
            kinds[record["of"]].append(record)


def dev_score(evaluation: Record) -> float | None:
    """The score by which the best checkpoint is chosen; None if it was not finite.

    Args:
      evaluation: a record of an evaluation on dev. Those of releases before 0.1.1 have no field
        `score`, only the score under its own name.
    """
    own = evaluation.get(_score(evaluation)[0])
    score = evaluation.get("score", own)
    return float(score) if isinstance(score, int | float) else None


def score_name(evaluation: Record) -> str:
    """The name of an evaluation's `dev_score`, such as BLEU."""
    return _score(evaluation)[1]


def _score(evaluation: Record) -> tuple[str, str]:
    """The score that chooses the best checkpoint: its field, and its name for a reader."""
    scores = (task.score for task in TASKS.values() if task.score[0] in evaluation)
    return next(scores, ("score", "score"))
