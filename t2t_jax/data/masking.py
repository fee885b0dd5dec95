"""Text with hidden subwords, for masked language modelling.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.1 and
appendix A.1: of the subwords that are chosen, 80% are hidden behind `<mask>`, 10% become random
subwords, and 10% stay as they are.
"""

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Integer, UInt64

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Batch, Sequence
from t2t_jax.config import DataConfig
from t2t_jax.data.rows import BatchShape, Chosen, filled, random_bits
from t2t_jax.data.tokenized import OfText
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

MASK = "<mask>"
"""The entry of a vocabulary that hides a subword."""
_MASKS = MASK, "[MASK]"
_SPECIAL = PAD_ID, EOS_ID, BOS_ID, UNK_ID
_STREAM = 1 << 33  # apart from those of `data.batching` and `data.images`
_LATER = np.uint64(2**64 - 1)
_HIDDEN, _OTHER = 0.8, 0.1


class Masking(NamedTuple):
    """The settings by which text is masked."""

    mask_id: int
    """The id that hides a subword."""
    vocab_size: int
    """The number of entries of the vocabulary."""
    begins_word: Bool[np.ndarray, " vocab"]
    """Whether each entry of the vocabulary begins a word."""
    share: float
    """The share of the subwords that are predicted."""
    whole_words: bool
    """Whether a word is predicted with all of its subwords or not at all."""


def masking_of(vocabulary: Vocabulary, config: DataConfig) -> Masking:
    """Return the settings by which the text of a run with a vocabulary is masked.

    Raises:
      UserError: the vocabulary has no mask.
    """
    size = len(vocabulary)
    spellings = [vocabulary.spelling(token) for token in range(size)]
    begins = np.array([spelling.startswith(b" ") for spelling in spellings])
    mask = mask_id(vocabulary)
    return Masking(mask, size, begins, config.masked_share, config.whole_words)


def mask_id(vocabulary: Vocabulary) -> int:
    """Return the id that hides a subword.

    Raises:
      UserError: the vocabulary has no mask.
    """
    [pieces] = vocabulary.pieces([range(vocabulary.source_size)])
    for name in _MASKS:
        if name in pieces:
            return pieces.index(name)
    raise UserError(
        f"the vocabulary has no {MASK}, which hides a subword; start from a run of masked language "
        "modelling, or let the run learn a vocabulary of its own"
    )


def masked_room(share: float, length: int) -> int:
    """Return the most subwords that are predicted of a row, rounded up to a multiple of 8."""
    return -(-max(1, int(share * length + 0.5)) // 8) * 8


def with_masks(vocabulary: Vocabulary, mask: int, ids: Sequence_[int]) -> list[int]:
    """Return the subwords of a line without the spaces before its masks, as training has them.

    A vocabulary spells the space before a mask as a subword of its own; a mask that hides a word
    stands for its space too. `mask_id` gives the id of a mask.
    """
    following = [*ids[1:], PAD_ID]
    return [
        token
        for token, after in zip(ids, following, strict=True)
        if after != mask or vocabulary.spelling(token) != b" "
    ]


@dataclass(frozen=True)
class MaskedText(OfText):
    """Sequences of text, the targets of `pairs`, in which each step hides other subwords."""

    masking: Masking
    """The settings by which the sequences are masked."""
    seed: int = 0
    """The seed of the choice of subwords."""

    @property
    def source_lengths(self) -> Int32[np.ndarray, " n"]:
        """Return the number of subwords of each sequence."""
        return self.pairs.target_lengths

    @property
    def target_tokens(self) -> Integer[np.ndarray, " total"]:
        """Return the subwords of all sequences."""
        return self.pairs.target_tokens

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of a batch's arrays, with target positions for chosen subwords alone."""
        return shape._replace(target_length=masked_room(self.masking.share, shape.source_length))

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        """Return the arrays of a batch; which subwords are hidden depends on step and row alone."""
        text = self.pairs
        tokens, offsets = np.asarray(text.target_tokens), np.asarray(text.target_offsets)
        whole = filled(tokens, offsets, chosen, (shape.rows, shape.source_length))
        stream = np.array([self.seed, _STREAM], np.uint64)
        raw = random_bits(stream, numbers, step, 2 * shape.source_length)
        return masked(whole, raw, self.masking, shape.target_length)


def masked(
    whole: Sequence, raw: UInt64[np.ndarray, "rows double"], masking: Masking, room: int
) -> Batch:
    """Hide some subwords of each row.

    Args:
      whole: rows of text, `[rows, length]`.
      raw: random numbers, two for each place.
      room: the most subwords of a row that are chosen.

    Returns:
      The text with some subwords replaced, and the subwords that are to be predicted.
    """
    length = whole.tokens.shape[1]
    order, fate = raw[:, :length], raw[:, length:]
    picked = _picked(whole, order, masking)
    share = (fate >> np.uint64(40)) / 2.0**24
    others = (fate % np.uint64(masking.vocab_size - len(_SPECIAL))).astype(np.int32)
    shown = np.select(
        [~picked, share < _HIDDEN, share < _HIDDEN + _OTHER],
        [whole.tokens, masking.mask_id, others + len(_SPECIAL)],
        whole.tokens,
    ).astype(np.int32)
    places = np.argsort(~picked, axis=1, kind="stable")[:, :room]
    there = np.take_along_axis(picked, places, axis=1)
    targets = (np.where(there, np.take_along_axis(x, places, axis=1), 0) for x in whole)
    return Batch(whole._replace(tokens=shown), Sequence(*targets))


def _picked(
    whole: Sequence, order: UInt64[np.ndarray, "rows length"], masking: Masking
) -> Bool[np.ndarray, "rows length"]:
    """Pick the share of each row's subwords, or whole words, whose random numbers are lowest."""
    length = whole.tokens.shape[1]
    candidate = (whole.segments != 0) & ~np.isin(whole.tokens, _SPECIAL)
    count = candidate.sum(1, keepdims=True)
    budget = np.where(count, np.maximum(1, np.floor(masking.share * count + 0.5)), 0)
    ends = np.broadcast_to(np.arange(length), candidate.shape)
    if masking.whole_words:
        before = np.pad(candidate, ((0, 0), (1, 0)))[:, :-1]
        begins = masking.begins_word[whole.tokens] | ~before | ~candidate
        first = np.maximum.accumulate(np.where(begins, ends, 0), axis=1)
        order = np.take_along_axis(order, first, axis=1)
        # The subwords of a word have equal numbers, and stay in order.
        sizes = np.take_along_axis(_counts(first), first, axis=1)
        candidate = candidate & (sizes <= budget)
    order = np.where(candidate, order, _LATER)
    sequence = np.argsort(order, axis=1, kind="stable")
    if masking.whole_words:
        words = np.take_along_axis(first, sequence, axis=1)
        is_last = np.pad(words[:, 1:] != words[:, :-1], ((0, 0), (0, 1)), constant_values=True)
        later = np.where(is_last, ends, length)
        ends = np.minimum.accumulate(later[:, ::-1], axis=1)[:, ::-1]
    picked = np.zeros_like(candidate)
    np.put_along_axis(picked, sequence, ends < budget, axis=1)
    return picked & candidate


def _counts(
    words: Integer[np.ndarray, "rows length"],
) -> Integer[np.ndarray, "rows length"]:
    """Return how often each number below the row's length occurs in a row."""
    rows, length = words.shape
    flat = words + length * np.arange(rows)[:, None]
    return np.bincount(flat.ravel(), minlength=rows * length).reshape(rows, length)
