"""Examples, and functions that turn them into batches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer

from t2t_jax.batch import Batch, Sequence


class BatchShape(NamedTuple):
    """Shape of a global batch: inputs [rows, source_length], targets [rows, target_length]."""

    rows: int
    source_length: int
    target_length: int


class Placement(NamedTuple):
    """The examples chosen for rows of a batch, sorted by row and by position in the row."""

    examples: Int32[np.ndarray, " n"]
    """The index of each example."""
    rows: Integer[np.ndarray, " n"]
    """The row of each example, counted from 0 among the rows to make."""
    segments: Integer[np.ndarray, " n"]
    """The segment id of each example in its row, from 1."""


class StepRows(NamedTuple):
    """The indices of chosen rows of the global batch of a step."""

    step: int
    numbers: Integer[np.ndarray, " rows"]
    """The index of each row in the global batch."""


@dataclass(frozen=True)
class Examples:
    """Pairs of a source and a target, for training or scoring, as flat token arrays.

    Source or target i is `tokens[offsets[i] : offsets[i + 1]]` and ends with `EOS_ID`. The arrays
    may be memory-mapped. Subclasses override `batch` to make other arrays than tokens.
    """

    source_tokens: Integer[np.ndarray, " source_total"]
    source_offsets: Int64[np.ndarray, " offsets"]
    target_tokens: Integer[np.ndarray, " target_total"]
    target_offsets: Int64[np.ndarray, " offsets"]
    skipped: dict[str, int]
    """The number of pairs left out, by reason: `empty_source`, `empty_target`, `too_long`."""
    num_pairs_read: int
    """The number of pairs in the corpus, kept and left out."""

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.source_offsets) - 1

    @cached_property
    def source_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Count the positions of each source, including its end-of-sentence token."""
        return np.diff(self.source_offsets).astype(np.int32)

    @cached_property
    def target_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Count the positions of each target, including its end-of-sentence token."""
        return np.diff(self.target_offsets).astype(np.int32)

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the shape of the arrays that `batch` makes for rows of this shape.

        Arrays of text have the shape of the rows, whatever the most examples of a row.
        """
        return shape

    def batch(self, placement: Placement, shape: BatchShape, rows: StepRows) -> Batch:
        """Make a batch of the chosen examples.

        Args:
          shape: the number of rows, and the array lengths from the method `shape`.
          rows: the step and row indices, for random changes of a subclass.
        """
        sources = np.asarray(self.source_tokens), np.asarray(self.source_offsets)
        targets = np.asarray(self.target_tokens), np.asarray(self.target_offsets)
        inputs = fill_rows(*sources, placement, (shape.rows, shape.source_length))
        return Batch(inputs, fill_rows(*targets, placement, (shape.rows, shape.target_length)))


class Lengths(NamedTuple):
    """Statistics of the lengths of the sources or the targets of a corpus, in tokens."""

    max_length: int
    total: int
    """The sum over all examples."""
    squares: int
    """The sum of the squared lengths, to which the cost of attention is proportional."""

    @classmethod
    def of(cls, lengths: Integer[np.ndarray, " n"]) -> "Lengths":
        """Compute the statistics of an array of lengths."""
        wide = np.asarray(lengths, np.int64)  # squares overflow the dtype of short lengths
        return cls(int(wide.max(initial=0)), int(wide.sum()), int((wide**2).sum()))

    @classmethod
    def combined(cls, texts: Iterable["Lengths"]) -> "Lengths":
        """Combine the statistics of several texts."""
        max_lengths, totals, squares = zip(cls(0, 0, 0), *texts, strict=True)
        return cls(max(max_lengths), sum(totals), sum(squares))


class Content(NamedTuple):
    """Numbers and lengths of the examples of a corpus."""

    num_pairs_read: int
    """The number of examples in the corpus, kept and left out."""
    skipped: Mapping[str, int]
    """The number of examples that are left out, by reason."""
    num_examples: int
    """The number of examples that are kept."""
    source: Lengths
    target: Lengths

    @classmethod
    def of(cls, examples: Examples) -> "Content":
        """Compute the statistics of examples."""
        sides = map(Lengths.of, (examples.source_lengths, examples.target_lengths))
        return cls(examples.num_pairs_read, examples.skipped, len(examples), *sides)


def offsets_of(lengths: Integer[np.ndarray, " n"]) -> Int64[np.ndarray, " offsets"]:
    """Return the start of each of several consecutive slices, followed by the last end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def ranges(
    starts: Integer[np.ndarray, " n"], counts: Integer[np.ndarray, " n"]
) -> Int64[np.ndarray, " total"]:
    """Concatenate `arange(starts[i], starts[i] + counts[i])` over all i."""
    # The output of range i begins at index `begins[i]`, where it has to count from `starts[i]`.
    begins = np.cumsum(counts) - counts
    return np.repeat(starts - begins, counts) + np.arange(counts.sum())


def fill_rows(
    tokens: Integer[np.ndarray, " total"],
    offsets: Int64[np.ndarray, " offsets"],
    placement: Placement,
    shape: tuple[int, int],
) -> Sequence:
    """Fill the rows of the sources or the targets of a batch with the chosen examples.

    Args:
      tokens: the tokens of all examples; example i is `tokens[offsets[i] : offsets[i + 1]]`.
      shape: the number of rows, and the number of positions in a row.
    """
    examples, rows, segments = placement
    lengths = offsets[examples + 1] - offsets[examples]
    begins = np.cumsum(lengths) - lengths
    # Subtract the start of the first segment of the row.
    columns = begins - np.maximum.accumulate(np.where(segments == 1, begins, 0))
    cells = ranges(rows * shape[1] + columns, lengths)  # indices of the flat arrays
    arrays = np.zeros((3, shape[0] * shape[1]), np.int32)
    arrays[0, cells] = tokens[ranges(offsets[examples], lengths)]
    arrays[1, cells] = np.repeat(segments, lengths)
    arrays[2, cells] = ranges(np.zeros_like(lengths), lengths)
    return Sequence(*arrays.reshape(3, *shape))
