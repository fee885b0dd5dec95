"""Attention of long rows (section 3.2.1) on TPUs, by JAX's splash attention kernel.

One kernel loops over blocks of queries and keys in linear memory. It keeps the scores of a block on
the chip, and skips blocks that a causal mask hides.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.reference import Queries, Values
from t2t_jax.parallel.axes import HEADS, in_parts, is_divided

_MAX_BLOCK = 512
"""Maximum number of queries, and of keys, in a block."""
_MULTIPLE = 256
"""Rows are padded to a multiple of this length, which is the minimum block size."""
_MAX_WIDTH = 256
"""Maximum head width: blocks of wider heads might not fit in the memory on the chip."""
_MAX_LENGTH = 1 << 16
"""Maximum row length: for longer rows, listing the blocks takes a minute."""
_ROWS = "batch", "length"


def takes(query: Queries, value: Values, mask: SegmentMask) -> bool:
    """Return whether the splash kernel supports these arrays and this mask on TPUs.

    The compiler cannot split this kernel over devices. So the mesh must be known
    (`parallel.axes.on_mesh`), and each device must hold equally many rows and heads.
    """
    if mask.window is not None or max(query.shape[1], value.shape[1]) > _MAX_LENGTH:
        return False
    return max(query.shape[3], value.shape[3]) <= _MAX_WIDTH and is_divided(query, *HEADS)


def splash_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: SegmentMask,
) -> Float[Array, "b q h d_v"]:
    """Compute scaled dot-product attention without dropout, for arrays that `takes` accepts.

    Args:
      query: queries of each head, already scaled.
      mask: a mask without a window.

    Returns:
      The weighted values; zeros for a query that may attend to no key.
    """

    def attend(query: Array, key: Array, value: Array, query_ids: Array, key_ids: Array) -> Array:
        length = query.shape[1]
        query, key, value = (_padded(x).swapaxes(1, 2) for x in (query, key, value))
        # The kernel only compares segment ids: queries in padding get -1, which no key has.
        query_ids = _padded(jnp.where(query_ids == 0, -1, query_ids), -1)
        kernel = _kernel(query.shape[1], query.shape[2], key.shape[2], mask.causal)
        heads = jax.vmap(kernel)(query, key, value, query_ids, _padded(key_ids))
        return heads.swapaxes(1, 2)[:, :length]

    attend_in_parts = in_parts(attend, (*[HEADS] * 3, _ROWS, _ROWS), HEADS)
    return attend_in_parts(query, key, value, mask.query_segments, mask.key_segments)


def _padded(x: Shaped[Array, "b t *d"], value: int = 0) -> Shaped[Array, "b padded *d"]:
    padding = [(0, 0), (0, -x.shape[1] % _MULTIPLE), *[(0, 0)] * (x.ndim - 2)]
    return jnp.pad(x, padding, constant_values=value)


def _kernel(num_heads: int, num_queries: int, num_keys: int, causal: bool) -> Callable[..., Array]:
    """Make a kernel for attention of the queries of a row to the keys of the same segment.

    Its arguments are queries [h, q, d_k], keys [h, k, d_k], values [h, k, d_v], and segment ids.
    """
    # Import Pallas only in programs for TPUs, because this takes half a second.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = num_queries, num_keys
    row_mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    query_block, key_block = (math.gcd(length, _MAX_BLOCK) for length in shape)
    sizes = kernels.BlockSizes(
        block_q=query_block,
        block_kv=key_block,
        block_q_dkv=query_block,
        block_kv_dkv=key_block,
        block_q_dq=query_block,
        block_kv_dq=key_block,
    )
    mask = masks.MultiHeadMask([row_mask] * num_heads)
    attend: Any = kernels.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    # A sink is an additional score in the softmax, without a value. Its weight is 0 next to any
    # real score, and 1 if all scores are masked: a query that may attend to no key gets zeros.
    sinks = jnp.full(num_heads, kernels.DEFAULT_MASK_VALUE / 2, jnp.float32)

    def in_row(query: Array, key: Array, value: Array, query_ids: Array, key_ids: Array) -> Array:
        return attend(query, key, value, kernels.SegmentIds(query_ids, key_ids), sinks)

    return in_row
