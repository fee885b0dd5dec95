"""Sentences with labels, of the whole or of some of their words."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Integer

from t2t_jax.batch import Batch, Sequence
from t2t_jax.data.rows import BatchShape, Chosen
from t2t_jax.data.tokenized import TokenizedSplit


class Labelled(NamedTuple):
    """A sentence, and what is predicted of it."""

    tokens: list[int]
    """Ids of its subwords, begin and end included."""
    positions: list[int]
    """The positions of the subwords from which labels are predicted."""
    labels: list[int]
    """The number of the label at each of them; -1 for one that is not known."""


@dataclass(frozen=True)
class LabelledText:
    """Sentences with labels, whose arrays may be memory-mapped."""

    pairs: TokenizedSplit
    """Sentences, and for targets numbers that stand for a label and a position: see `flat`."""
    num_labels: int
    """How many labels there are."""

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.pairs)

    @property
    def skipped(self) -> dict[str, int]:
        """See `Examples.skipped`."""
        return self.pairs.skipped

    @property
    def num_pairs_read(self) -> int:
        """Number of sentences in the corpus."""
        return self.pairs.num_pairs_read

    @property
    def source_lengths(self) -> Int32[np.ndarray, " n"]:
        """Number of subwords of each sentence."""
        return self.pairs.source_lengths

    @property
    def target_lengths(self) -> Int32[np.ndarray, " n"]:
        """Number of labels of each sentence."""
        return self.pairs.target_lengths

    @cached_property
    def target_tokens(self) -> Integer[np.ndarray, " total"]:
        """The labels of all sentences that are known."""
        labels = np.asarray(self.pairs.target_tokens) % (self.num_labels + 1)
        return labels[labels > 0] - 1

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """See `Examples.shape`; there is room for the labels of so many sentences."""
        room = most * int(self.target_lengths.max())
        return shape._replace(target_length=min(shape.target_length, room))

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        """See `Examples.batch`; what is not known has no segment, and no loss."""
        inputs, (both, segments, _) = self.pairs.batch(chosen, shape, step, numbers)
        positions, labels = np.divmod(both, self.num_labels + 1)
        known = labels > 0
        targets = np.where(known, labels - 1, 0), np.where(known, segments, 0)
        return Batch(inputs, Sequence(*targets, np.where(known, positions, 0)))


def flat(
    sentences: Iterable[Labelled], num_labels: int, skipped: dict[str, int], num_read: int
) -> TokenizedSplit:
    """Sentences as flat arrays, in which a label and its position are one number.

    Args:
      sentences: the sentences.
      num_labels: how many labels there are.
      skipped: how many sentences were left out, by reason.
      num_read: how many there were.
    """
    kept = list(sentences)
    sides = [one.tokens for one in kept], [_joined(one, num_labels) for one in kept]
    arrays: list[Any] = []
    for side in sides:
        lengths = [0, *map(len, side)]
        arrays += [
            np.fromiter(chain.from_iterable(side), np.int32),
            np.cumsum(lengths, dtype=np.int64),
        ]
    return TokenizedSplit(arrays[0], arrays[1], arrays[2], arrays[3], skipped, num_read)


def _joined(one: Labelled, num_labels: int) -> list[int]:
    return [
        position * (num_labels + 1) + label + 1
        for position, label in zip(one.positions, one.labels, strict=True)
    ]
