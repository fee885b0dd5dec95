"""A mixture of corpora of any size, each read in proportion to its weight or size.

A mixture of texts that fit into memory and have weights is one corpus (`data.corpus`). This module
is for shards, and for shares by temperature (Devlin 2018; Arivazhagan et al. 2019, "Massively
Multilingual Neural Machine Translation in the Wild", section 4.2): with n pairs in a corpus, its
share of the training is proportional to n^(1/T). T = 1 keeps the proportions of corpora, and a high
T reads all equally often.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Integer

from t2t_jax.batch import Batch
from t2t_jax.data.layout import Form
from t2t_jax.data.parts import CountRows, OnePart, Parts, RowCounts
from t2t_jax.data.rows import BatchShape, Chosen, Content, Examples, Lengths

_STREAM = 1 << 35  # apart from those of `data.batching` and others
_SLICE = 100_000
_PRECISION = 10_000


def mixed_parts(
    mixed: Sequence[tuple[Examples | Parts, int]], temperature: float | None, window: int
) -> "MixedParts":
    """Return the parts of a mixture.

    Args:
      mixed: the examples of each corpus, with its weight.
      temperature: T of the shares; None uses the weights.
      window: the number of parts whose examples are mixed.
    """
    corpora = [_parts(one, window) for one, _ in mixed]
    weights = np.array([weight for _, weight in mixed], float)
    if temperature is not None:
        sizes = np.array([one.content.num_examples for one in corpora], float)
        shares = weights * sizes ** (1 / temperature)
        often = sizes.sum() * shares / max(1, shares.sum()) / np.maximum(1, sizes)
        weights = np.where(sizes > 0, often, 1)
    times = (Fraction(one).limit_denominator(_PRECISION) for one in weights.tolist())
    every = tuple(zip(corpora, times, strict=True))
    used = tuple((one, often) for one, often in every if one.content.num_examples)
    return MixedParts(used, _content(every))


def _content(mixed: Sequence[tuple[Parts, Fraction]]) -> Content:
    """Return the combined figures of corpora, each read as often as its number says."""
    every, skipped = [(corpus.content, times) for corpus, times in mixed], Counter[str]()
    for one, times in every:
        skipped.update({name: round(count * times) for name, count in one.skipped.items()})
    return Content(
        round(sum(one.num_pairs_read * times for one, times in every)),
        dict(skipped),
        round(sum(one.num_examples * times for one, times in every)),
        Lengths.joined((one.source, times) for one, times in every),
        Lengths.joined((one.target, times) for one, times in every),
    )


def _parts(examples: Examples | Parts, window: int) -> Parts:
    if isinstance(examples, Parts):
        return examples
    return OnePart(examples) if len(examples) <= _SLICE else Slices(examples, window)


@dataclass(frozen=True)
class MixedParts:
    """The parts of several corpora; see `data.parts.Parts`."""

    mixed: tuple[tuple[Parts, Fraction], ...]
    """The parts of each corpus that has examples, and how often an epoch reads them. An epoch that
    reads 2/3 of a corpus goes on in the next one where it was."""
    content: Content
    """The figures of what an epoch reads on average; the longest is that of all."""

    same_epochs = False

    @property
    def window(self) -> int:
        """Return the number of parts whose examples are mixed."""
        return max((one.window for one, _ in self.mixed), default=1)

    @cached_property
    def _first(self) -> list[int]:
        """Return the index of the first part of each corpus, and the number of all parts."""
        return [0, *np.cumsum([len(one) for one, _ in self.mixed]).tolist()]

    def _find(self, part: int) -> tuple[Parts, int]:
        corpus = int(np.searchsorted(self._first, part, side="right")) - 1
        return self.mixed[corpus][0], part - self._first[corpus]

    def __len__(self) -> int:
        """Return the number of different parts."""
        return self._first[-1]

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""
        corpus, number = self._find(part)
        return corpus.open(number)

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of the arrays of a batch; see `Examples.shape`."""
        return BatchShape(
            *map(max, zip(*(one.shape(shape, most) for one, _ in self.mixed), strict=True))
        )

    def of_epoch(self, seed: int, epoch: int) -> Int[np.ndarray, " parts"]:
        """Return the parts of an epoch: of each corpus, the next ones of its own epochs."""
        found = []
        for corpus, (parts, times) in enumerate(self.mixed):
            first, end = (int(times * len(parts) * one) for one in (epoch, epoch + 1))
            for own in range(first // len(parts), -(-end // len(parts))):
                key = np.array([seed, _STREAM], np.uint64)
                rng = np.random.Philox(key=key, counter=[0, 0, corpus, own])
                order = np.argsort(rng.random_raw(len(parts)), kind="stable")
                bounds = np.clip([first - own * len(parts), end - own * len(parts)], 0, len(parts))
                found.append(self._first[corpus] + order[slice(*bounds)])
        return np.concatenate(found)

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return two numbers on which the packed rows of a part depend."""
        corpus, number = self._find(part)
        return corpus.packing_key(seed, number)

    def row_counts(self, form: Form, count: CountRows) -> RowCounts:
        """Return the number of rows of each part; see `Parts.row_counts`."""

        def counted(first: int, number: int) -> tuple[Int[np.ndarray, " classes"], int]:
            return count(first + number)

        found = [
            corpus.row_counts(form, partial(counted, first))
            for (corpus, _), first in zip(self.mixed, self._first[:-1], strict=True)
        ]
        counts = np.concatenate([one.counts for one in found])
        return RowCounts(counts, max(one.most for one in found))

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Return about how often each id occurs among the targets of an epoch."""
        counts = [corpus.token_counts() for corpus, _ in self.mixed]
        found = np.zeros(max(map(len, counts)), np.int64)
        for (corpus, times), own in zip(self.mixed, counts, strict=True):
            scale = float(times) * corpus.content.target.total / max(1, own.sum())
            found[: len(own)] += np.rint(own * scale).astype(np.int64)
        return found


@dataclass(frozen=True)
class Slices(OnePart):
    """Examples in memory, in parts of some 100,000, so that an epoch may read a share of them."""

    window: int
    """The number of parts whose examples are mixed."""

    def __len__(self) -> int:
        """Return the number of parts."""
        return -(-len(self.examples) // _SLICE)

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""
        return _Slice(self.examples, part * _SLICE, min((part + 1) * _SLICE, len(self.examples)))


@dataclass(frozen=True)
class _Slice:
    """A slice of consecutive examples."""

    whole: Examples
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def source_lengths(self) -> Int32[np.ndarray, " n"]:
        return self.whole.source_lengths[self.start : self.stop]

    @property
    def target_lengths(self) -> Int32[np.ndarray, " n"]:
        return self.whole.target_lengths[self.start : self.stop]

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        shifted = chosen._replace(examples=chosen.examples + self.start)
        return self.whole.batch(shifted, shape, step, numbers)

    def __getattr__(self, name: str) -> Any:
        """Return attributes that the slice shares with the whole, such as `shape`."""
        return getattr(self.whole, name)
