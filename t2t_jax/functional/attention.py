"""Section 3.2: scaled dot-product attention, its heads, and additive scores.

`functional.masks` comes next. docs/tour.md has the order in which to read the files of a network.
"""

import math
from dataclasses import dataclass

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
      mask: True where a query may attend to a key; None allows everything.
      bias: added to the scores of every row of the batch, such as relative positions.
      scale: factor on the products of queries and keys; None means 1 / sqrt(d_k).
      dropout_rate: share of the weights set to zero (the paper: 0).
      dropout_key: key that decides which of them; None means no dropout.

    Returns:
      The weighted values, in the values' dtype; zeros for a query that may attend to nothing.
    """
    weights = attention_weights(query, key, mask, bias, scale=scale)
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
      mask: True where a query may attend to a key; None allows everything.
      bias: added to the scores of every row of the batch, such as relative positions.
      scale: factor on the products of queries and keys; None means 1 / sqrt(d_k).

    Returns:
      Weights that sum to one over `k`, or to zero for a query that may attend to nothing.
    """
    scores = ScaledProducts(scale)(query, key)  # [b, h, q, k]
    return masked_softmax(scores if bias is None else scores + bias, mask)


@jax.tree_util.register_static
@dataclass(frozen=True)
class ScaledProducts:
    """The score function Q K^T / sqrt(d_k) (section 3.2.1).

    Attributes:
      scale: factor on the products; None means 1 / sqrt(d_k).
    """

    scale: float | None = None

    def __call__(
        self, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"]
    ) -> Float32[Array, "b h q k"]:
        """Compute the scores, summed in float32."""
        query = scaled(query, self.scale)
        return jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)


def scaled(
    query: Float[Array, "b q h d_k"], scale: float | None = None
) -> Float[Array, "b q h d_k"]:
    """Return Q / sqrt(d_k): scores of vectors of unit variance have unit variance (section 3.2.1).

    Args:
      query: queries of each head.
      scale: the factor; None means 1 / sqrt(d_k).
    """
    return query / math.sqrt(query.shape[-1]) if scale is None else query * scale


def masked_softmax(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "#b #h #q k"] | None
) -> Float32[Array, "b h q k"]:
    """Compute softmax over the keys that `mask` allows (section 3.2.3); zeros if there are none.

    Args:
      scores: how well each query and key match.
      mask: True where a query may attend to a key; None allows everything.

    Raises:
      TypeError: the mask is not bool.
    """
    if mask is None:
        return jax.nn.softmax(scores)
    if mask.dtype != bool:
        raise TypeError(f"the mask is {mask.dtype}; give bool, True where a query may attend")
    # A finite floor: exp() of it is exactly zero beside any real score, and never makes NaN.
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min / 2))
    return jnp.where(mask, weights, 0)


def weighted_values(
    weights: Float32[Array, "b h q k"], value: Float[Array, "b k h d_v"]
) -> Float[Array, "b q h d_v"]:
    """Sum the values times their weights, in the values' dtype (equation 1).

    Args:
      weights: the weight of each value, for each query and head.
      value: values of each head.
    """
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def additive_scores(
    query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"], vector: Float[Array, "h d_k"]
) -> Float32[Array, "b h q k"]:
    """Compute v tanh(q + k): additive attention, which section 3.2.1 compares with products.

    It is the alignment model of Bahdanau et al. 2014 ("Neural Machine Translation by Jointly
    Learning to Align and Translate", appendix A.1.2), whose two matrices are the projections of
    queries and keys here. The sums q + k take d_k times the memory of the scores.

    Args:
      query: queries of each head.
      key: keys of each head.
      vector: v of each head.
    """
    hidden = jnp.tanh(query[:, :, None] + key[:, None])  # [b, q, k, h, d_k]
    vector = vector.astype(hidden.dtype)
    return jnp.einsum("bqkhd,hd->bhqk", hidden, vector, preferred_element_type=jnp.float32)


def repeat_heads(x: Float[Array, "b k groups d"], num_heads: int) -> Float[Array, "b k h d"]:
    """Repeat the keys or values of each group for its heads (Ainslie et al. 2023).

    Heads 0 to num_heads / groups - 1 share those of the first group, and so on.

    Args:
      x: keys or values of each group.
      num_heads: number of heads, a multiple of the groups.
    """
    shared = num_heads // x.shape[2]
    return x if shared == 1 else jnp.repeat(x, shared, axis=2)


def split_heads(x: Shaped[Array, "*t width"], num_heads: int) -> Shaped[Array, "*t h d"]:
    """Cut the last axis into `num_heads` equal heads (section 3.2.2)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: Shaped[Array, "*t h d"]) -> Shaped[Array, "*t width"]:
    """Concatenate the heads: Concat(head_1, ..., head_h) (section 3.2.2)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
