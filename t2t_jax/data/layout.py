"""The rows of training batches, and their classes: one class per batch shape.

Both strategies make rows and sort them into classes. In "bucket", a row is one pair, and its class
is the rung of the length ladder that holds both sides. In "pack", a row is as many pairs as fit,
and there is one class.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt, UInt8

from t2t_jax.config import DataConfig
from t2t_jax.data.rows import BatchShape, Content, offsets_of


def ladder_length(length: int) -> int:
    """Return the lowest rung of the length ladder that holds `length` tokens.

    The rungs are 8, 16, 24, then 4, 5 and 6 times every power of two: 32 40 48 64 80 96 128 ...
    All are multiples of 8, and from 32 on each is at most a third above the one before it, so that
    few shapes are compiled and little is padded.
    """
    if length <= 32:
        return max(8, _round_up(length, 8))
    octave = 1 << ((length - 1).bit_length() - 3)  # 4 octaves < length <= 8 octaves
    return next(octave * step for step in (5, 6, 8) if octave * step >= length)


def length_ladder(max_length: int) -> tuple[int, ...]:
    """Return all rungs up to the last, which is `max_length` rounded up to a multiple of 8."""
    last = max(8, _round_up(max_length, 8))
    rungs = [8]
    while rungs[-1] < last:
        rungs.append(min(ladder_length(rungs[-1] + 1), last))
    return tuple(rungs)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class Layout(NamedTuple):
    """The rows of some pairs, which are the same in every epoch."""

    classes: UInt8[np.ndarray, " rows"]
    """The class of each row."""
    members: Int32[np.ndarray, " pairs"]
    """The numbers of the pairs, row after row."""
    starts: Int64[np.ndarray, " starts"]
    """Row r holds `members[starts[r] : starts[r + 1]]`."""


class Form(NamedTuple):
    """The form of the batches of a corpus: the shape of each class, and how rows are laid out."""

    shapes: tuple[BatchShape, ...]
    """The batch shape of each class. A row fits into the shapes of all later classes too."""
    packs: bool
    """Whether a row holds several pairs."""

    def lay_out(
        self,
        source_lengths: Int32[np.ndarray, " pairs"],
        target_lengths: Int32[np.ndarray, " pairs"],
        rng: np.random.Philox,
    ) -> Layout:
        """Lay out rows of pairs with these lengths, in tokens; packed rows depend on `rng`."""
        if self.packs:
            return _pack(source_lengths, target_lengths, self.shapes[0], rng)
        longest = np.maximum(source_lengths, target_lengths)
        rungs = [shape.target_length for shape in self.shapes]
        pairs = np.arange(len(longest) + 1)
        classes = np.searchsorted(rungs, longest).astype(np.uint8)
        return Layout(classes, pairs[:-1].astype(np.int32), pairs)


def row_form(content: Content, config: DataConfig) -> Form:
    """Return the form of the batches of a corpus: in buckets up to its longest side, or packed."""
    source, target = content.source, content.target
    longest = max(config.max_length, source.longest, target.longest)
    if config.batching == "pack":
        return Form((_packed_shape(source.total, target.total, longest, config),), True)
    ladder = np.array(length_ladder(longest))
    used = ladder[: 1 + np.searchsorted(ladder, max(source.longest, target.longest))].tolist()
    # A text of one language has no sources, and takes no room for them.
    return Form(tuple(batch_shape(config, n * (source.total > 0), n) for n in used), False)


def _pack(
    source_lengths: Int32[np.ndarray, " pairs"],
    target_lengths: Int32[np.ndarray, " pairs"],
    shape: BatchShape,
    rng: np.random.Philox,
) -> Layout:
    """Lay out rows of several pairs.

    A round deals the longest remaining pairs to the emptiest rows, one each. The rows could just
    hold all tokens without a gap. So rows fill up evenly, and the last pairs are short. Pairs that
    fit no row are dealt out again to new rows.
    """
    # A text of one language has no sources, and takes no room for them.
    capacity = np.maximum([[shape.source_length], [shape.target_length]], 1)
    sizes = np.stack([source_lengths, target_lengths])
    gap = 1 - (sizes / capacity).max(axis=0)  # of a row that holds this pair alone
    left = shuffled_within((gap * 0xFFFF).astype(np.uint16), rng)
    row_of_pair, num_rows = np.empty(len(left), np.int32), 0
    while len(left):
        num_new = int(np.ceil((sizes[:, left].sum(axis=1, keepdims=True) / capacity).max()))
        room = np.tile(capacity, num_new)
        unplaced = []
        for dealt in np.split(left, range(num_new, len(left), num_new)):
            emptiest = np.argsort(-(room / capacity).min(axis=0), kind="stable")[: len(dealt)]
            fits = (sizes[:, dealt] <= room[:, emptiest]).all(axis=0)
            room[:, emptiest[fits]] -= sizes[:, dealt[fits]]
            row_of_pair[dealt[fits]] = num_rows + emptiest[fits]
            unplaced.append(dealt[~fits])
        left, num_rows = np.concatenate(unplaced), num_rows + num_new
    starts = offsets_of(np.bincount(row_of_pair))
    members = np.argsort(row_of_pair, kind="stable").astype(np.int32)
    return Layout(np.zeros(num_rows, np.uint8), members, starts)


def _packed_shape(
    source_tokens: int, target_tokens: int, longest: int, config: DataConfig
) -> BatchShape:
    """Return the shape of packed rows, up to twice as long on the side with more tokens in all."""
    shortest_row = _round_up(longest, 8)
    totals = np.array([source_tokens, target_tokens])
    if not totals[0]:
        return batch_shape(config, 0, shortest_row)
    bounds = np.array([config.source_tokens_per_step, config.target_tokens_per_step])
    wanted = shortest_row * np.minimum(totals / totals.min(), 2)
    lengths = np.rint(np.minimum(wanted, bounds - bounds % 8) / 8).astype(int) * 8
    return batch_shape(config, *np.maximum(shortest_row, lengths).tolist())


def batch_shape(config: DataConfig, source_length: int, target_length: int) -> BatchShape:
    """Return the shape of a batch with as many rows of these lengths as the bounds allow.

    There is at least one row, as dev and test have sentences of any length. From 8 rows on their
    number is a multiple of 8, which meshes and matrix units divide evenly.

    Args:
      config: the bounds, in tokens per step.
      source_length: source positions of a row; 0 for text of one language.
    """
    rows = config.target_tokens_per_step // target_length
    if source_length:
        rows = min(config.source_tokens_per_step // source_length, rows)
    return BatchShape(max(1, rows - rows % 8 if rows >= 8 else rows), source_length, target_length)


class Cuts(NamedTuple):
    """The indices that cut rows, sorted by class, into batches; they depend only on counts."""

    starts: Int64[np.ndarray, " cuts"]
    """Batch b holds the rows `starts[b]` to `starts[b + 1] - 1`."""
    classes: Int64[np.ndarray, " batches"]
    """The class of each batch, which is that of its longest row or a later one."""


def cut(counts: Integer[np.ndarray, " classes"], form: Form) -> Cuts:
    """Cut full batches, class by class; the remaining rows of a class join the batches of the next.

    Rows are in order of class, so a remainder lies just before the rows it joins and every batch is
    a slice. Only the very last batch may be short of rows.
    """
    starts, classes, start = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    last = max(np.flatnonzero(counts).tolist(), default=-1)
    for number, end in enumerate(np.cumsum(counts[: last + 1]).tolist()):
        rows = form.shapes[number].rows
        stop = end if number == last else end - (end - start) % rows
        starts.append(np.arange(start, stop, rows))
        classes.append(np.full(len(starts[-1]), number))
        start = stop
    return Cuts(np.concatenate([*starts, [start]]), np.concatenate(classes))


def shuffled_within(
    classes: UInt[np.ndarray, " n"], rng: np.random.Philox
) -> Int32[np.ndarray, " n"]:
    """Return the indices of the rows in order of class, and in random order within a class."""
    order = np.argsort(rng.random_raw(len(classes)), kind="stable").astype(np.int32)
    return order[np.argsort(classes[order], kind="stable")]
