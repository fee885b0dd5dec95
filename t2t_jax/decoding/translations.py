"""Translations of lines, and their composition from translations of the parts of a line."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from t2t_jax.errors import UserError


class Hypothesis(NamedTuple):
    """One translation of a line."""

    text: str
    """The translation, without a line break."""
    score: float
    """The score that ranks hypotheses: `log_prob` over the length penalty, or `log_prob` itself
    without a beam. For a line that was split, the sum of its parts' scores."""
    log_prob: float
    """Log-probability of the whole translation under the model, in nats."""
    tokens: tuple[int, ...]
    """Ids of the subwords, with the end of sentence if it was reached. For a line that was split,
    those of its parts one after the other, each with its end of sentence."""


def joined_hypotheses(parts: Sequence[Sequence[Hypothesis]], num_best: int) -> list[Hypothesis]:
    """Make the best hypotheses of a line that was split from those of its parts, best first.

    Args:
      parts: the hypotheses of each part, best first.
    """

    def followed(first: Hypothesis, second: Hypothesis) -> Hypothesis:
        return Hypothesis(
            f"{first.text} {second.text}".strip(),
            first.score + second.score,
            first.log_prob + second.log_prob,
            first.tokens + second.tokens,
        )

    return [reduce(followed, chosen) for chosen in best_choices(parts, num_best)]


def best_choices(
    parts: Sequence[Sequence[Hypothesis]], num_best: int
) -> list[tuple[Hypothesis, ...]]:
    """Return the best choices of a hypothesis for each part, by the sum of scores, best first.

    Args:
      parts: the hypotheses of each part, best first.
    """
    if num_best == 1:
        return [tuple(part[0] for part in parts)]
    found: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for part in parts:
        longer = [(score + one.score, (*chosen, one)) for score, chosen in found for one in part]
        found = sorted(longer, key=lambda one: -one[0])[:num_best]
    return [chosen for _, chosen in found]


def is_blank(tokens: list[int]) -> bool:
    """Return whether an encoded line is nothing but the end of sentence."""
    return len(tokens) == 1


def diverged(number: int) -> UserError:
    """Make the error for a line whose probabilities are not finite."""
    return UserError(
        f"the model gives no finite probabilities for line {number}; its training has "
        "diverged: use an earlier step, or train again at a lower learning rate"
    )
