"""Mixtures of shards. A mixture of texts in memory is one corpus (`data.corpus`).

Each window of an epoch reads the same share of every corpus, so all batches have the same mixture.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from t2t_jax.data.layout import Form, shuffled_within
from t2t_jax.data.parts import CountRows, OnePart, Parts, Portions, RowCounts
from t2t_jax.data.rows import BatchShape, Content, Examples, Lengths, ranges


class Component(NamedTuple):
    """A corpus of a mixture, with its weight."""

    parts: Parts
    copies: int
    """The number of times that an epoch reads each part."""


def mixed_parts(mixed: Sequence[tuple[Examples | Parts, int]], window: int) -> "MixedParts":
    """Combine corpora into the training examples of a mixture.

    Args:
      mixed: each corpus with its weight, the number of times that an epoch reads it.
      window: the number of parts whose examples are mixed.
    """
    components = [
        Component(corpus if isinstance(corpus, Parts) else OnePart(corpus), weight)
        for corpus, weight in mixed
    ]
    non_empty = [component for component in components if component.parts.content.num_examples]
    return MixedParts(tuple(non_empty), _content(components), window)


def _content(components: Sequence[Component]) -> Content:
    contents = [corpus.parts.content for corpus in components for _ in range(corpus.copies)]
    skipped = Counter[str]()
    for content in contents:
        skipped.update(content.skipped)
    return Content(
        sum(content.num_pairs_read for content in contents),
        dict(skipped),
        sum(content.num_examples for content in contents),
        Lengths.combined(content.source for content in contents),
        Lengths.combined(content.target for content in contents),
    )


@dataclass(frozen=True)
class MixedParts:
    """The training examples of a mixture of corpora, in parts that are opened one by one."""

    components: tuple[Component, ...]
    """The corpora that have examples."""
    content: Content
    """The statistics of an epoch."""
    max_open: int
    """The approximate number of parts, of corpora with several parts, that are open at a time."""

    same_epochs = False

    @property
    def window(self) -> int:
        """Return an upper bound on the number of parts that are open together."""
        # A window may begin and end within a part.
        return sum(-(-size // self._num_windows) + 1 for size in self._num_parts)

    @cached_property
    def _num_parts(self) -> list[int]:
        """Return how many parts of each corpus an epoch reads; copies count separately."""
        return [len(component.parts) * component.copies for component in self.components]

    @cached_property
    def _num_windows(self) -> int:
        return max(1, -(-sum(size for size in self._num_parts if size > 1) // self.max_open))

    @cached_property
    def _part_starts(self) -> list[int]:
        """Return the index of the first part of each corpus, then the number of all parts."""
        return [0, *np.cumsum([len(component.parts) for component in self.components]).tolist()]

    def _find(self, part: int) -> tuple[Parts, int]:
        corpus = int(np.searchsorted(self._part_starts, part, side="right")) - 1
        return self.components[corpus].parts, part - self._part_starts[corpus]

    def __len__(self) -> int:
        """Return the number of parts, without copies."""
        return self._part_starts[-1]

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""
        corpus, index = self._find(part)
        return corpus.open(index)

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the array shape of a batch: the maximum over the corpora."""
        shapes = [component.parts.shape(shape, max_examples) for component in self.components]
        return BatchShape(*map(max, zip(*shapes, strict=True)))

    def windows(self, rng: np.random.Philox) -> list[Portions]:
        """Return the rows that each window of an epoch reads, with equal shares of every corpus."""
        num_copies = [component.copies for component in self.components]
        # Three arrays over the copies of all parts: the part, the index of the copy, the corpus.
        parts = np.repeat(np.arange(len(self)), np.repeat(num_copies, np.diff(self._part_starts)))
        copies = np.arange(len(parts)) - np.searchsorted(parts, parts)
        corpora = np.repeat(np.arange(len(self.components)), self._num_parts)
        order = shuffled_within(np.zeros(len(parts), np.uint8), rng)
        parts, copies, corpora = parts[order], copies[order], corpora[order]
        sizes, count = np.array(self._num_parts), self._num_windows
        ranks = np.empty_like(parts)  # the position of each part among the parts of its corpus
        ranks[np.argsort(corpora, kind="stable")] = ranges(np.zeros_like(sizes), sizes)
        # The share of each part that the epoch has read before each window, and at its end.
        shares = (
            np.clip(sizes[corpora] * window / count - ranks, 0, 1) for window in range(count + 1)
        )
        return [
            Portions(*(array[begin < end] for array in (parts, copies, begin, end)))
            for begin, end in pairwise(shares)
        ]

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return what seeds the packing of a part's pairs into rows."""
        corpus, index = self._find(part)
        return corpus.packing_key(seed, index)

    def row_counts(self, form: Form, count: CountRows) -> RowCounts:
        """Count the rows of each part and class."""

        def count_part(first_part: int, index: int) -> tuple[Int[np.ndarray, " classes"], int]:
            return count(first_part + index)

        corpus_counts = [
            component.parts.row_counts(form, partial(count_part, first_part))
            for component, first_part in zip(self.components, self._part_starts[:-1], strict=True)
        ]
        counts = np.concatenate([corpus.counts for corpus in corpus_counts])
        return RowCounts(counts, max(corpus.max_examples for corpus in corpus_counts))

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Estimate how often each id occurs among the targets of an epoch."""
        counts = [component.parts.token_counts() for component in self.components]
        estimates = np.zeros(max(map(len, counts)), np.int64)
        for component, sample in zip(self.components, counts, strict=True):
            scale = component.copies * component.parts.content.target.total / max(1, sample.sum())
            estimates[: len(sample)] += np.rint(sample * scale).astype(np.int64)
        return estimates
