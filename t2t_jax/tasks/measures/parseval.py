"""Labelled recall and precision of brackets: PARSEVAL, as the program EVALB counts it.

Papers, such as the Transformer's in section 6.3, report the scores of EVALB (Sekine and Collins,
1997) with its parameter file COLLINS.prm. The root and punctuation are left out of both trees, ADVP
and PRT are one label, and a label ends at its first `-` or `=`. Several brackets with the same
label and words all count. EVALB's limits (200 words, 200 brackets, ten errors) are not kept.
"""

import operator
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from t2t_jax.data import trees
from t2t_jax.errors import UserError

_DELETED = trees.PUNCTUATION_TAGS | {trees.TOP, trees.EMPTY_ELEMENT}
_SAME_LABEL = {"PRT": "ADVP"}
_CUTOFF_LENGTH = 40


@dataclass(frozen=True)
class ParsevalScores:
    """Scores of predicted trees, in percent, over all sentences that could be scored."""

    recall: float
    """Share of the brackets of the gold trees that are in the predicted ones."""
    precision: float
    """Share of the brackets of the predicted trees that are in the gold ones."""
    f1: float
    """Harmonic mean of recall and precision."""
    f1_short: float
    """`f1` over the sentences of at most 40 words, punctuation included."""
    complete_match: float
    """Share of the sentences with every bracket right and none too many."""
    tagging_accuracy: float
    """Share of the words, apart from punctuation, with the right tag."""
    num_sentences: int
    """Number of sentences, including those that could not be scored."""
    num_skipped: int
    """Sentences left out because the predicted tree has no words: EVALB's "skip"."""
    num_errors: int
    """Sentences left out because the two trees, without punctuation, have other words: EVALB's
    "error"."""
    signature: str = "EVALB, COLLINS.prm"
    """The program and the parameters that define the scores."""
    num_repaired: int = 0
    """Number of sentences for which a model's output was not a tree, and was mended."""

    @property
    def best(self) -> float:
        """Return the score that chooses the best checkpoint; higher is better."""
        return self.f1

    def __str__(self) -> str:
        """Return F1 and its signature in a line, with the number of repaired trees."""
        return f"F1 {self.f1:.2f} ({self.signature})  {self.num_repaired} repaired"


class _Parse(NamedTuple):
    """The parts of a tree that are compared."""

    words: list[str]
    """The words of the sentence, without punctuation and empty elements."""
    tags: list[str]
    """The part-of-speech tag of each of `words`."""
    brackets: Counter[tuple[str, int, int]]
    """How often each bracket is in the tree: its label, its first word and the word after it."""
    length: int
    """Number of words in the sentence, punctuation included."""


class _Counts(NamedTuple):
    """The comparison of the two trees of a sentence, with counts of 0 if it is left out."""

    status: Literal["valid", "skipped", "error"]
    """Whether the sentence is scored, or why it is left out; see `ParsevalScores`."""
    length: int
    """Number of words in the sentence, punctuation included."""
    matched: int = 0
    """Number of brackets that both trees have."""
    gold: int = 0
    """Number of brackets of the gold tree."""
    predicted: int = 0
    """Number of brackets of the predicted tree."""
    words: int = 0
    """Number of words, without punctuation."""
    correct_tags: int = 0
    """Number of these words with the right tag."""


def parseval(gold: Sequence[trees.Tree], predicted: Sequence[trees.Tree]) -> ParsevalScores:
    """Score predicted trees against those of a treebank.

    Args:
      gold: the right trees, with or without empty elements and function tags.
      predicted: a predicted tree for each right one, over the same words.
    """
    if not gold or len(gold) != len(predicted):
        raise UserError(
            f"cannot score {len(predicted)} predicted trees against {len(gold)} gold trees; give "
            "one for each"
        )
    counts = [_compare(*map(_analyse, pair)) for pair in zip(gold, predicted, strict=True)]
    recall, precision, f1 = _bracket_scores(counts)
    valid = [sentence for sentence in counts if sentence.status == "valid"]
    complete = sum(sentence.gold == sentence.predicted == sentence.matched for sentence in valid)
    return ParsevalScores(
        recall=recall,
        precision=precision,
        f1=f1,
        f1_short=_bracket_scores([s for s in counts if s.length <= _CUTOFF_LENGTH])[2],
        complete_match=_percent(complete, len(valid)),
        tagging_accuracy=_percent(
            sum(sentence.correct_tags for sentence in valid),
            sum(sentence.words for sentence in valid),
        ),
        num_sentences=len(counts),
        num_skipped=sum(sentence.status == "skipped" for sentence in counts),
        num_errors=sum(sentence.status == "error" for sentence in counts),
    )


def _analyse(tree: trees.Tree) -> _Parse:
    all_words, symbols = tree
    remaining = iter(all_words)
    words: list[str] = []
    tags: list[str] = []
    brackets: Counter[tuple[str, int, int]] = Counter()
    starts: list[int] = []
    empty_elements = 0
    for symbol in symbols:
        if symbol.startswith("("):
            starts.append(len(words))
        elif symbol.startswith(")"):
            label, start = re.split("[-=]", symbol[1:], maxsplit=1)[0], starts.pop()
            if label not in _DELETED and start < len(words):
                brackets[_SAME_LABEL.get(label, label), start, len(words)] += 1
        else:
            word = next(remaining)
            empty_elements += symbol == trees.EMPTY_ELEMENT
            if symbol not in _DELETED:
                words.append(word)
                tags.append(_SAME_LABEL.get(symbol, symbol))
    return _Parse(words, tags, brackets, len(all_words) - empty_elements)


def _compare(gold: _Parse, predicted: _Parse) -> _Counts:
    if not predicted.words:
        return _Counts("skipped", gold.length)
    if gold.words != predicted.words:
        return _Counts("error", gold.length)
    return _Counts(
        "valid",
        gold.length,
        matched=(gold.brackets & predicted.brackets).total(),
        gold=gold.brackets.total(),
        predicted=predicted.brackets.total(),
        words=len(gold.words),
        correct_tags=sum(map(operator.eq, gold.tags, predicted.tags)),
    )


def _bracket_scores(counts: Sequence[_Counts]) -> tuple[float, float, float]:
    """Compute recall, precision and F1 over all brackets of some sentences, in percent."""
    matched = sum(sentence.matched for sentence in counts)
    recall = _percent(matched, sum(sentence.gold for sentence in counts))
    precision = _percent(matched, sum(sentence.predicted for sentence in counts))
    f1 = 2 * precision * recall / (precision + recall) if matched else 0.0
    return recall, precision, f1


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def parse_scores(
    sentences: Sequence[str], outputs: Sequence[str], references: Sequence[str]
) -> tuple[ParsevalScores, list[str], list[str]]:
    """Build the trees of a model's outputs, and score them.

    Args:
      sentences: sentences as words with spaces between them.
      outputs: the model's output for each sentence: symbols as those of a `Tree`,
        or any other text.
      references: the right symbols for each sentence.

    Returns:
      The scores, then the model's trees and the right ones, in brackets.
    """
    words = [sentence.split() for sentence in sentences]
    built = [trees.build_tree(ws, o.split()) for ws, o in zip(words, outputs, strict=True)]
    gold = [trees.Tree(ws, r.split()) for ws, r in zip(words, references, strict=True)]
    predicted = [tree for tree, _ in built]
    repaired = sum(repairs > 0 for _, repairs in built)
    scores = replace(parseval(gold, predicted), num_repaired=repaired)
    return scores, list(map(trees.format_tree, predicted)), list(map(trees.format_tree, gold))
