"""Attention of long rows (section 3.2.1) on TPUs, by JAX's kernel in memory linear in the length.

"Splash" attention goes through blocks of queries and keys as `kernels.blockwise` does, but in one
kernel, which keeps the scores of a block on the chip and does not start what a causal mask hides.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from t2t_jax.functional.masks import SegmentMask
from t2t_jax.parallel.axes import HEADS, in_parts, is_divided

_LARGEST_BLOCK = 512
"""Greatest number of queries, and of keys, in a block."""
_MULTIPLE = 256
"""Rows are padded to a multiple of this length, so that blocks are not smaller."""
_WIDEST = 256
"""Widest heads: with wider ones the blocks might not fit the memory on the chip."""
_LONGEST = 1 << 16
"""Longest rows: the list of the blocks of longer ones takes a minute to make."""
_ROWS = "batch", "length"


def takes(
    query: Float[Array, "b q h d_k"], value: Float[Array, "b k groups d_v"], mask: SegmentMask
) -> bool:
    """Return whether the kernel computes this attention, where the devices are TPUs.

    The compiler cannot split a kernel that is not its own over devices: the devices have to be
    known (`parallel.axes.on_mesh`), and each of them to have equally many rows and heads.
    """
    if mask.window is not None or max(query.shape[1], value.shape[1]) > _LONGEST:
        return False
    return max(query.shape[3], value.shape[3]) <= _WIDEST and is_divided(query, *HEADS)


def splash_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: SegmentMask,
) -> Float[Array, "b q h d_v"]:
    """Compute `blockwise_attention` without dropout, of arrays that the kernel `takes`.

    Args:
      query: queries of each head, scaled.
      mask: which positions may attend to which; it has no window.

    Returns:
      The weighted values; zeros for a query that may attend to nothing.
    """

    def attend(query: Array, key: Array, value: Array, queries: Array, keys: Array) -> Array:
        length = query.shape[1]
        query, key, value = (_padded(x).swapaxes(1, 2) for x in (query, key, value))
        # The kernel compares segments and knows no padding: queries in padding get segment -1.
        queries = _padded(jnp.where(queries == 0, -1, queries), -1)
        heads = _of_rows(query, key, value, queries, _padded(keys), causal=mask.causal)
        return heads.swapaxes(1, 2)[:, :length]

    attend_in_parts = in_parts(attend, (*[HEADS] * 3, _ROWS, _ROWS), HEADS)
    return attend_in_parts(query, key, value, mask.query_segments, mask.key_segments)


def _padded(x: Shaped[Array, "b t *d"], value: int = 0) -> Shaped[Array, "b padded *d"]:
    padding = [(0, 0), (0, -x.shape[1] % _MULTIPLE), *[(0, 0)] * (x.ndim - 2)]
    return jnp.pad(x, padding, constant_values=value)


def _of_rows(
    query: Float[Array, "b h q d_k"],
    key: Float[Array, "b h k d_k"],
    value: Float[Array, "b h k d_v"],
    query_segments: Int[Array, "b q"],
    key_segments: Int[Array, "b k"],
    *,
    causal: bool,
) -> Float[Array, "b h q d_v"]:
    """Compute the weighted values of queries and keys that have the same segment."""
    # Only programs for TPUs need Pallas, which takes half a second to import.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    heads, shape = query.shape[1], (query.shape[2], key.shape[2])
    mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    of_queries, of_keys = (math.gcd(length, _LARGEST_BLOCK) for length in shape)
    sizes = kernels.BlockSizes(
        block_q=of_queries,
        block_kv=of_keys,
        block_q_dkv=of_queries,
        block_kv_dkv=of_keys,
        block_q_dq=of_queries,
        block_kv_dq=of_keys,
    )
    same = masks.MultiHeadMask([mask] * heads)
    attend: Any = kernels.make_splash_mha(same, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    # A sink takes part in the softmax with no value of its own. Beside any real score it weighs
    # nothing, and beside hidden ones everything: a query that may attend to nothing gets zeros.
    sinks = jnp.full(heads, kernels.DEFAULT_MASK_VALUE / 2, jnp.float32)

    def of_row(query: Array, key: Array, value: Array, queries: Array, keys: Array) -> Array:
        return attend(query, key, value, kernels.SegmentIds(queries, keys), sinks)

    return jax.vmap(of_row)(query, key, value, query_segments, key_segments)
