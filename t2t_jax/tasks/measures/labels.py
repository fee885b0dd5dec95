"""How well labels were predicted: accuracy, F1 of each label, and which are taken for which."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from t2t_jax.errors import UserError


@dataclass(frozen=True)
class LabelScores:
    """How many labels were predicted right."""

    accuracy: float
    """Percentage of the labels that are right."""
    macro_f1: float
    """Mean over all labels of the F1 of each, in percent; a label that is never right has 0."""
    num_labels: int
    """How many labels were predicted."""
    confusion: tuple[tuple[str, str, int], ...]
    """The confusion table: the right label, the predicted one, and how often, for every pair that
    occurs; by the right label, and the most frequent first."""

    @property
    def best(self) -> float:
        """The score by which the best checkpoint is chosen; higher is better."""
        return self.accuracy

    def __str__(self) -> str:
        """One line for the log."""
        of = f"({self.num_labels:,} labels)"
        return f"accuracy {self.accuracy:.2f}  macro F1 {self.macro_f1:.2f} {of}"


def label_scores(gold: Sequence[str], predicted: Sequence[str]) -> LabelScores:
    """Score labels. Macro F1 is over the labels that occur on either side.

    Args:
      gold: the right labels.
      predicted: as many predicted ones.

    Raises:
      UserError: there are none.
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
    """The F1 of each label that occurs, in percent: 2 right / (wanted + predicted).

    Args:
      confusion: a confusion table, as `LabelScores` has it.
    """
    right, both = Counter[str](), Counter[str]()
    for wanted, found, number in confusion:
        both[wanted] += number
        both[found] += number
        right[wanted] += number * (wanted == found)
    return {label: 200 * right[label] / number for label, number in both.items()}
