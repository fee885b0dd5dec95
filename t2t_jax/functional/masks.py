"""Attention masks (section 3.2.3). Masks are bool arrays: True means that a query may attend.

Read `functional.attention` before this file and `modules.attention` after it.

A batch row holds one or more sentences. Segment ids number them from 1, and 0 marks padding::

    segments        1 1 1 2 2 0
    segment mask    x x x . . .        causal mask    x . . . . .
                    x x x . . .                       x x . . . .
                    x x x . . .                       x x x . . .
                    . . . x x .                       x x x x . .
                    . . . x x .                       x x x x x .
                    . . . . . .                       x x x x x x
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

MAX_DENSE_PAIRS = 1 << 20
"""Size limit of a dense mask, in query-key pairs of one row (1,024 x 1,024). Longer rows use a
`SegmentMask`, because dense masks and scores would fill the memory."""


def segment_mask(
    query_segments: Int[Array, "b q"], key_segments: Int[Array, "b k"]
) -> Bool[Array, "b 1 q k"]:
    """Make the mask that lets positions attend within their sentence, and to no padding.

    Args:
      query_segments: segment id of each query position; 0 is padding.
      key_segments: segment id of each key position.
    """
    in_same_segment = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    return in_same_segment & (key_segments != 0)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 t t"]:
    """Make the mask that lets positions attend to themselves and earlier ones (section 3.2.3)."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


def distances(num_queries: int, num_keys: int, first_key: int = 0) -> Int[Array, "q k"]:
    """Compute query index - key index for every pair; positive if the key comes first.

    Within a sentence, this difference of row indices equals the difference of positions.

    Args:
      num_queries: number of queries, at indices from 0.
      num_keys: number of keys, at indices from `first_key`.
      first_key: index of the first key; may be negative.
    """
    return jnp.arange(num_queries)[:, None] - jnp.arange(first_key, first_key + num_keys)


def window_mask(offsets: Int[Array, "q k"], window: int) -> Bool[Array, "q k"]:
    """Make the mask of restricted self-attention (section 4): True where `|distance| < window`.

    Args:
      offsets: query index - key index, from `distances`.
      window: number of positions in each direction, including the query's own. The paper's
        neighborhood size is r = 2 window - 1.
    """
    return jnp.abs(offsets) < window


@dataclass(frozen=True)
class SegmentMask:
    """A mask for long rows, stored as segment ids; attention computes blocks of it when needed.

    Attributes:
      query_segments: `[b, q]`, segment id of each query position.
      key_segments: `[b, k]`, segment id of each key position.
      causal: whether positions attend to no later position of their row.
      window: number of positions in each direction; None means no window.
    """

    query_segments: Int[Array, "b q"]
    key_segments: Int[Array, "b k"]
    causal: bool = False
    window: int | None = None

    @property
    def size(self) -> int:
        """Return the number of entries of the dense mask."""
        return self.query_segments.size * self.key_segments.shape[1]

    @property
    def is_narrow(self) -> bool:
        """Return whether the window covers so few keys that windowed attention saves work."""
        if self.window is None:
            return False
        return keys_in_window(self.window, self.causal) < self.key_segments.shape[1]

    def dense(self) -> Bool[Array, "b 1 q k"]:
        """Make the dense mask, whose size is quadratic in the row length."""
        mask = segment_mask(self.query_segments, self.key_segments)  # [b, 1, q, k]
        length, num_keys = self.query_segments.shape[1], self.key_segments.shape[1]
        if self.causal:
            mask &= causal_mask(length)
        if self.window is not None and self.window < length:
            mask &= window_mask(distances(length, num_keys), self.window)
        return mask


def keys_in_window(window: int, causal: bool) -> int:
    """Return the number of keys that windowed attention compares with each query.

    Windowed attention splits a row into blocks as long as the window. It compares the queries of a
    block with the keys of that block, the previous block and, unless causal, the next block.

    Args:
      window: number of positions in each direction.
      causal: whether positions attend to no later position.
    """
    return (2 if causal else 3) * window


def attention_mask(
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b k"],
    *,
    causal: bool = False,
    window: int | None = None,
) -> Bool[Array, "b 1 q k"] | SegmentMask:
    """Make a mask that lets positions attend within their sentence, dense if rows are short.

    Args:
      query_segments: segment id of each query position; 0 is padding.
      key_segments: segment id of each key position.
      causal: whether positions attend to no later position.
      window: number of positions in each direction; None means no window.

    Returns:
      A bool array for short rows, or a `SegmentMask` for long rows and narrow windows.
    """
    mask = SegmentMask(query_segments, key_segments, causal, window)
    num_pairs = query_segments.shape[1] * key_segments.shape[1]
    is_sparse = num_pairs > MAX_DENSE_PAIRS or (window is not None and mask.is_narrow)
    return mask if is_sparse else mask.dense()
