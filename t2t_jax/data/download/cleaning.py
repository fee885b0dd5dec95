"""Rules of Moses' clean-corpus-n, by which a training set leaves out sentence pairs."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Fault: TypeAlias = Literal["empty", "too long", "ratio"]
"""The reason why a pair is left out: a side is empty, too long, or much longer than the other."""


@dataclass(frozen=True)
class Cleaning:
    """Limits on the sentences of a pair, whose words are counted between spaces."""

    max_words: int | None = None
    """The most words of each side; None means no limit."""
    max_ratio: float | None = None
    """The most words of one side for each word of the other; None means no limit."""

    def fault(self, source: str, target: str) -> Fault | None:
        """Return why a sentence is left out with its translation; None if both are kept."""
        words = len(source.split()), len(target.split())
        if not all(words):
            return "empty"
        if self.max_words is not None and max(words) > self.max_words:
            return "too long"
        if self.max_ratio is not None and max(words) > self.max_ratio * min(words):
            return "ratio"
        return None
