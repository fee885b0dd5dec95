"""A mixture of corpora of any size, each read in proportion to its weight or size.

A mixture of texts that fit into memory and have weights is one corpus (`data.corpus`). This module
is for shards, and for shares by temperature (Devlin 2018; Arivazhagan et al. 2019, "Massively
Multilingual Neural Machine Translation in the Wild", section 4.2): with n pairs in a corpus, its
share of the training is proportional to n^(1/T). T = 1 keeps the proportions of corpora, and a high
T reads all equally often.

Each window of an epoch reads the same share of every corpus, so the shares hold in every batch.
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
    """A corpus of a mixture."""

    parts: Parts
    copies: int
    """The number of copies of each part in an epoch: the weight, or 1 with a temperature."""
    times: Fraction
    """How often an epoch reads each copy."""


def mixed_parts(
    mixed: Sequence[tuple[Examples | Parts, int]], temperature: float | None, window: int
) -> "MixedParts":
    """Return the parts of a mixture.

    Args:
      temperature: T of the shares; None uses the weights.
      window: the number of parts whose examples are mixed.
    """
    corpora = [one if isinstance(one, Parts) else OnePart(one) for one, _ in mixed]
    copies = [weight for _, weight in mixed]
    times = [Fraction(1)] * len(corpora)
    if temperature is not None:
        sizes = np.array([one.content.num_examples for one in corpora], float)
        shares = np.array(copies) * sizes ** (1 / temperature)
        often = sizes.sum() * shares / max(1, shares.sum()) / np.maximum(1, sizes)
        # Rounded, because the last bits of a power differ between machines.
        times = [Fraction(f"{one:.9g}") for one in np.where(sizes > 0, often, 1).tolist()]
        copies = [1] * len(corpora)
    every = tuple(map(Component, corpora, copies, times))
    used = tuple(component for component in every if component.parts.content.num_examples)
    return MixedParts(used, _content(every), window)


def _content(mixed: Sequence[Component]) -> Content:
    """Return the combined figures of corpora, each read as often as an epoch does."""
    every = [(component.parts.content, component.copies * component.times) for component in mixed]
    skipped = Counter[str]()
    for one, times in every:
        skipped.update({name: round(count * times) for name, count in one.skipped.items()})
    return Content(
        round(sum(one.num_pairs_read * times for one, times in every)),
        dict(skipped),
        round(sum(one.num_examples * times for one, times in every)),
        Lengths.joined((one.source, times) for one, times in every),
        Lengths.joined((one.target, times) for one, times in every),
    )


@dataclass(frozen=True)
class MixedParts:
    """The parts of several corpora; see `data.parts.Parts`."""

    mixed: tuple[Component, ...]
    """The corpora that have examples."""
    content: Content
    """The figures of what an epoch reads on average; the longest is that of all."""
    most_open: int
    """About how many parts are open at a time, of corpora that have several."""

    same_epochs = False

    @property
    def window(self) -> int:
        """Return an upper bound on the parts that a window reads.

        A part that a window reads in two random orders counts twice.
        """
        # A window may begin and end within a part, and reads it less than twice in between.
        return sum(-(-size // self._num_windows) + 2 for size in self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        """Return the number of parts that an epoch reads of each corpus, copies included."""
        return [len(component.parts) * component.copies for component in self.mixed]

    @cached_property
    def _num_windows(self) -> int:
        return max(1, -(-sum(size for size in self._sizes if size > 1) // self.most_open))

    @cached_property
    def _first(self) -> list[int]:
        """Return the index of the first part of each corpus, and the number of all parts."""
        return [0, *np.cumsum([len(component.parts) for component in self.mixed]).tolist()]

    @property
    def repeats(self) -> Int[np.ndarray, " parts"]:
        """See `Parts.repeats`."""
        repeats = [max(1, int(component.times)) for component in self.mixed]
        return np.repeat(np.array(repeats, np.int64), np.diff(self._first))

    def _find(self, part: int) -> tuple[Parts, int]:
        corpus = int(np.searchsorted(self._first, part, side="right")) - 1
        return self.mixed[corpus].parts, part - self._first[corpus]

    def __len__(self) -> int:
        """Return the number of different parts."""
        return self._first[-1]

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""
        corpus, number = self._find(part)
        return corpus.open(number)

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of the arrays of a batch; see `Examples.shape`."""
        shapes = [component.parts.shape(shape, most) for component in self.mixed]
        return BatchShape(*map(max, zip(*shapes, strict=True)))

    def windows(self, epoch: int, rng: np.random.Philox) -> list[Portions]:
        """Return the windows of an epoch, each with an equal share of every corpus."""
        num_copies = [component.copies for component in self.mixed]
        parts = np.repeat(np.arange(len(self)), np.repeat(num_copies, np.diff(self._first)))
        copies = np.arange(len(parts)) - np.searchsorted(parts, parts)
        corpora = np.repeat(np.arange(len(self.mixed)), self._sizes)
        order = shuffled_within(np.zeros(len(parts), np.uint8), rng)
        parts, copies, corpora = parts[order], copies[order], corpora[order]
        sizes = np.array(self._sizes)
        ranks = np.empty_like(parts)  # of each part among those of its corpus
        ranks[np.argsort(corpora, kind="stable")] = ranges(np.zeros_like(sizes), sizes)
        reads = [component.times for component in self.mixed]
        rates = np.array([float(times / max(1, int(times))) for times in reads])[corpora]
        windows, count = [], self._num_windows
        for number in range(count):
            before, after = (
                np.clip(sizes[corpora] * end / count - ranks, 0, 1) for end in (number, number + 1)
            )
            begin, end = (rates * (epoch + share) for share in (before, after))
            is_read = after > before
            windows.append(Portions(*(x[is_read] for x in (parts, copies, begin, end))))
        return windows

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """See `Parts.packing_key`."""
        corpus, number = self._find(part)
        return corpus.packing_key(seed, number)

    def row_counts(self, form: Form, count: CountRows) -> RowCounts:
        """Return the number of rows of each part; see `Parts.row_counts`."""

        def counted(first: int, number: int) -> tuple[Int[np.ndarray, " classes"], int]:
            return count(first + number)

        found = [
            component.parts.row_counts(form, partial(counted, first))
            for component, first in zip(self.mixed, self._first[:-1], strict=True)
        ]
        counts = np.concatenate([one.counts for one in found])
        return RowCounts(counts, max(one.most for one in found))

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Return about how often each id occurs among the targets of an epoch."""
        counts = [component.parts.token_counts() for component in self.mixed]
        found = np.zeros(max(map(len, counts)), np.int64)
        for component, own in zip(self.mixed, counts, strict=True):
            total = component.copies * component.times * component.parts.content.target.total
            found[: len(own)] += np.rint(own * (float(total) / max(1, own.sum()))).astype(np.int64)
        return found
