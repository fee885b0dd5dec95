"""Examples of encoder-only networks: text or images with labels, and text with hidden subwords.

Hidden subwords follow Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers",
section 3.1 and appendix A.1: of the subwords that are chosen, 80% are hidden behind `<mask>`, 10%
become random subwords, and 10% stay as they are.
"""

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Integer, UInt8

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Batch, Patches, Sequence
from t2t_jax.config import DataConfig, ImageEncoderConfig, ModelConfig
from t2t_jax.data.rows import BatchShape, Chosen, Examples, StepRows, filled, random_bits
from t2t_jax.data.tokenized import flattened
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

MASK = "<mask>"
"""The entry of a vocabulary that hides a subword."""
_SPECIAL = PAD_ID, EOS_ID, BOS_ID, UNK_ID
_STREAM = 1 << 33  # apart from that of `data.batching`
_LATER = np.uint64(2**64 - 1)
_HIDDEN, _OTHER = 0.8, 0.1


class Labelled(NamedTuple):
    """A sentence, and the labels that are predicted from some of its positions."""

    tokens: list[int]
    """The ids of the sentence's subwords, begin and end included."""
    labels: list[tuple[int, int]]
    """The positions of the subwords from which labels are predicted, each with its label."""


@dataclass(frozen=True)
class LabelledText(Examples):
    """Sentences, the sources, with labels at some positions, the targets."""

    target_positions: Int32[np.ndarray, " target_total"]
    """The position of the sentence from which each label is predicted."""

    @classmethod
    def of(cls, sentences: Sequence_[Labelled], skipped: dict[str, int]) -> "LabelledText":
        """Make the examples of sentences; `skipped` counts those left out, by reason."""
        labels = [[label for _, label in sentence.labels] for sentence in sentences]
        positions = [position for sentence in sentences for position, _ in sentence.labels]
        sides = [sentence.tokens for sentence in sentences], labels
        sources, targets = (flattened(side, np.int32) for side in sides)
        num_read = len(sentences) + sum(skipped.values())
        return cls(*sources, *targets, skipped, num_read, np.array(positions, np.int32))

    @property
    def sentences(self) -> list[Integer[np.ndarray, " _"]]:
        """Return the ids of each sentence's subwords."""
        return np.split(self.source_tokens, self.source_offsets[1:])[:-1]

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the shape of a batch, with target positions for the labels of its sentences."""
        room = max_examples * int(self.target_lengths.max())
        return shape._replace(target_length=min(shape.target_length, room))

    def batch(self, chosen: Chosen, shape: BatchShape, rows: StepRows) -> Batch:
        """Return the arrays of a batch, whose targets have the positions of the source."""
        inputs, targets = super().batch(chosen, shape, rows)
        size = shape.rows, shape.target_length
        positions = filled(self.target_positions, self.target_offsets, chosen, size).tokens
        return Batch(inputs, targets._replace(positions=positions))


@dataclass(frozen=True)
class MaskedText(Examples):
    """Sequences of text, both sources and targets, in which each step hides other subwords."""

    mask: int
    """The id that hides a subword."""
    vocab_size: int
    """The number of entries of the vocabulary."""
    share: float
    """The share of the subwords that are predicted."""
    seed: int = 0
    """The seed of the choice of subwords."""

    @classmethod
    def of(
        cls, text: Examples, data: DataConfig, vocabulary: Vocabulary, seed: int = 0
    ) -> "MaskedText":
        """Make the examples of a run's text.

        In training the seed is that of the order of the data, because both decide what a step
        reads. The seed of dev and test is 0.
        """
        sides = (text.target_tokens, text.target_offsets) * 2
        mask, size = mask_id(vocabulary), len(vocabulary)
        counts = text.skipped, text.num_pairs_read
        return cls(*sides, *counts, mask, size, data.masked_share, seed)

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the shape of a batch's arrays, with target positions for chosen subwords only."""
        return masked_shape(shape, self.share)

    def batch(self, chosen: Chosen, shape: BatchShape, rows: StepRows) -> Batch:
        """Return a batch; seed, step and row decide which subwords are hidden."""
        length = shape.source_length
        sides = np.asarray(self.target_tokens), np.asarray(self.target_offsets)
        text = filled(*sides, chosen, (shape.rows, length))
        stream = np.array([self.seed, _STREAM], np.uint64)
        raw = random_bits(stream, rows, 2 * length)  # [rows, 2 * length]
        order, fate = raw[:, :length], raw[:, length:]
        # The share of each row's subwords whose numbers in `order` are lowest, at least one.
        candidate = (text.segments != 0) & ~np.isin(text.tokens, _SPECIAL)
        count = candidate.sum(1, keepdims=True)
        most = np.where(count, np.maximum(1, np.floor(self.share * count + 0.5)), 0)
        ranking = np.argsort(np.where(candidate, order, _LATER), axis=1, kind="stable")
        picked = np.zeros_like(candidate)
        np.put_along_axis(picked, ranking, np.arange(length) < most, axis=1)
        chance = (fate >> np.uint64(40)) / 2.0**24  # uniform in [0, 1)
        others = (fate % np.uint64(self.vocab_size - len(_SPECIAL))).astype(np.int32)
        shown = np.select(
            [~picked, chance < _HIDDEN, chance < _HIDDEN + _OTHER],
            [text.tokens, self.mask, others + len(_SPECIAL)],
            text.tokens,
        ).astype(np.int32)
        positions = np.argsort(~picked, axis=1, kind="stable")[:, : shape.target_length]
        is_target = np.take_along_axis(picked, positions, axis=1)
        targets = (np.where(is_target, np.take_along_axis(x, positions, 1), 0) for x in text)
        return Batch(text._replace(tokens=shown), Sequence(*targets))


def masked_shape(shape: BatchShape, share: float) -> BatchShape:
    """Return a shape with targets for the most subwords that are predicted of a row.

    Their number is rounded up to a multiple of 8.
    """
    most = max(1, int(share * shape.source_length + 0.5))
    return shape._replace(target_length=-(-most // 8) * 8)


def mask_id(vocabulary: Vocabulary) -> int:
    """Return the id that hides a subword."""
    [pieces] = vocabulary.pieces([range(vocabulary.source_size)])
    if MASK not in pieces:
        raise UserError(
            f"the vocabulary has no {MASK}, which hides a subword; start from a run of masked "
            "language modelling, or let the run learn a vocabulary of its own"
        )
    return pieces.index(MASK)


def with_masks(vocabulary: Vocabulary, mask: int, ids: Sequence_[int]) -> list[int]:
    """Return the subwords of a line without the spaces before its masks, as training has them.

    A vocabulary spells the space before a mask as a separate subword; a mask that hides a word
    stands for its space too. `mask_id` gives the id of a mask.
    """
    return [
        token
        for token, following in zip(ids, [*ids[1:], PAD_ID], strict=True)
        if following != mask or vocabulary.spelling(token) != b" "
    ]


@dataclass(frozen=True)
class LabelledImages(LabelledText):
    """Images of one size with a label each, as sentences of patches.

    The tokens of sources are rows of `patches`; row 0 is the class token and padding.
    """

    patches: UInt8[np.ndarray, "n values"]
    """The numbers of all patches, image by image and from left to right."""

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the shape of a batch, in which a row of `max_examples` images has no padding."""
        return BatchShape(shape.rows, max_examples * int(self.source_lengths[0]), max_examples)

    def batch(self, chosen: Chosen, shape: BatchShape, rows: StepRows) -> Batch:
        """Return the arrays of a batch, which depend on neither step nor row."""
        (tokens, *segments), targets = super().batch(chosen, shape, rows)
        return Batch(Patches(self.patches[tokens], *segments), targets)


def labelled_images(
    images: Sequence_[Any], labels: Sequence_[int], model: ModelConfig, first: int = 1
) -> LabelledImages:
    """Make examples of images.

    Args:
      images: arrays of `uint8`, `[height, width, channels]`, or `[height, width]` if grey.
      labels: the number of each image's label; -1 for an unknown label.
      model: the section `model` of a config, an `ImageEncoderConfig`.
      first: number of the first image, by which errors name images.
    """
    assert isinstance(model, ImageEncoderConfig)
    shape = model.image_size, model.image_size, model.image_channels
    arrays = [np.asarray(x)[:, :, None] if np.ndim(x) == 2 else np.asarray(x) for x in images]
    for number, array in enumerate(arrays, first):
        if array.dtype != np.uint8 or array.shape != shape:
            raise UserError(
                f"image {number} is an array {list(array.shape)} of {array.dtype}, but the model "
                f"reads images {list(shape)} of uint8 (model.image_size and model.image_channels); "
                "convert it, or set these fields"
            )
    n, size = model.image_size // model.patch_size, model.patch_size
    # [images, rows of patches, rows, columns of patches, columns, channels]
    cut = np.array(arrays, np.uint8).reshape(-1, n, size, n, size, model.image_channels)
    rows = cut.transpose(0, 1, 3, 2, 4, 5).reshape(-1, model.patch_values)
    patches = np.pad(rows, ((1, 0), (0, 0)))
    tokens = np.pad(np.arange(1, len(patches)).reshape(-1, n * n), ((0, 0), (1, 0)))
    known = np.array(labels, np.int32)
    targets, offsets = known[known >= 0], np.cumsum(np.append(0, known >= 0))
    sides = tokens.ravel(), np.arange(len(images) + 1) * tokens.shape[1], targets, offsets
    return LabelledImages(*sides, {}, len(images), np.zeros_like(targets), patches)
