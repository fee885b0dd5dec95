"""Section 3.2.3: which positions may attend to which. Masks are bool; True means "may attend".

A row of a batch holds one sentence or several; `segments` numbers them from 1 and is 0 in padding:

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

_LARGEST_WHOLE = 1 << 20
"""Most pairs of a query and a key, of one row, whose mask and scores are made as a whole: 1,024
times 1,024. Beyond, they would soon take all memory."""


def segment_mask(
    query_segments: Int[Array, "b q"], key_segments: Int[Array, "b k"]
) -> Bool[Array, "b 1 q k"]:
    """The mask by which a position attends to its own sentence; padding attends to nothing.

    Args:
      query_segments: numbers of the sentences, of the positions that attend; 0 is padding.
      key_segments: the same of the positions that are attended to.
    """
    same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    return same & (key_segments != 0)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 t t"]:
    """The mask by which a position attends to itself and to what comes before it in the row."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


@dataclass(frozen=True)
class SegmentMask:
    """The mask of long rows, which never exists as a whole: `blockwise_attention` makes its blocks.

    Attributes:
      query_segments: `[b, q]`, numbers of the sentences, of the positions that attend.
      key_segments: `[b, k]`, the same of the positions that are attended to.
      causal: whether a position attends to nothing that comes after it in its row.
    """

    query_segments: Int[Array, "b q"]
    key_segments: Int[Array, "b k"]
    causal: bool = False

    @property
    def size(self) -> int:
        """Entries of the whole mask."""
        return self.query_segments.size * self.key_segments.shape[1]

    def whole(self) -> Bool[Array, "b 1 q k"]:
        """The mask as an array: quadratic in the length."""
        mask = segment_mask(self.query_segments, self.key_segments)
        return mask & causal_mask(self.query_segments.shape[1]) if self.causal else mask


def attention_mask(
    query_segments: Int[Array, "b q"], key_segments: Int[Array, "b k"], *, causal: bool = False
) -> Bool[Array, "b 1 q k"] | SegmentMask:
    """The mask by which a position attends to its own sentence, and may not look ahead if `causal`.

    Args:
      query_segments: numbers of the sentences, of the positions that attend; 0 is padding.
      key_segments: the same of the positions that are attended to.
      causal: whether a position attends to nothing that comes after it.

    Returns:
      An array for short rows, else a `SegmentMask`; the shapes alone decide which.
    """
    mask = SegmentMask(query_segments, key_segments, causal)
    pairs = query_segments.shape[1] * key_segments.shape[1]
    return mask.whole() if pairs <= _LARGEST_WHOLE else mask
