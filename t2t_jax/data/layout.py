"""Rows of training batches, sorted into classes: one class per batch shape.

With "bucket" batching, a row is one pair, and its class is the smallest bucket length that holds
both sides. With "pack" batching, a row is as many pairs as fit, and there is one class.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt, UInt8

from t2t_jax.config import DataConfig
from t2t_jax.data.rows import BatchShape, Content, Examples, offsets_of


def bucket_length(length: int) -> int:
    """Round a length in tokens up to a bucket length.

    Bucket lengths are 8, 16, 24, then 4, 5 and 6 times every power of two: 32 40 48 64 80 96 ...
    All are multiples of 8, and from 32 on each is at most a third above the previous one.
    """
    if length <= 32:
        return max(8, _round_up(length, 8))
    octave = 1 << ((length - 1).bit_length() - 3)  # 4 octaves < length <= 8 octaves
    return next(octave * step for step in (5, 6, 8) if octave * step >= length)


def bucket_lengths(max_length: int) -> tuple[int, ...]:
    """Return all bucket lengths up to `max_length`, which is rounded up to a multiple of 8."""
    longest = max(8, _round_up(max_length, 8))
    buckets = [8]
    while buckets[-1] < longest:
        buckets.append(min(bucket_length(buckets[-1] + 1), longest))
    return tuple(buckets)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Layout(NamedTuple):
    """The sentence pairs in each row of training batches, which are the same in every epoch."""

    classes: UInt8[np.ndarray, " rows"]
    """The class of each row."""
    members: Int32[np.ndarray, " pairs"]
    """The indices of the pairs, row by row."""
    starts: Int64[np.ndarray, " starts"]
    """Row r holds `members[starts[r] : starts[r + 1]]`."""


class Form(NamedTuple):
    """The batch shapes of a corpus, and the strategy that lays out its rows."""

    shapes: tuple[BatchShape, ...]
    """The batch shape of each class. A row also fits into the shapes of all later classes."""
    packs: bool
    """Whether a row holds several pairs."""

    def lay_out(self, examples: Examples, rng: np.random.Philox) -> Layout:
        """Assign pairs to rows by their lengths in tokens; packing also uses `rng`."""
        if self.packs:
            return _pack(examples, self.shapes[0], rng)
        lengths = np.maximum(examples.source_lengths, examples.target_lengths)
        buckets = [shape.target_length for shape in self.shapes]
        pairs = np.arange(len(lengths) + 1)
        classes = np.searchsorted(buckets, lengths).astype(np.uint8)
        return Layout(classes, pairs[:-1].astype(np.int32), pairs)


def row_form(content: Content, config: DataConfig) -> Form:
    """Choose the batch shapes of a corpus: one per length bucket, or one for packed rows."""
    lengths = content.source.max_length, content.target.max_length
    longest_length = max(config.max_length, *lengths)
    if config.batching == "pack":
        return Form((_packed_shape(content, longest_length, config),), True)
    all_buckets = np.array(bucket_lengths(longest_length))
    buckets = all_buckets[: 1 + np.searchsorted(all_buckets, max(lengths))].tolist()
    # Text of one language has no sources, and no positions for them.
    has_sources = content.source.total > 0
    return Form(tuple(batch_shape(config, n * has_sources, n) for n in buckets), False)


def _pack(examples: Examples, shape: BatchShape, rng: np.random.Philox) -> Layout:
    # Each round opens as many rows as could hold all remaining tokens without a gap. It deals
    # pairs, longest first, to the rows with the most free positions, one pair each. So the rows
    # fill up evenly, and the last pairs are short. The next round packs the pairs that fit no row.
    # Text of one language has no sources; a capacity of 1 avoids dividing by 0.
    capacity = np.maximum([[shape.source_length], [shape.target_length]], 1)  # [sides, 1]
    sizes = np.stack([examples.source_lengths, examples.target_lengths])  # [sides, pairs]
    gap = 1 - (sizes / capacity).max(axis=0)  # the free share of a row with only this pair
    remaining_pairs = shuffled_within((gap * 0xFFFF).astype(np.uint16), rng)  # longest first
    row_of_pair, num_rows = np.empty(len(remaining_pairs), np.int32), 0
    while len(remaining_pairs):
        num_tokens = sizes[:, remaining_pairs].sum(axis=1, keepdims=True)  # [sides, 1]
        num_new = int(np.ceil((num_tokens / capacity).max()))
        free = np.tile(capacity, num_new)  # [sides, rows]
        unplaced_pairs = []
        for pairs in np.split(remaining_pairs, range(num_new, len(remaining_pairs), num_new)):
            emptiest_rows = np.argsort(-(free / capacity).min(axis=0), kind="stable")[: len(pairs)]
            fits = (sizes[:, pairs] <= free[:, emptiest_rows]).all(axis=0)
            free[:, emptiest_rows[fits]] -= sizes[:, pairs[fits]]
            row_of_pair[pairs[fits]] = num_rows + emptiest_rows[fits]
            unplaced_pairs.append(pairs[~fits])
        remaining_pairs, num_rows = np.concatenate(unplaced_pairs), num_rows + num_new
    starts = offsets_of(np.bincount(row_of_pair))
    members = np.argsort(row_of_pair, kind="stable").astype(np.int32)
    return Layout(np.zeros(num_rows, np.uint8), members, starts)


def _packed_shape(content: Content, longest_length: int, config: DataConfig) -> BatchShape:
    """Choose the shape of a batch of packed rows.

    The side, source or target, with more tokens gets up to twice the length of the other.
    """
    min_length = _round_up(longest_length, 8)
    totals = np.array([content.source.total, content.target.total])
    if not totals[0]:
        return batch_shape(config, 0, min_length)
    step_tokens = np.array([config.source_tokens_per_step, config.target_tokens_per_step])
    lengths = min_length * np.minimum(totals / totals.min(), 2)
    lengths = np.rint(np.minimum(lengths, step_tokens - step_tokens % 8) / 8).astype(int) * 8
    return batch_shape(config, *np.maximum(min_length, lengths).tolist())


def batch_shape(config: DataConfig, source_length: int, target_length: int) -> BatchShape:
    """Return a batch shape with as many rows of these lengths as the tokens per step allow.

    The batch has at least one row; from 8 on, a multiple of 8. Text of one language has source
    length 0.
    """
    # Sentences of dev and test have any length. Meshes and matrix units divide multiples of 8.
    rows = config.target_tokens_per_step // target_length
    if source_length:
        rows = min(config.source_tokens_per_step // source_length, rows)
    return BatchShape(max(1, rows - rows % 8 if rows >= 8 else rows), source_length, target_length)


class Cuts(NamedTuple):
    """The boundaries between batches in a list of rows sorted by class (batch shape)."""

    starts: Int64[np.ndarray, " cuts"]
    """Batch b holds the rows `starts[b]` to `starts[b + 1] - 1`."""
    classes: Int64[np.ndarray, " batches"]
    """The class of each batch: the class of its longest row, or a later one."""


def cut(counts: Integer[np.ndarray, " classes"], form: Form) -> Cuts:
    """Return the cuts that divide rows, sorted by class (batch shape), into full batches.

    The remaining rows of a class join the next class. Only the last batch may have fewer rows.
    """
    starts, classes, start = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    last_class = max(np.flatnonzero(counts).tolist(), default=-1)
    for index, end in enumerate(np.cumsum(counts[: last_class + 1]).tolist()):
        rows = form.shapes[index].rows
        stop = end if index == last_class else end - (end - start) % rows
        starts.append(np.arange(start, stop, rows))
        classes.append(np.full(len(starts[-1]), index))
        start = stop
    return Cuts(np.concatenate([*starts, [start]]), np.concatenate(classes))


def shuffled_within(
    classes: UInt[np.ndarray, " n"], rng: np.random.Philox
) -> Int32[np.ndarray, " n"]:
    """Return the indices of rows sorted by class, in random order within each class."""
    # Raw bits are identical in every version of NumPy, which `Generator.shuffle` does not promise.
    permutation = np.argsort(rng.random_raw(len(classes)), kind="stable").astype(np.int32)
    return permutation[np.argsort(classes[permutation], kind="stable")]
