"""Restricted self-attention (section 4): each position is compared only with those near it.

The row is cut into blocks as long as the window. The queries of a block are compared with the keys
of this block, of the one before it and, unless the mask is causal, of the one after it: work and
memory are linear in the length of the row. The blocks become rows of an ordinary attention:

    window 2, causal      query block     keys
                          0 1             . . 0 1
                          2 3             0 1 2 3
                          4 5             2 3 4 5
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from t2t_jax.functional import masks
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.kernels.reference import DistanceBias, Heads


def windowed_attention(
    attend: Callable[..., Heads],
    query: Float[Array, "b t h d_k"],
    key: Float[Array, "b t h d_k"],
    value: Float[Array, "b t h d_v"],
    mask: masks.SegmentMask,
    bias: DistanceBias | None,
    dropout_key: DropoutKey | None,
) -> Float[Array, "b t h d_v"]:
    """Compute an attention whose queries and keys are less than `mask.window` apart.

    Args:
      attend: the attention of whole rows, `attend(query, key, value, mask, bias, dropout_key=)`;
        it is called once, with blocks for rows.
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: which positions may attend to which; it has a window.
      bias: the function of distances to add to the scores; None means none.
      dropout_key: key of the dropout of weights; other weights are dropped than by the whole mask.
    """
    window = mask.window
    assert window is not None
    batch, length, *_ = query.shape
    keys = masks.keys_in_window(window, mask.causal)
    apart = masks.distances(window, keys, first_key=-window)
    near = masks.window_mask(apart, window)
    if mask.causal:
        near &= apart >= 0
    queries = _blocks(mask.query_segments, window)
    alike = masks.segment_mask(queries, _neighbours(mask.key_segments, window, keys))
    blocks = -(-length // window)
    if dropout_key is not None:
        dropout_key = dropout_key._replace(first_row=dropout_key.first_row * blocks)
    heads, rows = attend(
        _blocks(query, window),
        *(_neighbours(x, window, keys) for x in (key, value)),
        alike & near,
        None if bias is None else lambda _: bias(apart),  # the distances within every block
        dropout_key=dropout_key,
    )
    if rows is not None:
        heads = jnp.where(rows[..., None], heads, 0)
    return heads.reshape(batch, blocks * window, *heads.shape[2:])[:, :length]


def _blocks(x: Shaped[Array, "b t *d"], window: int) -> Shaped[Array, "blocks window *d"]:
    """Return the blocks of all rows in turn; the last block of a row is padded with zeros."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % window), *[(0, 0)] * (x.ndim - 2)))
    return x.reshape(x.shape[0] * (x.shape[1] // window), window, *x.shape[2:])


def _neighbours(
    x: Shaped[Array, "b t *d"], window: int, keys: int
) -> Shaped[Array, "blocks keys *d"]:
    """Return for each block the vectors from the block before on, with zeros beyond the row."""
    batch, length = x.shape[:2]
    padded = -(-length // window) * window
    after = keys - 2 * window + padded - length
    x = jnp.pad(x, ((0, 0), (window, after), *[(0, 0)] * (x.ndim - 2)))
    parts = [
        x[:, first : first + padded].reshape(batch, padded // window, window, *x.shape[2:])
        for first in range(0, keys, window)
    ]
    joined = jnp.concatenate(parts, axis=2)
    return joined.reshape(batch * (padded // window), keys, *x.shape[2:])
