"""Equation 1 in decoding: a few queries attend to the keys and values of a cache."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from t2t_jax.functional.attention import ScaledProducts, masked_softmax, repeat_heads, scaled
from t2t_jax.kernels.products import einsum_float32
from t2t_jax.kernels.reference import SCALED_PRODUCT, Score


class CachedEntries(NamedTuple):
    """Keys and values that decoding keeps, in the order in which products run through them.

    Positions are the last axis of the keys and the last but one of the values. With `[b, k, h, d]`
    they would be transposed first, again at every step, which on CPUs takes ten times as long as
    the products.
    """

    key: Float[Array, "b groups d_k _"]
    """Keys of each head, or of each group of heads that share them."""
    value: Float[Array, "b groups _ d_v"]
    """Values of each head or group."""
    mask: Bool[Array, "b #h #q _"]
    """True where a query may attend to a key."""
    bias: Float32[Array, "*b h #q _"] | None = None
    """Numbers added to the scores, alike for all rows or for each; None means none."""


def cached_attention(
    query: Float[Array, "b q h d_k"], parts: Sequence[CachedEntries], score: Score = SCALED_PRODUCT
) -> Float[Array, "b q h d_v"]:
    """Compute equation 1 for a few queries and many keys, as in decoding.

    Args:
      query: queries of each head.
      parts: keys and values, in one set or in several, which are not copied into one.
      score: the score function.

    Returns:
      The weighted values, in the queries' dtype; zeros for a query that may attend to nothing.
    """
    scores = [_scores(query, part, score) for part in parts]  # each [b, h, q, slots]
    allowed = [jnp.broadcast_to(part.mask, x.shape) for part, x in zip(parts, scores, strict=True)]
    weights = masked_softmax(jnp.concatenate(scores, -1), jnp.concatenate(allowed, -1))
    ends = [*accumulate(x.shape[-1] for x in scores)][:-1]
    each = jnp.split(weights, ends, axis=-1)
    heads = sum(_weighted_values(x, part.value) for x, part in zip(each, parts, strict=True))
    return jnp.asarray(heads).astype(query.dtype)


def _scores(
    query: Float[Array, "b q h d_k"], part: CachedEntries, score: Score
) -> Float32[Array, "b h q slots"]:
    batch, num_queries, num_heads, width = query.shape
    query = query.astype(part.key.dtype)
    if isinstance(score, ScaledProducts):
        groups = part.key.shape[1]  # each has num_heads / groups of the heads
        grouped = scaled(query, score.scale).reshape(batch, num_queries, groups, -1, width)
        # One axis of rows for each group: with two, XLA for CPUs refuses to multiply bfloat16.
        rows = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, groups, -1, width)
        products = einsum_float32("bgrd,bgdk->bgrk", rows, part.key)
        scores = products.reshape(batch, num_heads, num_queries, -1)
    else:
        scores = score(query, repeat_heads(part.key.transpose(0, 3, 1, 2), num_heads))
    return scores if part.bias is None else scores + part.bias


def _weighted_values(
    weights: Float32[Array, "b h q slots"], value: Float[Array, "b groups slots d_v"]
) -> Float[Array, "b q h d_v"]:
    batch, num_heads, num_queries, slots = weights.shape
    # With more axes than these, XLA for CPUs would transpose the values again at every step.
    rows = weights.astype(value.dtype).reshape(batch, value.shape[1], -1, slots)
    heads = jnp.einsum("bgrk,bgkd->bgrd", rows, value)
    return heads.reshape(batch, num_heads, num_queries, -1).swapaxes(1, 2)


def fused_cached_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k groups d"],
    value: Float[Array, "b k groups d"],
    mask: Bool[Array, "b 1 #q k"],
    scale: float | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "b q h d"]:
    """Compute equation 1 for a few queries and many keys, in one kernel.

    A query that may attend to nothing gets the mean of all values, which the caller has to keep at
    zero: setting the result to zero here would take another kernel.

    Args:
      key: keys of each head or group of heads, as `has_fused_widths` allows them.
      mask: True where a query may attend to a key.
      scale: factor on the products; None means 1 / sqrt(d_k).
      implementation: see `fused_attention`.
    """
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale, implementation=implementation
    )


def attention_with_new(
    query: Float[Array, "b 1 h d_k"],
    kept: tuple[Float[Array, "b groups k d_k"], Float[Array, "b groups k d_v"]],
    new: tuple[Float[Array, "b groups 1 d_k"], Float[Array, "b groups 1 d_v"]],
    at: int | Array,
    mask: Bool[Array, "b #h 1 k"],
    *,
    bias: Float32[Array, "h 1 k"] | None = None,
    score: Score = SCALED_PRODUCT,
) -> Float[Array, "b 1 h d_v"]:
    """Compute `cached_attention` of one query, with one position that is still to be written.

    XLA for GPUs makes one kernel of the computation, which takes that position from `new`.

    Args:
      query: queries of each head.
      kept: keys and values of the kept positions.
      new: keys and values of the position that is to be written.
      at: the slot of that position.
      mask: True where the query may attend to a key.
      bias: numbers added to the scores; None means none.
      score: the score function.
    """
    slots = jax.lax.broadcasted_iota(jnp.int32, (1, 1, kept[0].shape[2], 1), 2)
    key, value = (
        jnp.where(slots == at, own.astype(old.dtype), old)
        for own, old in zip(new, kept, strict=True)
    )
    return cached_attention(query, [CachedEntries(key.swapaxes(2, 3), value, mask, bias)], score)
