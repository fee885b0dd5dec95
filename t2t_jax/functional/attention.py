"""Section 3.2: scaled dot-product attention, and heads."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from t2t_jax.functional.dropout import DropoutKey, dropout
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.blockwise import blockwise_attention
from t2t_jax.kernels.products import einsum_float32

_LARGEST_FUSED = 1 << 28
"""Most entries of a mask that a kernel takes, which keeps nothing else that is quadratic: half a
gigabyte in 16 bits."""


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
    scores = einsum_float32("bqhd,bkhd->bhqk", _scaled(query), key)
    return jax.nn.softmax(scores) if mask is None else masked_softmax(scores, mask)


def _scaled(query: Float[Array, "b q h d_k"]) -> Float[Array, "b q h d_k"]:
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
    mask: Bool[Array, "b #h #q k"] | SegmentMask | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Float[Array, "b q h d_v"]:
    """softmax(Q K^T / sqrt(d_k)) V for every head (section 3.2.1, equation 1).

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key; None allows everything. A `SegmentMask` has the
        weights computed in blocks, unless a kernel takes the mask as a whole.
      dropout_rate: share of the weights set to zero (the paper: 0).
      dropout_key: which of them; None means no dropout.

    Returns:
      The weighted values, in the values' dtype; zeros for a query that may attend to nothing.
    """
    drops = dropout_rate > 0 and dropout_key is not None
    if isinstance(mask, SegmentMask):
        if drops or mask.size > _LARGEST_FUSED or not has_kernel(query, key, value):
            return blockwise_attention(
                query, key, value, mask, dropout_rate=dropout_rate, dropout_key=dropout_key
            )
        mask = mask.whole()
    if not drops and mask is not None and has_kernel(query, key, value):
        return fused_attention(query, key, value, mask)
    weights = dropout(attention_weights(query, key, mask), dropout_rate, dropout_key)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


def cached_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b h d_k k"],
    value: Float[Array, "b h d_v k"],
    mask: Bool[Array, "b #h #q k"],
) -> Float[Array, "b q h d_v"]:
    """`scaled_dot_product_attention` of a few queries to many keys, as in decoding.

    The positions are the last axis of keys and values, in the order in which both products run
    through them. With `[b, k, h, d]` they would be transposed first, again at every step, which on
    CPUs takes ten times as long as the products.

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key.
    """
    scores = einsum_float32("bqhd,bhdk->bhqk", _scaled(query), key)
    weights = masked_softmax(scores, mask)
    return jnp.einsum("bhqk,bhdk->bqhd", weights.astype(value.dtype), value)


def has_kernel(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
) -> bool:
    """Whether cuDNN's fused attention takes these arrays, here and now.

    It needs an NVIDIA GPU of compute capability 8.0 or later, 16-bit arrays, heads of equal widths
    that are multiples of 8 up to 128, and even lengths.
    """
    if (
        query.dtype not in (jnp.bfloat16, jnp.float16)
        or not query.dtype == key.dtype == value.dtype
    ):
        return False
    width, lengths = query.shape[-1], (query.shape[1], key.shape[1])
    if value.shape[-1] != width or width % 8 or width > 128 or any(n % 2 for n in lengths):
        return False
    device = jax.local_devices()[0]
    capability = getattr(device, "compute_capability", "0.0")  # "gfx942" and the like of AMD's
    return device.platform == "gpu" and capability[:1].isdigit() and float(capability) >= 8


def fused_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: Bool[Array, "b #h #q k"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "b q h d"]:
    """`scaled_dot_product_attention` by JAX's own, which has a kernel that keeps no weights.

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key.
      implementation: "cudnn" for what `has_kernel`; "xla" is the same, anywhere.
    """
    heads = jax.nn.dot_product_attention(
        query, key, value, mask=mask, implementation=implementation
    )
    # A query that may attend to nothing gets the mean of all values there.
    attends = mask.any(-1, keepdims=True).swapaxes(1, 2)
    return jnp.where(attends, heads, 0)


def split_heads(x: Float[Array, "*t width"], num_heads: int) -> Float[Array, "*t h d"]:
    """Cut the last axis into `num_heads` equal heads (section 3.2.2)."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)


def merge_heads(x: Float[Array, "*t h d"]) -> Float[Array, "*t width"]:
    """Concatenate the heads: Concat(head_1, ..., head_h) (section 3.2.2)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
