"""PARSEVAL: labeled bracket recall and precision, computed like the program EVALB.

The paper (section 6.3) reports scores of EVALB (Sekine and Collins 1997) with COLLINS.prm. EVALB
removes the root and punctuation from both trees, treats ADVP and PRT as one label, and cuts labels
at the first `-` or `=`. Repeated brackets with the same label and words all count. This module does
not apply EVALB's limits (200 words, 200 brackets, ten errors).
"""

import operator
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from t2t_jax.data import trees
from t2t_jax.errors import UserError

_DELETED = trees.PUNCTUATION_TAGS | {trees.TOP, trees.EMPTY_ELEMENT}
_SAME_LABEL = {"PRT": "ADVP"}
_CUTOFF_LENGTH = 40


@dataclass(frozen=True)
class ParsevalScores:
    """Scores of predicted trees, in percent, over all sentences that EVALB can score."""

    recall: float
    """Share of the brackets of the gold trees that are in the predicted ones."""
    precision: float
    """Share of the brackets of the predicted trees that are in the gold ones."""
    f1: float
    """Harmonic mean of recall and precision."""
    f1_short: float
    """`f1` over sentences of at most 40 words, including punctuation."""
    complete_match: float
    """Share of the sentences whose predicted brackets equal the gold brackets."""
    tagging_accuracy: float
    """Share of the words without punctuation that have the correct tag."""
    num_sentences: int
    """Number of sentences, including skipped sentences and errors."""
    num_skipped: int
    """Number of sentences whose predicted tree has no words; EVALB calls them "skip"."""
    num_errors: int
    """Number of sentences whose two trees differ in words other than punctuation; EVALB calls them
    "error"."""
    signature: str = "EVALB, COLLINS.prm"
    """The program and the parameters that define the scores."""
    num_repaired: int = 0
    """Number of sentences whose model output was not a tree and was repaired."""

    @property
    def best(self) -> float:
        """Return the score that selects the best checkpoint."""
        return self.f1

    def __str__(self) -> str:
        """Return one line with F1, its signature and the number of repaired trees."""
        return f"F1 {self.f1:.2f} ({self.signature})  {self.num_repaired} repaired"


class _Parse(NamedTuple):
    """The parts of a tree that PARSEVAL compares."""

    words: list[str]
    """The words of the sentence, without punctuation and empty elements."""
    tags: list[str]
    """The part-of-speech tag of each of `words`."""
    brackets: Counter[tuple[str, int, int]]
    """Counts of brackets: the label, the first word, and one past the last word."""
    length: int
    """Number of words in the sentence, punctuation included."""


class _Counts(NamedTuple):
    """Counts from the two trees of a sentence, or their sums over sentences."""

    # For a skipped sentence or an error, only the first three fields are not 0.

    length: int = 0
    """Number of words in the sentence, punctuation included."""
    skipped: int = 0
    """1 if the predicted tree has no words."""
    error: int = 0
    """1 if the two trees have different words."""
    matched: int = 0
    """Number of brackets that both trees have."""
    gold: int = 0
    """Number of brackets of the gold tree."""
    predicted: int = 0
    """Number of brackets of the predicted tree."""
    complete: int = 0
    """1 if the two trees have the same brackets."""
    words: int = 0
    """Number of words, without punctuation."""
    correct_tags: int = 0
    """Number of words with the correct tag, without punctuation."""


def parseval(gold: Sequence[trees.Tree], predicted: Sequence[trees.Tree]) -> ParsevalScores:
    """Score predicted trees against gold trees.

    Args:
      gold: the gold trees, with or without empty elements and function tags.
      predicted: one predicted tree for each gold tree, over the same words.
    """
    if not gold or len(gold) != len(predicted):
        raise UserError(
            f"cannot score {len(predicted)} predicted trees against {len(gold)} gold trees; give "
            "one for each"
        )
    counts = [_compare(*map(_analyse, pair)) for pair in zip(gold, predicted, strict=True)]
    short = [sentence for sentence in counts if sentence.length <= _CUTOFF_LENGTH]
    total, of_short = (_Counts(*map(sum, zip(*group, strict=True))) for group in (counts, short))
    recall, precision, f1 = _bracket_scores(total)
    return ParsevalScores(
        recall=recall,
        precision=precision,
        f1=f1,
        f1_short=_bracket_scores(of_short)[2],
        complete_match=_percent(total.complete, len(counts) - total.skipped - total.error),
        tagging_accuracy=_percent(total.correct_tags, total.words),
        num_sentences=len(counts),
        num_skipped=total.skipped,
        num_errors=total.error,
    )


def _analyse(tree: trees.Tree) -> _Parse:
    all_words, symbols = tree
    word_iterator = iter(all_words)
    words: list[str] = []
    tags: list[str] = []
    brackets: Counter[tuple[str, int, int]] = Counter()
    starts: list[int] = []
    num_empty = 0
    for symbol in symbols:
        if symbol.startswith("("):
            starts.append(len(words))
        elif symbol.startswith(")"):
            label, start = re.split("[-=]", symbol[1:], maxsplit=1)[0], starts.pop()
            if label not in _DELETED and start < len(words):
                brackets[_SAME_LABEL.get(label, label), start, len(words)] += 1
        else:
            word = next(word_iterator)
            num_empty += symbol == trees.EMPTY_ELEMENT
            if symbol not in _DELETED:
                words.append(word)
                tags.append(_SAME_LABEL.get(symbol, symbol))
    return _Parse(words, tags, brackets, len(all_words) - num_empty)


def _compare(gold: _Parse, predicted: _Parse) -> _Counts:
    if not predicted.words:
        return _Counts(gold.length, skipped=1)
    if gold.words != predicted.words:
        return _Counts(gold.length, error=1)
    return _Counts(
        gold.length,
        matched=(gold.brackets & predicted.brackets).total(),
        gold=gold.brackets.total(),
        predicted=predicted.brackets.total(),
        complete=int(gold.brackets == predicted.brackets),
        words=len(gold.words),
        correct_tags=sum(map(operator.eq, gold.tags, predicted.tags)),
    )


def _bracket_scores(total: _Counts) -> tuple[float, float, float]:
    recall = _percent(total.matched, total.gold)
    precision = _percent(total.matched, total.predicted)
    f1 = 2 * precision * recall / (precision + recall) if total.matched else 0.0
    return recall, precision, f1


def _percent(part: int, total: int) -> float:
    return 100 * part / total if total else 0.0
