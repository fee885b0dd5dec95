"""Examples, and the functions that turn them into the arrays of a batch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer, UInt64

from t2t_jax.batch import Batch, Sequence


class BatchShape(NamedTuple):
    """Shape of a global batch: `inputs` [rows, source_length], `targets` [rows, target_length]."""

    rows: int
    source_length: int
    target_length: int


class Chosen(NamedTuple):
    """The examples of some rows of a batch, in order of row and of position in it."""

    examples: Int32[np.ndarray, " n"]
    """The number of each example."""
    rows: Integer[np.ndarray, " n"]
    """The row of each example, counted among the rows that are made."""
    segments: Integer[np.ndarray, " n"]
    """The place of each example in its row, counted from 1."""


class StepRows(NamedTuple):
    """Some rows of the global batch of a step."""

    step: int
    """The index of the step."""
    numbers: Integer[np.ndarray, " rows"]
    """The index of each row in the global batch."""


@dataclass(frozen=True)
class Examples:
    """Pairs of a source and a target, for training or scoring, as flat token arrays.

    Pair i is `tokens[offsets[i] : offsets[i + 1]]`. Every sentence ends with `EOS_ID`. The arrays
    may be memory-mapped and are read only. `data.batching` assigns examples to rows by their
    lengths only; the examples themselves make the arrays. Subclasses make other arrays.
    """

    source_tokens: Integer[np.ndarray, " source_total"]
    source_offsets: Int64[np.ndarray, " offsets"]
    target_tokens: Integer[np.ndarray, " target_total"]
    target_offsets: Int64[np.ndarray, " offsets"]
    skipped: dict[str, int]
    """Number of pairs left out, by reason: `empty_source`, `empty_target`, `too_long`."""
    num_pairs_read: int
    """Number of pairs in the corpus: those kept and those left out."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source_offsets) - 1

    @cached_property
    def source_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Return the number of positions that each source takes, end of sentence included."""
        return np.diff(self.source_offsets).astype(np.int32)

    @cached_property
    def target_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Return the number of positions that each target takes, end of sentence included."""
        return np.diff(self.target_offsets).astype(np.int32)

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of the arrays that `batch` makes. Text has arrays as long as the rows.

        Args:
          shape: the number of rows, and lengths with room for their examples.
          most: the most examples of a row.
        """
        return shape

    def batch(self, chosen: Chosen, shape: BatchShape, rows: StepRows) -> Batch:
        """Return the arrays of rows with the chosen examples.

        Args:
          shape: number of the rows, and their lengths from `shape`.
          rows: the step and the rows, on which random changes of a subclass may depend.
        """
        source = np.asarray(self.source_tokens), np.asarray(self.source_offsets)
        target = np.asarray(self.target_tokens), np.asarray(self.target_offsets)
        inputs = filled(*source, chosen, (shape.rows, shape.source_length))
        return Batch(inputs, filled(*target, chosen, (shape.rows, shape.target_length)))


class Lengths(NamedTuple):
    """The numbers of tokens of all sources, or of all targets, of a corpus."""

    longest: int
    """The most tokens of an example."""
    total: int
    """The sum over all examples."""
    squares: int
    """The sum of the squares, to which the cost of attention is proportional."""

    @classmethod
    def of(cls, lengths: Integer[np.ndarray, " n"]) -> "Lengths":
        """Return the statistics of some lengths."""
        wide = np.asarray(lengths, np.int64)
        return cls(int(wide.max(initial=0)), int(wide.sum()), int((wide**2).sum()))

    @classmethod
    def joined(cls, texts: Iterable[tuple["Lengths", Fraction | int]]) -> "Lengths":
        """Return the statistics of texts together, each read as often as its number says."""
        every = list(texts)
        return cls(
            max((one.longest for one, _ in every), default=0),
            round(sum(one.total * times for one, times in every)),
            round(sum(one.squares * times for one, times in every)),
        )


class Content(NamedTuple):
    """The statistics of training data."""

    num_pairs_read: int
    """The number of examples in the corpus: those kept and those left out."""
    skipped: Mapping[str, int]
    """The number of examples left out, by reason."""
    num_examples: int
    """The number of examples that are kept."""
    source: Lengths
    target: Lengths

    @classmethod
    def of(cls, examples: Examples) -> "Content":
        """Return the figures of examples."""
        sides = map(Lengths.of, (examples.source_lengths, examples.target_lengths))
        return cls(examples.num_pairs_read, examples.skipped, len(examples), *sides)


def offsets_of(lengths: Integer[np.ndarray, " n"]) -> Int64[np.ndarray, " offsets"]:
    """Return the start index of each of some consecutive parts, and the last end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def ranges(
    starts: Integer[np.ndarray, " n"], counts: Integer[np.ndarray, " n"]
) -> Int64[np.ndarray, " total"]:
    """Return `arange(starts[i], starts[i] + counts[i])` for every i, one after another."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def filled(
    tokens: Integer[np.ndarray, " total"],
    offsets: Int64[np.ndarray, " offsets"],
    chosen: Chosen,
    shape: tuple[int, int],
) -> Sequence:
    """Return the sources or the targets of a batch.

    Args:
      tokens: the concatenated tokens of all examples.
      offsets: the tokens of example i are `tokens[offsets[i] : offsets[i + 1]]`.
      shape: the number of rows, and of positions in each.
    """
    pairs, rows, segments = chosen
    lengths = offsets[pairs + 1] - offsets[pairs]
    before = np.cumsum(lengths) - lengths
    columns = before - np.maximum.accumulate(np.where(segments == 1, before, 0))
    cells = ranges(rows * shape[1] + columns, lengths)
    arrays = np.zeros((3, shape[0] * shape[1]), np.int32)
    arrays[0, cells] = tokens[ranges(offsets[pairs], lengths)]
    arrays[1, cells] = np.repeat(segments, lengths)
    arrays[2, cells] = ranges(np.zeros_like(lengths), lengths)
    return Sequence(*arrays.reshape(3, *shape))


def random_bits(
    stream: UInt64[np.ndarray, " 2"], rows: StepRows, count: int
) -> UInt64[np.ndarray, "rows count"]:
    """Return raw bits for each row of a step, the same in every version of NumPy.

    Args:
      stream: seed, and a number unique among the uses of this seed.
      count: the number of 64-bit integers for each row.
    """
    bits = [
        np.random.Philox(key=stream, counter=[0, number, rows.step, 0]).random_raw(count)
        for number in rows.numbers.tolist()
    ]
    return np.array(bits, np.uint64).reshape(len(bits), count)
