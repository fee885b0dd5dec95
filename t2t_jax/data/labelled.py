"""Sentences with labels: one label for a whole sentence, or one for each of some words."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Integer

from t2t_jax.batch import Batch, Sequence
from t2t_jax.data.rows import BatchShape, Chosen
from t2t_jax.data.tokenized import OfText, TokenizedSplit, flattened, joined


class Labelled(NamedTuple):
    """A sentence, and the labels that are predicted from some of its positions."""

    tokens: list[int]
    """The ids of the sentence's subwords, begin and end included."""
    positions: list[int]
    """The positions of the subwords from which labels are predicted."""
    labels: list[int]
    """The number of the label at each of these positions; -1 for an unknown label."""


@dataclass(frozen=True)
class LabelledText(OfText):
    """Sentences with labels, the sources of `pairs`; its targets are numbers (see `flat`)."""

    num_labels: int
    """The number of different labels."""

    @property
    def source_lengths(self) -> Int32[np.ndarray, " n"]:
        """Return the number of subwords of each sentence."""
        return self.pairs.source_lengths

    @cached_property
    def target_tokens(self) -> Integer[np.ndarray, " total"]:
        """Return the known labels of all sentences, one sentence after the other."""
        labels = np.asarray(self.pairs.target_tokens) % (self.num_labels + 1)
        return labels[labels > 0] - 1

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of a batch, with target positions for the labels of `most` sentences."""
        room = most * int(self.target_lengths.max())
        return shape._replace(target_length=min(shape.target_length, room))

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        """Return the arrays of a batch, in which unknown labels have segment 0, and so no loss."""
        inputs, (both, segments, _) = self.pairs.batch(chosen, shape, step, numbers)
        positions, labels = np.divmod(both, self.num_labels + 1)
        known = labels > 0
        targets = np.where(known, labels - 1, 0), np.where(known, segments, 0)
        return Batch(inputs, Sequence(*targets, np.where(known, positions, 0)))


def flat(
    sentences: Iterable[Labelled], num_labels: int, skipped: dict[str, int], num_read: int
) -> TokenizedSplit:
    """Return sentences as flat arrays, in which one number stands for a label and its position.

    The numbers of sentences left out, by reason, and of those in the corpus are handed on.
    """
    kept = list(sentences)
    sources = joined([flattened([one.tokens for one in kept], np.int32)], np.int32)
    targets = joined([flattened([_numbers(one, num_labels) for one in kept], np.int32)], np.int32)
    return TokenizedSplit(*sources, *targets, skipped, num_read)


def _numbers(one: Labelled, num_labels: int) -> list[int]:
    return [
        position * (num_labels + 1) + label + 1
        for position, label in zip(one.positions, one.labels, strict=True)
    ]
