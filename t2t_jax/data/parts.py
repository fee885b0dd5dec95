"""Training examples in parts, of which a training run opens a few at a time.

A corpus in memory is one part. A larger corpus has a part for every piece of its shards, and a
training run keeps the parts of a window open.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int, Num

from t2t_jax.data.layout import Form, shuffled_within
from t2t_jax.data.rows import BatchShape, Content, Examples

_SAMPLED_TOKENS = 4_000_000
Engine: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""A function that applies a function to each of several jobs, and yields the results in order."""

CountRows: TypeAlias = Callable[[int], tuple[Int[np.ndarray, " classes"], int]]
"""A function that lays out the rows of a part. It returns the number of rows of each class, and the
most examples of a row."""


class RowCounts(NamedTuple):
    """The number of rows of each part and class (batch shape)."""

    counts: Int[np.ndarray, "parts classes"]
    max_examples: int
    """The most examples of a row."""


class Portions(NamedTuple):
    """The rows that training reads from a window; each array has an entry for each part."""

    parts: Int[np.ndarray, " n"]
    """The indices of the parts."""
    copies: Int[np.ndarray, " n"]
    """The index of the copy to read, if an epoch has several copies of a part."""
    begin: Num[np.ndarray, " n"]
    """The share of the part's rows that earlier windows of the epoch read."""
    end: Num[np.ndarray, " n"]
    """The share of the part's rows that the epoch has read after this window."""


@runtime_checkable
class Parts(Protocol):
    """Interface of training examples in parts that are opened one by one."""

    @property
    def content(self) -> Content:
        """Return the statistics of all parts."""

    @property
    def window(self) -> int:
        """Return the number of parts that are open together and whose examples are mixed."""

    @property
    def same_epochs(self) -> bool:
        """Return whether each epoch reads each part once."""
        return True

    def __len__(self) -> int:
        """Return the number of parts."""

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the array shape of a batch of such rows, with at most `max_examples` in each."""

    def windows(self, rng: np.random.Philox) -> list[Portions]:
        """Return the rows that each window of an epoch reads, in reading order.

        Args:
          rng: the random stream for the order of the parts.
        """
        order = shuffled_within(np.zeros(len(self), np.uint8), rng)
        windows = []
        for parts in np.array_split(order, -(-len(order) // self.window)):
            zeros = np.zeros_like(parts)
            windows.append(Portions(parts, zeros, zeros, zeros + 1))
        return windows

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return the two integers that seed the packing of a part's pairs into rows."""
        return seed, part

    def row_counts(self, form: Form, count: CountRows) -> RowCounts:
        """Count the rows of each part and class; `count` counts those of one part."""
        counts, max_examples = zip(*map(count, range(len(self))), strict=True)
        return RowCounts(np.stack(counts), max(max_examples))

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Count how often each token id occurs among the targets, or in an even sample of them."""


@dataclass(frozen=True)
class OnePart(Parts):
    """One part: examples in memory, or mapped into memory."""

    examples: Examples

    window = 1

    @cached_property
    def content(self) -> Content:
        """Return the statistics of the examples."""
        return Content.of(self.examples)

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def open(self, part: int) -> Examples:
        """Return all examples, because `part` is always 0."""
        return self.examples

    def shape(self, shape: BatchShape, max_examples: int) -> BatchShape:
        """Return the array shape of a batch."""
        return self.examples.shape(shape, max_examples)

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Count how often each token id occurs in an even sample of the target tokens."""
        tokens = self.examples.target_tokens  # an even sample is enough if they are many
        return np.bincount(tokens[:: -(-len(tokens) // _SAMPLED_TOKENS)])
