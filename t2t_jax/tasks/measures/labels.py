"""Scores of predicted labels: accuracy, the F1 of each label, and the confusion table."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from t2t_jax.errors import UserError


@dataclass(frozen=True)
class LabelScores:
    """The scores of predicted labels against the right ones."""

    accuracy: float
    """Percentage of the labels that are right."""
    macro_f1: float
    """Mean over all labels of the F1 of each, in percent; a label that is never right has 0."""
    num_labels: int
    """Number of labels that were predicted."""
    confusion: tuple[tuple[str, str, int], ...]
    """The confusion table: the right label, the predicted one and the count of every pair that
    occurs, sorted by the right label and then with the most frequent first."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.accuracy

    def __str__(self) -> str:
        """Return the scores as one line for the log."""
        of = f"({self.num_labels:,} labels)"
        return f"accuracy {self.accuracy:.2f}  macro F1 {self.macro_f1:.2f} {of}"


def label_scores(gold: Sequence[str], predicted: Sequence[str]) -> LabelScores:
    """Score predicted labels; macro F1 is over the labels that occur on either side.

    Raises:
      UserError: there are no labels.
    """
    if not gold:
        raise UserError("there are no labels to score; give sentences that have some")
    pairs = Counter(zip(gold, predicted, strict=True))
    table = tuple(
        sorted(((*pair, n) for pair, n in pairs.items()), key=lambda one: (one[0], -one[2], one[1]))
    )
    f1 = f1_of_labels(table)
    right = sum(number for wanted, found, number in table if wanted == found)
    mean = sum(f1.values()) / len(f1)
    return LabelScores(100 * right / len(gold), mean, len(gold), table)


def f1_of_labels(confusion: Iterable[tuple[str, str, int]]) -> dict[str, float]:
    """Compute the F1 of each label that occurs, in percent: 2 right / (wanted + predicted).

    Args:
      confusion: a confusion table, as in `LabelScores.confusion`.
    """
    right, both = Counter[str](), Counter[str]()
    for wanted, found, number in confusion:
        both[wanted] += number
        both[found] += number
        right[wanted] += number * (wanted == found)
    return {label: 200 * right[label] / number for label, number in both.items()}
