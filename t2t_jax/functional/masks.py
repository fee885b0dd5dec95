"""Section 3.2.3: which positions may attend to which. Masks are bool; True means "may attend".

Read `functional.attention` before this file: it applies the masks. `modules.attention` comes next.

A row of a batch holds one sentence or several; `segments` numbers them from 1 and is 0 in padding::

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

LARGEST_WHOLE = 1 << 20
"""Most pairs of a query and a key, of one row, whose mask and scores are made as a whole: 1,024
times 1,024. Larger masks and scores would soon take all memory."""


def segment_mask(
    query_segments: Int[Array, "b q"], key_segments: Int[Array, "b k"]
) -> Bool[Array, "b 1 q k"]:
    """Return the mask by which positions attend to their own sentence, and padding to nothing.

    Args:
      query_segments: number of the sentence of each position that attends; 0 is padding.
      key_segments: the same for each position that is attended to.
    """
    same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    return same & (key_segments != 0)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 t t"]:
    """Return the mask by which positions attend to earlier ones and themselves (section 3.2.3)."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


def distances(num_queries: int, num_keys: int, first_key: int = 0) -> Int[Array, "q k"]:
    """Return the place of every query less that of every key: positive if the key came before.

    Within a sentence, wherever in the row it lies, this is the difference of positions too.

    Args:
      num_queries: queries, at the places from 0 on.
      num_keys: keys, at the places from `first_key` on.
      first_key: place of the first key, which may be negative.
    """
    return jnp.arange(num_queries)[:, None] - jnp.arange(first_key, first_key + num_keys)


def window_mask(apart: Int[Array, "q k"], window: int) -> Bool[Array, "q k"]:
    """Return the mask of restricted self-attention (section 4): True where `|distance| < window`.

    Args:
      apart: the distances of queries and keys, from `distances`.
      window: number of places in each direction, the query's own included. In the paper's terms the
        neighbourhood of a position has size r = 2 window - 1.
    """
    return jnp.abs(apart) < window


@dataclass(frozen=True)
class SegmentMask:
    """The mask of long rows, which never exists as a whole: attention makes the parts it needs.

    Attributes:
      query_segments: `[b, q]`, number of the sentence of each position that attends.
      key_segments: `[b, k]`, the same for each position that is attended to.
      causal: whether a position attends to nothing that comes after it in its row.
      window: see `window_mask`; None means no bound.
    """

    query_segments: Int[Array, "b q"]
    key_segments: Int[Array, "b k"]
    causal: bool = False
    window: int | None = None

    @property
    def size(self) -> int:
        """Return the number of entries of the whole mask."""
        return self.query_segments.size * self.key_segments.shape[1]

    @property
    def is_narrow(self) -> bool:
        """Return whether windows of keys are shorter than the row, so that attention uses them."""
        if self.window is None:
            return False
        return keys_in_window(self.window, self.causal) < self.key_segments.shape[1]

    def whole(self) -> Bool[Array, "b 1 q k"]:
        """Return the mask as an array, whose size is quadratic in the length."""
        mask = segment_mask(self.query_segments, self.key_segments)
        length, num_keys = self.query_segments.shape[1], self.key_segments.shape[1]
        if self.causal:
            mask &= causal_mask(length)
        if self.window is not None and self.window < length:
            mask &= window_mask(distances(length, num_keys), self.window)
        return mask


def keys_in_window(window: int, causal: bool) -> int:
    """Return how many keys each query is compared with where attention is computed in windows.

    The queries of a block as long as the window are compared with the keys of this block, of the
    one before and, unless `causal`, of the one after.

    Args:
      window: see `window_mask`.
      causal: whether no position attends to a later one.
    """
    return (2 if causal else 3) * window


def attention_mask(
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b k"],
    *,
    causal: bool = False,
    window: int | None = None,
) -> Bool[Array, "b 1 q k"] | SegmentMask:
    """Return the mask by which a position attends to its own sentence, or to a part of it.

    Args:
      query_segments: number of the sentence of each position that attends; 0 is padding.
      key_segments: the same for each position that is attended to.
      causal: whether a position attends to nothing that comes after it.
      window: see `window_mask`; None means no bound.

    Returns:
      An array for short rows, else a `SegmentMask`; shapes and window alone decide which.
    """
    mask = SegmentMask(query_segments, key_segments, causal, window)
    pairs = query_segments.shape[1] * key_segments.shape[1]
    is_part = pairs > LARGEST_WHOLE or (window is not None and mask.is_narrow)
    return mask if is_part else mask.whole()
