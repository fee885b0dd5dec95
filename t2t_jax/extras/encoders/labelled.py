"""Make training examples for encoder-only networks: labeled text or images, and masked text.

Masking follows BERT (Devlin et al. 2019, section 3.1 and appendix A.1): of the subwords to predict,
80% become `<mask>`, 10% become random subwords, and 10% stay unchanged.
"""

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Integer, UInt8, UInt64

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Batch, Patches, Sequence
from t2t_jax.config import DataConfig, ImageEncoderConfig, ModelConfig
from t2t_jax.data.rows import BatchShape, Examples, Placement, StepRows, fill_rows
from t2t_jax.data.tokenized import flatten
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

MASK = "<mask>"
"""The vocabulary entry that replaces a masked subword."""
_SPECIAL = PAD_ID, EOS_ID, BOS_ID, UNK_ID
_STREAM = 1 << 33  # a random stream that `data.batching` does not use
_MAX_RANK = np.uint64(2**64 - 1)  # sorts positions that cannot be masked to the end
_MASKED, _RANDOM = 0.8, 0.1


class Labelled(NamedTuple):
    """A sentence with labels at some of its positions."""

    tokens: list[int]
    """The token ids of the sentence, including `<s>` and `</s>`."""
    labels: list[tuple[int, int]]
    """Pairs of a position and the label that the model predicts from it."""


@dataclass(frozen=True)
class LabelledText(Examples):
    """Examples whose sources are sentences and whose targets are labels at some positions."""

    target_positions: Int32[np.ndarray, " target_total"]
    """The source position from which the model predicts each label."""

    @classmethod
    def of(cls, sentences: Sequence_[Labelled], skipped: dict[str, int]) -> "LabelledText":
        """Make examples of sentences. `skipped` counts sentences left out, by reason."""
        labels = [[label for _, label in sentence.labels] for sentence in sentences]
        positions = [position for sentence in sentences for position, _ in sentence.labels]
        sides = [sentence.tokens for sentence in sentences], labels
        sources, targets = (flatten(side, np.int32) for side in sides)
        num_read = len(sentences) + sum(skipped.values())
        return cls(*sources, *targets, skipped, num_read, np.array(positions, np.int32))

    @property
    def sentences(self) -> list[Integer[np.ndarray, " _"]]:
        """Return the token ids of each sentence."""
        return np.split(self.source_tokens, self.source_offsets[1:])[:-1]

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return `shape` with `target_length` at most the labels of `max_examples` sentences."""
        max_labels = max_examples * int(self.target_lengths.max())
        return shape._replace(target_length=min(shape.target_length, max_labels))

    def batch(self, placement: Placement, shape: BatchShape, rows: StepRows) -> Batch:
        """Make a batch whose `targets.positions` are the source positions that predict labels."""
        inputs, targets = super().batch(placement, shape, rows)
        size = shape.rows, shape.target_length
        positions = fill_rows(self.target_positions, self.target_offsets, placement, size).tokens
        return Batch(inputs, targets._replace(positions=positions))


@dataclass(frozen=True)
class MaskedText(Examples):
    """Text sequences in which every training step masks different subwords."""

    mask: int
    """The id of `<mask>`."""
    vocab_size: int
    """The number of vocabulary entries."""
    share: float
    """The fraction of subwords to predict."""
    seed: int = 0
    """The random seed of the masking."""

    @classmethod
    def of(
        cls, text: Examples, data: DataConfig, vocabulary: Vocabulary, seed: int = 0
    ) -> "MaskedText":
        """Make masked examples of tokenized text.

        Args:
          seed: the random seed of the masking; 0 for dev and test.
        """
        sides = (text.target_tokens, text.target_offsets) * 2
        mask, vocab_size = mask_id(vocabulary), len(vocabulary)
        skipped, num_read = text.skipped, text.num_pairs_read
        return cls(*sides, skipped, num_read, mask, vocab_size, data.masked_share, seed)

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the shape of a batch, with targets only for the subwords to predict."""
        return masked_shape(shape, self.share)

    def batch(self, placement: Placement, shape: BatchShape, rows: StepRows) -> Batch:
        """Make a batch; seed, step and row index determine which subwords are masked."""
        length = shape.source_length
        sides = np.asarray(self.target_tokens), np.asarray(self.target_offsets)
        text = fill_rows(*sides, placement, (shape.rows, length))
        random_stream = np.array([self.seed, _STREAM], np.uint64)
        random_words = _random_bits(random_stream, rows, 2 * length)  # [rows, 2 * length]
        rank_bits, token_bits = random_words[:, :length], random_words[:, length:]
        # The subwords to predict, `share` of each row but at least one, have the lowest rank bits.
        is_subword = (text.segments != 0) & ~np.isin(text.tokens, _SPECIAL)
        num_subwords = is_subword.sum(1, keepdims=True)
        counts = np.where(num_subwords, np.maximum(1, np.floor(self.share * num_subwords + 0.5)), 0)
        ranking = np.argsort(np.where(is_subword, rank_bits, _MAX_RANK), axis=1, kind="stable")
        is_predicted = np.zeros_like(is_subword)
        np.put_along_axis(is_predicted, ranking, np.arange(length) < counts, axis=1)
        uniform = (token_bits >> np.uint64(40)) / 2.0**24  # in [0, 1)
        random_ids = (token_bits % np.uint64(self.vocab_size - len(_SPECIAL))).astype(np.int32)
        tokens = np.select(
            [~is_predicted, uniform < _MASKED, uniform < _MASKED + _RANDOM],
            [text.tokens, self.mask, random_ids + len(_SPECIAL)],
            text.tokens,
        ).astype(np.int32)
        # The stable sort puts predicted positions first, in order. Padding follows.
        positions = np.argsort(~is_predicted, axis=1, kind="stable")[:, : shape.target_length]
        is_target = np.take_along_axis(is_predicted, positions, axis=1)
        targets = (np.where(is_target, np.take_along_axis(x, positions, 1), 0) for x in text)
        return Batch(text._replace(tokens=tokens), Sequence(*targets))


def masked_shape(shape: BatchShape, share: float) -> BatchShape:
    """Return the batch shape with targets at a fraction `share` of the source positions."""
    max_targets = max(1, int(share * shape.source_length + 0.5))
    return shape._replace(target_length=-(-max_targets // 8) * 8)  # a multiple of 8


def mask_id(vocabulary: Vocabulary) -> int:
    """Return the id of `<mask>` in a vocabulary."""
    [pieces] = vocabulary.pieces([range(vocabulary.source_size)])
    if MASK not in pieces:
        raise UserError(
            f"the vocabulary has no {MASK} entry; start from a run of masked language modeling, or "
            "let the run build a new vocabulary"
        )
    return pieces.index(MASK)


def with_masks(vocabulary: Vocabulary, mask_token: int, ids: Sequence_[int]) -> list[int]:
    """Return a line's ids without the space before `<mask>` (id `mask_token`), as in training."""
    return [
        token
        for token, next_token in zip(ids, [*ids[1:], PAD_ID], strict=True)
        if next_token != mask_token or vocabulary.spelling(token) != b" "
    ]


@dataclass(frozen=True)
class LabelledImages(LabelledText):
    """Labeled images of one size, as sequences of patches.

    The source tokens are indices of rows in `patches`. Row 0 is the class token and padding.
    """

    patches: UInt8[np.ndarray, "n values"]
    """The pixel values of all patches, image by image, in row-major order."""

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the batch shape in which `max_examples` images fill a row exactly."""
        return BatchShape(shape.rows, max_examples * int(self.source_lengths[0]), max_examples)

    def batch(self, placement: Placement, shape: BatchShape, rows: StepRows) -> Batch:
        """Make a batch of image patches and labels, which do not depend on the training step."""
        (tokens, *segments), targets = super().batch(placement, shape, rows)
        return Batch(Patches(self.patches[tokens], *segments), targets)


def labelled_images(
    images: Sequence_[Any], labels: Sequence_[int], model: ModelConfig, first: int = 1
) -> LabelledImages:
    """Cut images into patches and make examples of them.

    Args:
      images: uint8 arrays `[height, width, channels]`, or `[height, width]` for one channel.
      labels: the label index of each image; -1 for an unknown label.
      model: an `ImageEncoderConfig`.
      first: the number of the first image in error messages.
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
    # [images, patch rows, pixel rows, patch columns, pixel columns, channels]
    grid = np.array(arrays, np.uint8).reshape(-1, n, size, n, size, model.image_channels)
    patch_rows = grid.transpose(0, 1, 3, 2, 4, 5).reshape(-1, model.patch_values)
    patches = np.pad(patch_rows, ((1, 0), (0, 0)))
    # [images, class token and patches]: ids of rows of `patches`, where row 0 is the class token
    tokens = np.pad(np.arange(1, len(patches)).reshape(-1, n * n), ((0, 0), (1, 0)))
    label_ids = np.array(labels, np.int32)
    targets, offsets = label_ids[label_ids >= 0], np.cumsum(np.append(0, label_ids >= 0))
    token_arrays = tokens.ravel(), np.arange(len(images) + 1) * tokens.shape[1], targets, offsets
    return LabelledImages(*token_arrays, {}, len(images), np.zeros_like(targets), patches)


def _random_bits(
    stream: UInt64[np.ndarray, " 2"], rows: StepRows, count: int
) -> UInt64[np.ndarray, "rows count"]:
    """Draw raw random bits for each row of a step, identical in every version of NumPy.

    Args:
      stream: the seed, and an integer that no other use of the seed has.
    """
    bits = [
        np.random.Philox(key=stream, counter=[0, row_number, rows.step, 0]).random_raw(count)
        for row_number in rows.numbers.tolist()
    ]
    return np.array(bits, np.uint64).reshape(len(bits), count)
