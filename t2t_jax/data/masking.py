"""Text with hidden subwords, for masked language modelling.

Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.1 and
appendix A.1: of the subwords that are chosen, 80% are hidden behind `<mask>`, 10% become random
subwords, and 10% stay as they are.
"""

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32, Integer, UInt64

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Batch, Sequence
from t2t_jax.data.rows import BatchShape, Chosen, filled, random_bits
from t2t_jax.data.tokenized import OfText
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

MASK = "<mask>"
"""The entry of a vocabulary that hides a subword."""
_MASKS = MASK, "[MASK]"
_SPECIAL = PAD_ID, EOS_ID, BOS_ID, UNK_ID
_STREAM = 1 << 33  # apart from that of `data.batching`
_LATER = np.uint64(2**64 - 1)
_HIDDEN, _OTHER = 0.8, 0.1


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

    mask: int
    """The id that hides a subword."""
    vocab_size: int
    """The number of entries of the vocabulary."""
    share: float
    """The share of the subwords that are predicted."""
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
        """Return the shape of a batch's arrays, with target positions for chosen subwords only."""
        return shape._replace(target_length=masked_room(self.share, shape.source_length))

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        """Return a batch; seed, step and row decide which subwords are hidden."""
        text, length = self.pairs, shape.source_length
        tokens, offsets = np.asarray(text.target_tokens), np.asarray(text.target_offsets)
        original = filled(tokens, offsets, chosen, (shape.rows, length))
        stream = np.array([self.seed, _STREAM], np.uint64)
        raw = random_bits(stream, numbers, step, 2 * length)  # [rows, 2 * length]
        order, fate = raw[:, :length], raw[:, length:]
        picked = _lowest(original, order, self.share)
        share = (fate >> np.uint64(40)) / 2.0**24  # uniform in [0, 1)
        others = (fate % np.uint64(self.vocab_size - len(_SPECIAL))).astype(np.int32)
        shown = np.select(
            [~picked, share < _HIDDEN, share < _HIDDEN + _OTHER],
            [original.tokens, self.mask, others + len(_SPECIAL)],
            original.tokens,
        ).astype(np.int32)
        positions = np.argsort(~picked, axis=1, kind="stable")[:, : shape.target_length]
        is_target = np.take_along_axis(picked, positions, axis=1)
        targets = (np.where(is_target, np.take_along_axis(x, positions, 1), 0) for x in original)
        return Batch(original._replace(tokens=shown), Sequence(*targets))


def _lowest(
    text: Sequence, order: UInt64[np.ndarray, "rows length"], share: float
) -> Bool[np.ndarray, "rows length"]:
    """Pick the share of each row's subwords whose random numbers in `order` are lowest."""
    candidate = (text.segments != 0) & ~np.isin(text.tokens, _SPECIAL)
    count = candidate.sum(1, keepdims=True)
    budget = np.where(count, np.maximum(1, np.floor(share * count + 0.5)), 0)
    ranking = np.argsort(np.where(candidate, order, _LATER), axis=1, kind="stable")
    picked = np.zeros_like(candidate)
    np.put_along_axis(picked, ranking, np.arange(candidate.shape[1]) < budget, axis=1)
    return picked & candidate
