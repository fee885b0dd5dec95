"""Translations of lines, and their composition from translations of the parts of a line."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from t2t_jax.errors import DivergedError


class Hypothesis(NamedTuple):
    """One translation of a line."""

    text: str
    """The translation, without a line break."""
    score: float
    """`log_prob` over the length penalty, which ranks hypotheses; without a beam, `log_prob`. For a
    split line, the sum over its parts."""
    log_prob: float
    """Log-probability of the whole translation under the model, in nats."""
    tokens: tuple[int, ...]
    """Ids of the subwords, with the end of sentence if it was reached. For a split line, the ids of
    all parts, each with its end of sentence."""


def joined_hypotheses(parts: Sequence[Sequence[Hypothesis]], num_best: int) -> list[Hypothesis]:
    """Join hypotheses of the parts of a line into the best hypotheses of the line, best first.

    Args:
      parts: the hypotheses of each part, best first.
    """
    if num_best == 1:
        return [reduce(_followed, (part[0] for part in parts))]
    choices: list[tuple[float, tuple[Hypothesis, ...]]] = [(0.0, ())]
    for part in parts:
        longer = [
            (score + hypothesis.score, (*chosen, hypothesis))
            for score, chosen in choices
            for hypothesis in part
        ]
        choices = sorted(longer, key=lambda choice: -choice[0])[:num_best]
    return [reduce(_followed, chosen) for _, chosen in choices]


def _followed(first: Hypothesis, second: Hypothesis) -> Hypothesis:
    return Hypothesis(
        f"{first.text} {second.text}".strip(),
        first.score + second.score,
        first.log_prob + second.log_prob,
        first.tokens + second.tokens,
    )


def is_blank(tokens: list[int]) -> bool:
    """Return whether an encoded line is nothing but the end of sentence."""
    return len(tokens) == 1


def diverged(number: int) -> DivergedError:
    """Make the error for a line whose probabilities are not finite."""
    return DivergedError(
        f"the model gives no finite probabilities for line {number}; its training has "
        "diverged: use an earlier step, or train again at a lower learning rate"
    )
