"""Section 3.2: scaled dot-product attention, and heads."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from t2t_jax.functional.dropout import dropout
from t2t_jax.functional.products import einsum_float32


def attention_weights(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    mask: Bool[Array, "b #h #q k"] | None = None,
) -> Float[Array, "b h q k"]:
    """softmax(Q K^T / sqrt(d_k)) over the keys, in float32 (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      mask: True where a query may attend to a key; None allows everything.

    Returns:
      float32 weights that sum to one over `k`, or to zero for a query that may attend to nothing.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    scores = einsum_float32("bqhd,bkhd->bhqk", query * scale, key)
    if mask is None:
        return jax.nn.softmax(scores)
    # A finite floor: exp() of it is exactly zero beside any real score, and never makes NaN.
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min / 2))
    return jnp.where(mask, weights, 0)


def scaled_dot_product_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: Bool[Array, "b #h #q k"] | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
) -> Float[Array, "b q h d_v"]:
    """softmax(Q K^T / sqrt(d_k)) V for every head (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key; None allows everything.
      dropout_rate: share of the weights set to zero (the paper: 0).
      dropout_key: PRNG key; None means no dropout.

    Returns:
      The weighted values, in the values' dtype; zeros for a query that may attend to nothing.
    """
    weights = attention_weights(query, key, mask)
    if dropout_key is not None:
        weights = dropout(weights, dropout_rate, dropout_key)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def split_heads(x: Float[Array, "b t width"], num_heads: int) -> Float[Array, "b t h d"]:
    """Cut the last axis into `num_heads` equal heads (section 3.2.2)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: Float[Array, "b t h d"]) -> Float[Array, "b t width"]:
    """Concatenate the heads: Concat(head_1, ..., head_h) (section 3.2.2)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
