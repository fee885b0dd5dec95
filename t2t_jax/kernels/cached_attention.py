"""Attention in decoding (equation 1): a few queries attend to cached keys and values."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from t2t_jax.functional.attention import (
    SCALED_PRODUCT,
    ScaledProducts,
    Score,
    masked_softmax,
    repeat_heads,
    scaled,
)
from t2t_jax.kernels.products import einsum_float32


class CachedEntries(NamedTuple):
    """Cached keys and values, in the memory order in which matmuls read them.

    In the order `[b, k, h, d]`, every step would transpose them, which on CPUs takes ten times as
    long as the matmuls.
    """

    key: Float[Array, "b key_groups d_k _"]
    """Keys of each head, or of each group of heads that share keys and values."""
    value: Float[Array, "b groups _ d_v"]
    """Values of each head or group of heads; several keys may share a value."""
    mask: Bool[Array, "b #h #q _"]
    """True where a query may attend to a key."""
    bias: Float32[Array, "*b h #q _"] | None = None
    """Bias added to the scores, of each batch row or of all rows; None means no bias."""


def cached_attention(
    query: Float[Array, "b q h d_k"], parts: Sequence[CachedEntries], score: Score = SCALED_PRODUCT
) -> Float[Array, "b q h d_v"]:
    """Compute equation 1 for a few queries and many cached keys.

    Args:
      parts: sets of keys and values; the queries attend to all of them.

    Returns:
      The weighted values, in the dtype of the queries; zeros for a query that may attend to no key.
    """
    scores = [_scores(query, part, score) for part in parts]  # each [b, h, q, slots]
    masks = [jnp.broadcast_to(part.mask, x.shape) for part, x in zip(parts, scores, strict=True)]
    weights = masked_softmax(jnp.concatenate(scores, -1), jnp.concatenate(masks, -1))
    # Split the weights by part, because joining the values would copy the cache.
    boundaries = [*accumulate(x.shape[-1] for x in scores)][:-1]
    chunks = jnp.split(weights, boundaries, axis=-1)
    outputs = sum(_weighted_values(x, part.value) for x, part in zip(chunks, parts, strict=True))
    return jnp.asarray(outputs).astype(query.dtype)


def _scores(
    query: Float[Array, "b q h d_k"], part: CachedEntries, score: Score
) -> Float32[Array, "b h q slots"]:
    batch, num_queries, num_heads, width = query.shape
    query = query.astype(part.key.dtype)
    if isinstance(score, ScaledProducts):
        groups = part.key.shape[1]  # each has num_heads / groups of the heads
        query = scaled(query, score.scale).reshape(batch, num_queries, groups, -1, width)
        # Join the heads and queries of a group into one axis r of rows: XLA for CPUs refuses a
        # bfloat16 matmul with two such axes.
        rows = query.transpose(0, 2, 3, 1, 4).reshape(batch, groups, -1, width)
        row_scores = einsum_float32("bgrd,bgdk->bgrk", rows, part.key)
        scores = row_scores.reshape(batch, num_heads, num_queries, -1)
    else:
        scores = score(query, repeat_heads(part.key.transpose(0, 3, 1, 2), num_heads))
    return scores if part.bias is None else scores + part.bias


def _weighted_values(
    weights: Float32[Array, "b h q slots"], value: Float[Array, "b groups slots d_v"]
) -> Float[Array, "b q h d_v"]:
    batch, num_heads, num_queries, slots = weights.shape
    # Rows r as in `_scores`: with more axes, XLA for CPUs would transpose the values at every step.
    rows = weights.astype(value.dtype).reshape(batch, value.shape[1], -1, slots)
    outputs = jnp.einsum("bgrk,bgkd->bgrd", rows, value)
    return outputs.reshape(batch, num_heads, num_queries, -1).swapaxes(1, 2)


def fused_cached_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k groups d"],
    value: Float[Array, "b k groups d"],
    mask: Bool[Array, "b 1 #q k"],
    scale: float | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "b q h d"]:
    """Compute equation 1 for a few queries and many keys, in one kernel.

    A query that may attend to no key gets the mean of all values. The caller keeps these values at
    zero, because setting the result to zero would take another kernel.

    Args:
      mask: True where a query may attend to a key.
      implementation: of `jax.nn.dot_product_attention`: "cudnn", or "xla" for any device.
    """
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale, implementation=implementation
    )


def attention_with_new(
    query: Float[Array, "b 1 h d_k"],
    cached: tuple[Float[Array, "b groups k d_k"], Float[Array, "b groups k d_v"]],
    new: tuple[Float[Array, "b groups 1 d_k"], Float[Array, "b groups 1 d_v"]],
    slot: int | Array,
    mask: Bool[Array, "b #h 1 k"],
    *,
    bias: Float32[Array, "h 1 k"] | None = None,
    score: Score = SCALED_PRODUCT,
    attend: Callable[..., Float[Array, "b 1 h d_v"]] = cached_attention,
) -> Float[Array, "b 1 h d_v"]:
    """Compute `cached_attention` of one query before its key and value are in the cache.

    XLA for GPUs compiles this function to one kernel, which reads that key and value from `new`.

    Args:
      new: key and value of the query's position.
      slot: cache slot of the query's position.
      mask: True where the query may attend to a slot.
      attend: the function that computes attention, such as `Kernels.cached_attention`.
    """
    slots = jax.lax.broadcasted_iota(jnp.int32, (1, 1, cached[0].shape[2], 1), 2)
    key, value = (
        jnp.where(slots == slot, current.astype(old.dtype), old)
        for current, old in zip(new, cached, strict=True)
    )
    return attend(query, [CachedEntries(key.swapaxes(2, 3), value, mask, bias)], score)
