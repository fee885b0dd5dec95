"""Equation 1 in decoding: a few queries attend to the keys and values of a cache."""

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from t2t_jax.functional.attention import ScaledProducts, masked_softmax, scaled
from t2t_jax.kernels.preset import PRODUCTS, Score
from t2t_jax.kernels.products import einsum_float32


def cached_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b groups d_k k"],
    value: Float[Array, "b groups k d_v"],
    mask: Bool[Array, "b #h #q k"],
    *,
    bias: Float32[Array, "h #q k"] | None = None,
    score: Score = PRODUCTS,
) -> Float[Array, "b q h d_v"]:
    """Compute equation 1 for a few queries and many keys, as in decoding.

    The arrays are in the order in which the products run through them: positions are the last axis
    of the keys and the last but one of the values. With `[b, k, h, d]` they would be transposed
    first, again at every step, which on CPUs takes ten times as long as the products.

    Args:
      key: keys of each head, or of each group of heads that share them, in the dtype to compute in;
        see `Kernels.cache_dtype`.
      mask: True where a query may attend to a key, for all heads alike if they share keys.
      bias: numbers added to the scores; None means none.
      score: the score function, a pytree of what each head learns (`jax.tree_util.Partial`).

    Returns:
      The weighted values, in the queries' dtype; zeros for a query that may attend to nothing.
    """
    groups = key.shape[1]
    if groups < query.shape[2]:  # the first heads of all groups, the second heads, and so on
        split = partial(_by_group, groups=groups)
        heads = jax.vmap(
            lambda q, b, s: cached_attention(q, key, value, mask, bias=b, score=s),
            in_axes=(3, 1, 1),
            out_axes=3,
        )(split(query, 2), split(bias, 0), jax.tree.map(lambda x: split(x, 0), score))
        return heads.reshape(*query.shape[:3], value.shape[3])
    scores = _cached_scores(query, key, bias, score)
    weights = masked_softmax(scores, mask).astype(value.dtype)
    heads = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return heads.swapaxes(1, 2).astype(query.dtype)


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
    score: Score = PRODUCTS,
) -> Float[Array, "b 1 h d_v"]:
    """Compute `cached_attention` of one query, with one position that is still to be written.

    XLA for GPUs makes one kernel of the computation, which takes that position from `new`.

    Args:
      kept: keys and values of the kept positions.
      new: keys and values of the position that is to be written.
      at: the slot of that position.
      mask: True where the query may attend to a key.
      bias: see `cached_attention`.
      score: see `cached_attention`.
    """
    places = jax.lax.broadcasted_iota(jnp.int32, (1, 1, kept[0].shape[2], 1), 2)
    key, value = (
        jnp.where(places == at, own.astype(old.dtype), old)
        for own, old in zip(new, kept, strict=True)
    )
    return cached_attention(query, key.swapaxes(2, 3), value, mask, bias=bias, score=score)


class Kept(NamedTuple):
    """Keys and values that decoding keeps, in the order of `cached_attention`."""

    key: Float[Array, "b groups d_k _"]
    """Keys of each head, or of each group of heads that share them."""
    value: Float[Array, "b groups _ d_v"]
    """Values of each head or group."""
    mask: Bool[Array, "b #h #q _"]
    """True where a query may attend to a key."""
    bias: Float32[Array, "*b h #q _"] | None = None
    """Numbers added to the scores, alike for all rows or for each; None means none."""


def attention_to_both(
    query: Float[Array, "b q h d_k"], first: Kept, second: Kept, *, score: Score = PRODUCTS
) -> Float[Array, "b q h d_v"]:
    """Compute `cached_attention` to two sets of keys and values, without copying them into one.

    Args:
      second: keys and values to which each step adds its own.
      score: the score function, a pytree of what each head learns (`jax.tree_util.Partial`).
    """
    groups, num_heads = first.key.shape[1], query.shape[2]
    parts = first, second
    if groups < num_heads:
        biases = [_by_group(part.bias, -3, groups) for part in parts]
        axes = [None if bias is None else bias.ndim - 3 for bias in biases]

        def one_of_each_group(q: Array, s: Score, one: Any, other: Any) -> Array:
            biased = first._replace(bias=one), second._replace(bias=other)
            return attention_to_both(q, *biased, score=s)

        learned = jax.tree.map(lambda x: _by_group(x, 0, groups), score)
        split: Any = _by_group(query, 2, groups), learned
        heads = jax.vmap(one_of_each_group, in_axes=(3, 1, *axes), out_axes=3)(*split, *biases)
        return heads.reshape(*query.shape[:3], first.value.shape[3])
    scores = [_cached_scores(query, part.key, part.bias, score) for part in parts]
    shown = [jnp.broadcast_to(part.mask, s.shape) for part, s in zip(parts, scores, strict=True)]
    weights = masked_softmax(jnp.concatenate(scores, -1), jnp.concatenate(shown, -1))
    each = jnp.split(weights.astype(first.value.dtype), [first.key.shape[3]], axis=-1)
    of_first, of_second = (
        jnp.einsum("bhqk,bhkd->bhqd", own, part.value)
        for own, part in zip(each, parts, strict=True)
    )
    return (of_first + of_second).swapaxes(1, 2).astype(query.dtype)


def _cached_scores(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b h d_k k"],
    bias: Float32[Array, "*b h #q k"] | None,
    score: Score,
) -> Float32[Array, "b h q k"]:
    """Compute the scores of queries and of keys in the order of `cached_attention`."""
    kept = query.astype(key.dtype)
    if isinstance(score, ScaledProducts):
        scores = einsum_float32("bqhd,bhdk->bhqk", scaled(kept, score.scale), key)
    else:
        scores = score(kept, key.transpose(0, 3, 1, 2))
    return scores if bias is None else scores + bias


def _by_group(x: Float[Array, "..."] | None, axis: int, groups: int) -> Float[Array, "..."] | None:
    """Cut the axis of heads in two: groups, and the heads of each."""
    if x is None:
        return None
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])
