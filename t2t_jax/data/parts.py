"""Training examples in parts, of which only some are open at a time.

A corpus that fits into memory is one part. A larger one has a part for every piece of its shards,
and a training keeps the parts of a window open.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from t2t_jax.data.layout import Form, shuffled_within
from t2t_jax.data.rows import BatchShape, Content, Examples

_SAMPLED_TOKENS = 4_000_000
Engine: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""A function that applies another one to each of some jobs, and yields the results in order."""

CountRows: TypeAlias = Callable[[int], tuple[Int[np.ndarray, " classes"], int]]
"""A function that lays out the rows of a part, and returns the number of rows of each class, and
the most examples of a row."""


class RowCounts(NamedTuple):
    """The number of rows of each part."""

    counts: Int[np.ndarray, "parts classes"]
    """The number of rows of each class."""
    most: int
    """The most examples of a row."""


class Portions(NamedTuple):
    """The rows that a window of an epoch reads: a portion of the rows of each of some parts."""

    parts: Int[np.ndarray, " n"]
    """The indices of the parts."""
    copies: Int[np.ndarray, " n"]
    """The number of each copy, where an epoch has several copies of a part."""
    begin: Float[np.ndarray, " n"]
    """How many times the training has read the part before this window. At 2.25, it has read all
    rows twice, and a quarter of a third random order."""
    end: Float[np.ndarray, " n"]
    """The same after the window."""


@runtime_checkable
class Parts(Protocol):
    """Training examples in parts that are opened one by one."""

    @property
    def content(self) -> Content:
        """Return the figures of all parts together."""

    @property
    def window(self) -> int:
        """Return the number of parts whose examples are mixed, and which are open together."""

    @property
    def same_epochs(self) -> bool:
        """Return whether each epoch reads each part once."""
        return True

    def __len__(self) -> int:
        """Return the number of parts."""

    def open(self, part: int) -> Examples:
        """Return the examples of a part."""

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of the arrays of a batch; see `Examples.shape`."""

    @property
    def repeats(self) -> Int[np.ndarray, " parts"]:
        """Return how often a random order of a part has each row; more than 1 for tiny corpora."""
        return np.ones(len(self), np.int64)

    def windows(self, epoch: int, rng: np.random.Philox) -> list[Portions]:
        """Return the windows of an epoch, in the order in which it reads them.

        Args:
          rng: the random stream for the order of the parts.
        """
        order = shuffled_within(np.zeros(len(self), np.uint8), rng)
        windows = []
        for parts in np.array_split(order, -(-len(order) // self.window)):
            begin = np.full(len(parts), float(epoch))
            windows.append(Portions(parts, np.zeros_like(parts), begin, begin + 1))
        return windows

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return two numbers on which the packed rows of a part depend.

        Args:
          seed: the seed of the order of the data.
        """
        return seed, part

    def row_counts(self, form: Form, count: CountRows) -> RowCounts:
        """Return the number of rows of each part; `count` computes unknown ones."""
        counts, most = zip(*map(count, range(len(self))), strict=True)
        return RowCounts(np.stack(counts), max(most))

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Return how often each id occurs among the targets, or in an even sample of them."""


@dataclass(frozen=True)
class OnePart(Parts):
    """Examples that are entirely in memory, or mapped into it."""

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
        """See `Parts.shape`."""
        return self.examples.shape(shape, most)

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Count the ids of the targets, or of a sample at even distances if there are many."""
        tokens = self.examples.target_tokens
        return np.bincount(tokens[:: -(-len(tokens) // _SAMPLED_TOKENS)])
