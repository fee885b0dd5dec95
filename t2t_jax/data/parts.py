"""Training examples in parts, of which only some are open at a time.

A corpus that fits into memory is one part. A larger one has a part for every piece of its shards,
and a training holds the parts of a window.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int, Integer

from t2t_jax.data.rows import BatchShape, Examples

_SAMPLED_TOKENS = 4_000_000

CountRows: TypeAlias = Callable[[int], tuple[Int[np.ndarray, " classes"], int]]
"""A function that lays out the rows of a part, and returns the number of rows of each class, and
the most examples of a row."""


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
        """Return the figures of some lengths."""
        wide = np.asarray(lengths, np.int64)
        return cls(int(wide.max(initial=0)), int(wide.sum()), int((wide**2).sum()))


class Content(NamedTuple):
    """What a training reads, in numbers."""

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


class RowCounts(NamedTuple):
    """How many rows the examples of each part are laid out in."""

    counts: Int[np.ndarray, "parts classes"]
    """The number of rows of each class."""
    most: int
    """The most examples of a row."""


@runtime_checkable
class Parts(Protocol):
    """Training examples in parts that are opened one by one."""

    @property
    def content(self) -> Content:
        """Return the figures of all parts together."""

    @property
    def window(self) -> int:
        """Return the number of parts whose examples are mixed, and which are open together."""

    def __len__(self) -> int:
        """Return the number of parts."""

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of the arrays of a batch; see `Examples.shape`."""

    def packing_seed(self, seed: int) -> int:
        """Return the seed of the packing of rows, from the seed of the training."""

    def row_counts(self, count: CountRows) -> RowCounts:
        """Return the number of rows of each part, which `count` gives where it is not known yet."""

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Return how often each id occurs among the targets, or in an even sample of them."""


@dataclass(frozen=True)
class OnePart:
    """Examples that are in memory, or mapped into it, as a whole."""

    examples: Examples
    """The examples."""

    window = 1

    @cached_property
    def content(self) -> Content:
        """Return the figures of the examples."""
        return Content.of(self.examples)

    def __len__(self) -> int:
        """Return 1, the number of parts."""
        return 1

    def open(self, part: int) -> Examples:
        """Return the examples."""
        return self.examples

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of the arrays of a batch; see `Examples.shape`."""
        return self.examples.shape(shape, most)

    def packing_seed(self, seed: int) -> int:
        """Return the seed of the training."""
        return seed

    def row_counts(self, count: CountRows) -> RowCounts:
        """Return the number of rows, which are laid out now; see `Parts.row_counts`."""
        counts, most = count(0)
        return RowCounts(counts[None], most)

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Count the ids of the targets, or of a sample at even distances if there are many."""
        tokens = self.examples.target_tokens
        return np.bincount(tokens[:: -(-len(tokens) // _SAMPLED_TOKENS)])
