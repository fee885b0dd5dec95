"""Section 3.2: scaled dot-product attention, and heads."""

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Shaped

from t2t_jax.functional.dropout import DropoutKey, dropout

Einsum: TypeAlias = Callable[[str, Array, Array], Float32[Array, "..."]]
"""`einsum(equation, a, b)`, summed in float32."""

_einsum_float32: Einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)


def attention_weights(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    mask: Bool[Array, "b #h #q k"] | None = None,
    *,
    einsum: Einsum = _einsum_float32,
) -> Float[Array, "b h q k"]:
    """softmax(Q K^T / sqrt(d_k)) over the keys, in float32 (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      mask: True where a query may attend to a key; None allows everything.
      einsum: how the product of queries and keys is computed.

    Returns:
      float32 weights that sum to one over `k`, or to zero for a query that may attend to nothing.
    """
    scores = einsum("bqhd,bkhd->bhqk", scaled(query), key)
    return jax.nn.softmax(scores) if mask is None else masked_softmax(scores, mask)


def scaled(query: Float[Array, "b q h d_k"]) -> Float[Array, "b q h d_k"]:
    """Q / sqrt(d_k), so that scores have the variance of a single product (section 3.2.1)."""
    return query / math.sqrt(query.shape[-1])


@jax.custom_vjp
def masked_softmax(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "b #h #q k"]
) -> Float32[Array, "b h q k"]:
    """softmax over the keys that `mask` allows; zeros for a query that it allows none.

    The derivative is written out, because it needs the weights alone.
    """
    # A finite floor: exp() of it is exactly zero beside any real score, and never makes NaN.
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min / 2))
    return jnp.where(mask, weights, 0)


def _weights(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "b #h #q k"]
) -> tuple[Float32[Array, "b h q k"], Float32[Array, "b h q k"]]:
    weights = masked_softmax(scores, mask)
    return weights, weights


def _scores_gradient(
    weights: Float32[Array, "b h q k"], cotangent: Float32[Array, "b h q k"]
) -> tuple[Float32[Array, "b h q k"], None]:
    weighted = weights * cotangent
    return weighted - weights * weighted.sum(-1, keepdims=True), None


masked_softmax.defvjp(_weights, _scores_gradient)


def scaled_dot_product_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: Bool[Array, "b #h #q k"] | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    einsum: Einsum = _einsum_float32,
) -> Float[Array, "b q h d_v"]:
    """softmax(Q K^T / sqrt(d_k)) V for every head (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key; None allows everything.
      dropout_rate: share of the weights set to zero (the paper: 0).
      dropout_key: key that decides which of them; None means no dropout.
      einsum: how the product of queries and keys is computed.

    Returns:
      The weighted values, in the values' dtype; zeros for a query that may attend to nothing.
    """
    weights = attention_weights(query, key, mask, einsum=einsum)
    weights = dropout(weights, dropout_rate, dropout_key)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def split_heads(x: Shaped[Array, "*t width"], num_heads: int) -> Shaped[Array, "*t h d"]:
    """Cut the last axis into `num_heads` equal heads (section 3.2.2)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: Shaped[Array, "*t h d"]) -> Shaped[Array, "*t width"]:
    """Concatenate the heads: Concat(head_1, ..., head_h) (section 3.2.2)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
