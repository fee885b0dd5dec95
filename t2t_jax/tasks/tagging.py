"""Tagging, which predicts a label for each word of a sentence, such as its part of speech."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from t2t_jax.tasks.labelled_text import LabellingOfText
from t2t_jax.tasks.task import Task


class Tagging(LabellingOfText):
    """The task of sentences with a tag per word: `train.txt` beside `train.tags`, or trees."""

    model = "a tagger"
    what = "words"

    def positions(self, words: Sequence[Sequence[int]]) -> Iterator[int]:
        """Yield the position of each word's first subword (Devlin et al. 2019, section 5.3)."""
        ends = accumulate(map(len, words), initial=1)
        return (begin for begin, _ in zip(ends, words, strict=False))

    def labels_of(self, target: str) -> list[str]:
        """Return the tags of a line of the corpus, one for each word."""
        return target.split()


TASK: Task = Tagging()
"""The task of tagging words."""
