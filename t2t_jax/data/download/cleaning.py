"""Which sentence pairs are left out of a training set, by the rules of Moses' clean-corpus-n."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Fault: TypeAlias = Literal["empty", "too long", "ratio"]
"""Why a pair is left out: a side is empty, or too long, or much longer than the other."""


@dataclass(frozen=True)
class Cleaning:
    """Limits on the sentences of a pair. Words are what stands between spaces."""

    max_words: int | None = None
    """Most words of each side; None means no limit."""
    max_ratio: float | None = None
    """Most words of one side for each of the other; None means no limit."""

    def fault(self, source: str, target: str) -> Fault | None:
        """Why a pair is left out; None if it is kept.

        Args:
          source: a sentence.
          target: its translation.
        """
        shorter, longer = sorted((len(source.split()), len(target.split())))
        if not shorter:
            return "empty"
        if self.max_words is not None and longer > self.max_words:
            return "too long"
        if self.max_ratio is not None and longer > self.max_ratio * shorter:
            return "ratio"
        return None
