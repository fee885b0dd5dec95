"""Training examples in parts, of which only some are open at a time.

A corpus that fits into memory is one part. A larger one has a part for every piece of its shards,
and a training keeps the parts of a window open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Int

from t2t_jax.data.layout import Form
from t2t_jax.data.rows import BatchShape, Content, Examples

_SAMPLED_TOKENS = 4_000_000

CountRows: TypeAlias = Callable[[int], tuple[Int[np.ndarray, " classes"], int]]
"""A function that lays out the rows of a part, and returns the number of rows of each class, and
the most examples of a row."""


class RowCounts(NamedTuple):
    """The number of rows of each part."""

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

    def of_epoch(self, seed: int, epoch: int) -> Int[np.ndarray, " parts"]:
        """Return the indices of the parts that an epoch reads, in any order.

        An index repeats if the epoch reads the part several times.
        """
        return np.arange(len(self))

    def packing_key(self, seed: int, part: int) -> tuple[int, int]:
        """Return two numbers on which the packed rows of a part depend.

        Args:
          seed: the seed of the training.
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
        """Return the shape of the arrays of a batch; see `Examples.shape`."""
        return self.examples.shape(shape, most)

    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """Count the ids of the targets, or of a sample at even distances if there are many."""
        tokens = self.examples.target_tokens
        return np.bincount(tokens[:: -(-len(tokens) // _SAMPLED_TOKENS)])
