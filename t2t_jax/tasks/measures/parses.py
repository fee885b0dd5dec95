"""Scores of a parser's outputs: sequences of symbols, which are not always trees."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from t2t_jax.data.trees import build_tree, delinearise, format_tree
from t2t_jax.tasks.measures.parseval import ParsevalScores, parseval


@dataclass(frozen=True)
class ParseScores(ParsevalScores):
    """The scores of a model's outputs for the sentences of a treebank."""

    num_repaired: int = 0
    """Number of sentences for which the model's output was not a tree, and was mended."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.f1

    def __str__(self) -> str:
        """Return F1 and its signature in a line, with the number of repaired trees."""
        return f"F1 {self.f1:.2f} ({self.signature})  {self.num_repaired} repaired"


def parse_scores(
    sentences: Sequence[str], outputs: Sequence[str], references: Sequence[str]
) -> tuple[ParseScores, list[str], list[str]]:
    """Build the trees of a model's outputs, and score them.

    Args:
      sentences: sentences as words with spaces between them.
      outputs: the model's output for each sentence: symbols as `data.trees.linearise` returns them,
        or any other text.
      references: the right symbols for each sentence.

    Returns:
      The scores, then the model's trees and the right ones, in brackets.
    """
    predicted = [build_tree(s.split(), o.split()) for s, o in zip(sentences, outputs, strict=True)]
    gold = [delinearise(s.split(), r.split()) for s, r in zip(sentences, references, strict=True)]
    trees = [tree for tree, _ in predicted]
    repaired = sum(repairs > 0 for _, repairs in predicted)
    scores = ParseScores(**dataclasses.asdict(parseval(gold, trees)), num_repaired=repaired)
    return scores, list(map(format_tree, trees)), list(map(format_tree, gold))
