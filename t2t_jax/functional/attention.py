"""Scaled dot-product attention, multi-head reshapes and additive scores (section 3.2).

docs/tour.md lists the files of a network in reading order; `functional.masks` is the next file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Shaped

from t2t_jax.functional.dropout import DropoutKey, dropout


def scaled_dot_product_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: Bool[Array, "#b #h #q k"] | None = None,
    bias: Float32[Array, "h q k"] | None = None,
    *,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Float[Array, "b q h d_v"]:
    """Compute softmax(Q K^T / sqrt(d_k)) V for every head (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key; None allows all keys.
      bias: added to the scores of every batch row, such as a relative position bias.
      scale: factor on the dot products; None means 1 / sqrt(d_k).
      dropout_rate: dropout probability of the attention weights (the paper: 0).
      dropout_key: key for dropout; None disables dropout.

    Returns:
      The weighted values, in the dtype of `value`; zeros for queries that may attend to no key.
    """
    weights = attention_weights(query, key, mask, bias, scale=scale)  # [b, h, q, k]
    return weighted_values(dropout(weights, dropout_rate, dropout_key), value)


def attention_weights(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    mask: Bool[Array, "#b #h #q k"] | None = None,
    bias: Float32[Array, "h q k"] | None = None,
    *,
    scale: float | None = None,
) -> Float32[Array, "b h q k"]:
    """Compute softmax(Q K^T / sqrt(d_k)) over the keys, in float32 (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      mask: True where a query may attend to a key; None allows all keys.
      bias: added to the scores of every batch row, such as a relative position bias.
      scale: factor on the dot products; None means 1 / sqrt(d_k).

    Returns:
      Weights that sum to 1 over the keys, or to 0 for queries that may attend to no key.
    """
    scores = ScaledProducts(scale)(query, key)  # [b, h, q, k]
    return masked_softmax(scores if bias is None else scores + bias, mask)


@jax.tree_util.register_static
@dataclass(frozen=True)
class ScaledProducts:
    """Compute the attention scores Q K^T / sqrt(d_k) (section 3.2.1).

    Attributes:
      scale: factor on the dot products; None means 1 / sqrt(d_k).
    """

    scale: float | None = None

    def __call__(
        self, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"]
    ) -> Float32[Array, "b h q k"]:
        """Compute the scores, accumulated in float32."""
        # Scaling the queries is cheaper than scaling the scores: [b, q, h, d_k] is smaller.
        query = scaled(query, self.scale)
        return jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)


Score: TypeAlias = Callable[
    [Float[Array, "b q h d_k"], Float[Array, "b k h d_k"]], Float32[Array, "b h q k"]
]
"""A score function of queries and keys: a pytree whose leaves are trained parameters."""
SCALED_PRODUCT: Score = ScaledProducts()
"""The paper's score function: the scaled dot product."""


def scaled(
    query: Float[Array, "b q h d_k"], scale: float | None = None
) -> Float[Array, "b q h d_k"]:
    """Scale the queries by 1 / sqrt(d_k), which keeps the variance of scores at 1 (section 3.2.1).

    Args:
      query: queries of each head.
      scale: factor to use instead of 1 / sqrt(d_k).
    """
    return query / math.sqrt(query.shape[-1]) if scale is None else query * scale


def masked_softmax(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "#b #h #q k"] | None
) -> Float32[Array, "b h q k"]:
    """Compute softmax over the keys that `mask` allows (section 3.2.3), or zeros if it allows none.

    Args:
      scores: scores of each query and key.
      mask: True where a query may attend to a key; None allows all keys.

    Raises:
      TypeError: the mask is not bool.
    """
    if mask is None:
        return jax.nn.softmax(scores)
    if mask.dtype != bool:
        raise TypeError(f"the mask is {mask.dtype}; give bool, True where a query may attend")
    # Masked scores are finite, not -inf: exp() still underflows to 0, and a fully masked query
    # does not give NaN. The second `where` sets the weights of such a query to 0.
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min / 2))
    return jnp.where(mask, weights, 0)


def weighted_values(
    weights: Float32[Array, "b h q k"], value: Float[Array, "b k h d_v"]
) -> Float[Array, "b q h d_v"]:
    """Sum the values times their attention weights, in the dtype of `value` (equation 1).

    Args:
      weights: attention weights.
      value: values of each head.
    """
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def additive_scores(
    query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"], vector: Float[Array, "h d_k"]
) -> Float32[Array, "b h q k"]:
    """Compute the scores of additive attention, v tanh(q + k) (mentioned in section 3.2.1).

    Source: Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and
    Translate", appendix A.1.2. The sums q + k take d_k times the memory of the scores.

    Args:
      query: queries of each head.
      key: keys of each head.
      vector: v, one vector per head.
    """
    hidden = jnp.tanh(query[:, :, None] + key[:, None])  # [b, q, k, h, d_k]
    vector = vector.astype(hidden.dtype)
    return jnp.einsum("bqkhd,hd->bhqk", hidden, vector, preferred_element_type=jnp.float32)


def repeat_heads(x: Float[Array, "b k groups d"], num_heads: int) -> Float[Array, "b k h d"]:
    """Repeat the keys or values of each group for all query heads of the group.

    Grouped-query attention (Ainslie et al. 2023): consecutive query heads share a group.

    Args:
      x: keys or values of each group.
      num_heads: number of query heads, a multiple of the number of groups.
    """
    heads_per_group = num_heads // x.shape[2]
    return x if heads_per_group == 1 else jnp.repeat(x, heads_per_group, axis=2)


def split_heads(x: Shaped[Array, "*t width"], num_heads: int) -> Shaped[Array, "*t h d"]:
    """Split the last axis into `num_heads` heads of equal width (section 3.2.2)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: Shaped[Array, "*t h d"]) -> Shaped[Array, "*t width"]:
    """Concatenate the heads along the last axis, Concat(head_1, ..., head_h) (section 3.2.2)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
