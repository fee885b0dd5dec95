"""Equation 1 as it runs fast: fused on GPUs, in blocks for long rows, with a cache in decoding."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float

from t2t_jax.functional.attention import masked_softmax, scaled, scaled_dot_product_attention
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.blockwise import blockwise_attention
from t2t_jax.kernels.choice import XLA_KERNELS, Kernels, ProductForm
from t2t_jax.kernels.products import einsum_float32, has_form

_LARGEST_FUSED = 1 << 28
"""Most entries of a mask for the fused kernel. The mask is the only quadratic array that it keeps;
so many entries take half a gigabyte in 16 bits."""


def attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: Bool[Array, "b #h #q k"] | SegmentMask,
    *,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    kernels: Kernels = XLA_KERNELS,
) -> Float[Array, "b q h d_v"]:
    """`functional.attention.scaled_dot_product_attention` (equation 1), the fastest way there is.

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key. A `SegmentMask` has the weights computed in
        blocks, unless the fused kernel takes the mask as a whole.
      dropout_rate: share of the weights set to zero (the paper: 0).
      dropout_key: key that decides which of them; None means no dropout.
      kernels: the implementations for the devices, from `kernels_of`.

    Returns:
      The weighted values, in the values' dtype; zeros for a query that may attend to nothing.
    """
    if has_form(value, kernels.products):
        # The products are small, and XLA on CPUs would convert the operands of most of them to
        # float32 one by one.
        dtype = value.dtype
        query, key, value = (x.astype(jnp.float32) for x in (query, key, value))
        heads = attention(
            query, key, value, mask, dropout_rate=dropout_rate, dropout_key=dropout_key
        )
        return heads.astype(dtype)
    drops = dropout_rate > 0 and dropout_key is not None
    fused = kernels.attention == "cudnn" and not drops and is_fused(query, key, value)
    if isinstance(mask, SegmentMask):
        if not fused or mask.size > _LARGEST_FUSED:
            return blockwise_attention(
                query, key, value, mask, dropout_rate=dropout_rate, dropout_key=dropout_key
            )
        mask = mask.whole()
    if fused:
        return fused_attention(query, key, value, mask)
    return scaled_dot_product_attention(
        query,
        key,
        value,
        mask,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        einsum=einsum_float32,
    )


def is_fused(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
) -> bool:
    """Whether cuDNN's fused attention takes arrays of these shapes and dtypes.

    It needs 16-bit arrays, heads of equal widths that are multiples of 8 up to 128, and even
    lengths.

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
    """
    if (
        query.dtype not in (jnp.bfloat16, jnp.float16)
        or not query.dtype == key.dtype == value.dtype
    ):
        return False
    width, lengths = query.shape[-1], (query.shape[1], key.shape[1])
    return not (value.shape[-1] != width or width % 8 or width > 128 or any(n % 2 for n in lengths))


def fused_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: Bool[Array, "b #h #q k"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "b q h d"]:
    """Equation 1 by `jax.nn.dot_product_attention`, whose fused kernel keeps no weights.

    Args:
      query: queries of each head.
      key: keys of each head.
      value: values of each head.
      mask: True where a query may attend to a key.
      implementation: "cudnn" takes arrays for which `is_fused` is true; "xla" computes the same of
        any arrays, on any device.

    Returns:
      The weighted values; zeros for a query that may attend to nothing.
    """
    heads = jax.nn.dot_product_attention(
        query, key, value, mask=mask, implementation=implementation
    )
    # That function gives a query that may attend to nothing the mean of all values.
    attends = mask.any(-1, keepdims=True).swapaxes(1, 2)
    return jnp.where(attends, heads, 0)


def cached_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b h d_k k"],
    value: Float[Array, "b h k d_v"],
    mask: Bool[Array, "b #h #q k"],
) -> Float[Array, "b q h d_v"]:
    """Equation 1 for a few queries and many keys, as in decoding.

    The arrays are in the order in which the products run through them: positions are the last axis
    of the keys and the last but one of the values. With `[b, k, h, d]` they would be transposed
    first, again at every step, which on CPUs takes ten times as long as the products.

    Args:
      query: queries of each head.
      key: keys of each head, in the dtype to compute in; see `cache_dtype`.
      value: values of each head.
      mask: True where a query may attend to a key.

    Returns:
      The weighted values, in the queries' dtype; zeros for a query that may attend to nothing.
    """
    scores = einsum_float32("bqhd,bhdk->bhqk", scaled(query.astype(key.dtype)), key)
    weights = masked_softmax(scores, mask).astype(value.dtype)
    heads = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return heads.swapaxes(1, 2).astype(query.dtype)


def cache_dtype(compute_dtype: DTypeLike, form: ProductForm) -> DTypeLike:
    """The dtype in which decoding keeps the keys and values for `cached_attention`.

    It is float32 in place of bfloat16 on CPUs: with a few queries, the product is no faster in
    bfloat16, and XLA writes to an array in bfloat16 by converting all of it to float32 and back.

    Args:
      compute_dtype: the dtype of activations.
      form: the form of products in bfloat16, from `kernels_of`.
    """
    return jnp.float32 if form == "float32_results" else compute_dtype
