"""Restricted self-attention (section 4): each position attends only to positions in its window.

A row is cut into blocks as long as the window. The queries of a block attend to the keys of that
block, the previous block and, unless the mask is causal, the next block. Work and memory are linear
in the row length. The blocks become rows of an ordinary attention:

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
    """Compute attention between positions whose distance is less than `mask.window`.

    Args:
      attend: attention of rows, `attend(query, key, value, mask, bias, dropout_key=)`.
      mask: a mask with a window.
      bias: maps distances to a bias of the scores; None means no bias.
      dropout_key: random key; dropout drops other weights than with a dense mask.
    """
    window = mask.window
    assert window is not None
    batch, length, *_ = query.shape
    num_keys = masks.keys_in_window(window, mask.causal)
    distances = masks.distances(window, num_keys, first_key=-window)  # the same in every block
    window_mask = masks.window_mask(distances, window)
    if mask.causal:
        window_mask &= distances >= 0
    query_ids = _blocks(mask.query_segments, window)
    segment_mask = masks.segment_mask(query_ids, _key_blocks(mask.key_segments, window, num_keys))
    num_blocks = -(-length // window)
    if dropout_key is not None:
        dropout_key = dropout_key._replace(first_row=dropout_key.first_row * num_blocks)
    heads, query_mask = attend(
        _blocks(query, window),
        *(_key_blocks(x, window, num_keys) for x in (key, value)),
        segment_mask & window_mask,
        None if bias is None else lambda _: bias(distances),
        dropout_key=dropout_key,
    )
    if query_mask is not None:
        heads = jnp.where(query_mask[..., None], heads, 0)
    return heads.reshape(batch, num_blocks * window, *heads.shape[2:])[:, :length]


def _blocks(x: Shaped[Array, "b t *d"], window: int) -> Shaped[Array, "blocks window *d"]:
    """Cut rows into blocks; the last block of a row is padded with zeros."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % window), *[(0, 0)] * (x.ndim - 2)))
    return x.reshape(x.shape[0] * (x.shape[1] // window), window, *x.shape[2:])


def _key_blocks(
    x: Shaped[Array, "b t *d"], window: int, num_keys: int
) -> Shaped[Array, "blocks num_keys *d"]:
    """Return the `num_keys` vectors that each block of `window` queries may attend to.

    They begin at the previous block. Vectors outside the row are zeros.
    """
    batch, length = x.shape[:2]
    num_blocks = -(-length // window)
    num_after = num_keys + (num_blocks - 2) * window - length
    x = jnp.pad(x, ((0, 0), (window, num_after), *[(0, 0)] * (x.ndim - 2)))
    # Previous, current and next block of every block, each [batch, blocks, window, ...].
    neighbor_blocks = [
        x[:, start : start + num_blocks * window].reshape(batch, num_blocks, window, *x.shape[2:])
        for start in range(0, num_keys, window)
    ]
    blocks = jnp.concatenate(neighbor_blocks, axis=2)
    return blocks.reshape(batch * num_blocks, num_keys, *x.shape[2:])
