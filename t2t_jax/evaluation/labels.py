"""How well labels were predicted: accuracy, F1 of each label, and which are taken for which."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from t2t_jax.errors import UserError

_NUM_CONFUSIONS = 10


@dataclass(frozen=True)
class LabelScores:
    """How many labels were predicted right."""

    accuracy: float
    """Percentage of the labels that are right."""
    macro_f1: float
    """Mean over all labels of the F1 of each, in percent; a label that is never right has 0."""
    num_labels: int
    """How many labels were predicted."""
    confusions: tuple[tuple[str, str, int], ...]
    """The most frequent mistakes: the right label, the predicted one, and how often."""

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
    right = Counter({label: pairs[label, label] for label in set(gold)})
    both = Counter(gold) + Counter(predicted)
    f1 = [2 * right[label] / number for label, number in both.items()]
    wrong = [(*pair, number) for pair, number in pairs.items() if pair[0] != pair[1]]
    wrong.sort(key=lambda one: (-one[2], one[0], one[1]))
    return LabelScores(
        100 * right.total() / len(gold),
        100 * sum(f1) / len(f1),
        len(gold),
        tuple(wrong[:_NUM_CONFUSIONS]),
    )
