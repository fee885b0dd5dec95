"""Mixtures of shards, and mixtures by temperature.

A mixture of texts in memory by weight is one corpus (`data.corpus`). Temperature sampling (Devlin
2018; Arivazhagan et al. 2019, "Massively Multilingual Neural Machine Translation in the Wild",
section 4.2) reads a corpus of n pairs in proportion to n^(1/T); a high T reads all equally often.

Each window of an epoch reads the same share of every corpus, so all batches have the same mixture.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from t2t_jax.data.layout import Form, shuffled_within
from t2t_jax.data.parts import CountRows, OnePart, Parts, Portions, RowCounts
from t2t_jax.data.rows import BatchShape, Content, Examples, Lengths, ranges


class Component(NamedTuple):
    """A corpus of a mixture, with the number of times that an epoch reads it."""

    parts: Parts
    copies: int
    """The number of copies of each part in an epoch: the weight, or 1 with a temperature."""
    times: Fraction
    """The number of times that an epoch reads each copy."""


def mixed_parts(
    mixed: Sequence[tuple[Examples | Parts, int]], temperature: float | None, window: int
) -> "MixedParts":
    """Combine corpora into the training examples of a mixture.

    Args:
      mixed: each corpus with its weight, the number of times that an epoch reads it.
      temperature: T reads a corpus of n pairs in proportion to n^(1/T); None uses only the weights.
      window: the number of parts whose examples are mixed.
    """
    corpora = [corpus if isinstance(corpus, Parts) else OnePart(corpus) for corpus, _ in mixed]
    copies = [weight for _, weight in mixed]
    times = [Fraction(1)] * len(corpora)
    if temperature is not None:
        sizes = np.array([corpus.content.num_examples for corpus in corpora], float)
        weights = np.array(copies) * sizes ** (1 / temperature)
        # An epoch has as many examples as the corpora have together.
        rates = sizes.sum() * weights / max(1, weights.sum()) / np.maximum(1, sizes)
        # Rounded, because the last bits of a power differ between machines.
        times = [Fraction(f"{rate:.9g}") for rate in np.where(sizes > 0, rates, 1).tolist()]
        copies = [1] * len(corpora)
    components = tuple(map(Component, corpora, copies, times))
    non_empty = tuple(component for component in components if component.parts.content.num_examples)
    return MixedParts(non_empty, _content(components), window)


def _content(components: Sequence[Component]) -> Content:
    """Combine the statistics of corpora, weighted by how often an epoch reads them."""
    contents = [(corpus.parts.content, corpus.copies * corpus.times) for corpus in components]
    skipped = Counter[str]()
    for content, times in contents:
        skipped.update({key: round(count * times) for key, count in content.skipped.items()})
    return Content(
        round(sum(content.num_pairs_read * times for content, times in contents)),
        dict(skipped),
        round(sum(content.num_examples * times for content, times in contents)),
        Lengths.combined((content.source, times) for content, times in contents),
        Lengths.combined((content.target, times) for content, times in contents),
    )


@dataclass(frozen=True)
class MixedParts:
    """The training examples of a mixture of corpora, in parts that are opened one by one."""

    components: tuple[Component, ...]
    """The corpora that have examples."""
    content: Content
    """The mean statistics of an epoch; `max_length` is the maximum over all examples."""
    max_open: int
    """The approximate number of parts, of corpora with several parts, that are open at a time."""

    same_epochs = False

    @property
    def window(self) -> int:
        """Return an upper bound on the number of parts that are open together."""
        # A window may begin and end within a part. A part that it reads in two random orders
        # counts twice.
        return sum(-(-size // self._num_windows) + 2 for size in self._num_parts)

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

    @property
    def repeats(self) -> Int[np.ndarray, " parts"]:
        """Return how often one pass over each part reads each row."""
        repeats = [max(1, int(component.times)) for component in self.components]
        return np.repeat(np.array(repeats, np.int64), np.diff(self._part_starts))

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

    def windows(self, epoch: int, rng: np.random.Philox) -> list[Portions]:
        """Return the rows that each window of an epoch reads, with equal shares of every corpus."""
        num_copies = [component.copies for component in self.components]
        # Three arrays over the copies of all parts: the part, the index of the copy, the corpus.
        parts = np.repeat(np.arange(len(self)), np.repeat(num_copies, np.diff(self._part_starts)))
        copies = np.arange(len(parts)) - np.searchsorted(parts, parts)
        corpora = np.repeat(np.arange(len(self.components)), self._num_parts)
        order = shuffled_within(np.zeros(len(parts), np.uint8), rng)
        parts, copies, corpora = parts[order], copies[order], corpora[order]
        sizes = np.array(self._num_parts)
        ranks = np.empty_like(parts)  # the position of each part among the parts of its corpus
        ranks[np.argsort(corpora, kind="stable")] = ranges(np.zeros_like(sizes), sizes)
        times = [component.times for component in self.components]
        # Whole repeats are already in the random orders; see `repeats`.
        rates = np.array([float(number / max(1, int(number))) for number in times])[corpora]
        windows, count = [], self._num_windows
        for window in range(count):
            # The share of each part that the epoch has read at the start and the end of the window.
            shares = [
                np.clip(sizes[corpora] * end / count - ranks, 0, 1) for end in (window, window + 1)
            ]
            begin, end = (rates * (epoch + share) for share in shares)
            is_read = shares[1] > shares[0]
            windows.append(Portions(*(array[is_read] for array in (parts, copies, begin, end))))
        return windows

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
            total = component.copies * component.times * component.parts.content.target.total
            scale = float(total) / max(1, sample.sum())
            estimates[: len(sample)] += np.rint(sample * scale).astype(np.int64)
        return estimates
