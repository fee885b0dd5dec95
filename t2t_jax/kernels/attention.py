"""Fast attention (equation 1): fused kernels for GPUs and TPUs, windows, blocks of long rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, PyTree

from t2t_jax.functional import masks
from t2t_jax.functional.attention import (
    SCALED_PRODUCT,
    ScaledProducts,
    Score,
    masked_softmax,
    repeat_heads,
    scaled,
)
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels import blockwise, reference, short_rows, splash, windowed
from t2t_jax.kernels.products import Einsum, einsum_float32
from t2t_jax.kernels.reference import DistanceBias, Heads

_MAX_FUSED_PAIRS = 1 << 28
"""Size limit of a mask for cuDNN, in query-key pairs of the whole batch. The mask is the only
quadratic array that cuDNN keeps. At the limit, it takes half a gigabyte in 16 bits."""


class Inputs(NamedTuple):
    """Inputs of attention with scaled dot products and without a bias; see `Form`."""

    query: reference.Queries
    key: reference.Keys
    value: reference.Values
    mask: Bool[Array, "#b #h #q k"] | SegmentMask | None
    """True where the query may attend to the key; None allows all pairs."""
    scale: float | None
    """Factor on the dot products; None means 1 / sqrt(d_k)."""
    dropout_rate: float
    """Fraction of the attention weights that dropout sets to zero."""
    dropout_key: DropoutKey | None
    """Random key of dropout; None if the rate is 0."""

    @property
    def per_head(self) -> tuple[Array, Array, Array]:
        """Return scaled queries, and keys and values that are repeated for each head."""
        num_heads = self.query.shape[2]
        key, value = (repeat_heads(x, num_heads) for x in (self.key, self.value))
        return scaled(self.query, self.scale), key, value


Form: TypeAlias = Callable[[Inputs], Heads | None]
"""An implementation of attention, which returns None for inputs that it does not support."""


@dataclass(frozen=True)
class FastAttention:
    """Compute attention (equation 1) by the first of several forms that supports the inputs.

    Attributes:
      forms: implementations of attention with scaled dot products and without a bias.
      einsum: computes the dot products if no form supports the inputs.
      dtype: dtype of the computation; None means the dtype of the inputs.
    """

    forms: tuple[Form, ...]
    einsum: Einsum = einsum_float32
    dtype: DTypeLike | None = None

    def __call__(
        self,
        query: reference.Queries,
        key: reference.Keys,
        value: reference.Values,
        mask: Bool[Array, "#b #h #q k"] | SegmentMask | None = None,
        bias: DistanceBias | None = None,
        *,
        score: Score = SCALED_PRODUCT,
        dropout_rate: float = 0.0,
        dropout_key: DropoutKey | None = None,
    ) -> Heads:
        """Compute attention (equation 1) of every head; see `reference.attention`."""
        if dropout_key is None or dropout_rate == 0:
            dropout_rate, dropout_key = 0.0, None
        if mask is None and query.shape[1] * key.shape[1] > masks.MAX_DENSE_PAIRS:
            # One segment for each row allows all pairs, without a dense [q, k] mask.
            query_segments, key_segments = (jnp.ones(x.shape[:2], jnp.int32) for x in (query, key))
            mask = SegmentMask(query_segments, key_segments)
        result_dtype = value.dtype
        if self.dtype is not None:
            query, key, value = (x.astype(self.dtype) for x in (query, key, value))
        if isinstance(mask, SegmentMask) and mask.is_narrow:
            key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
            attend = partial(self, score=score, dropout_rate=dropout_rate)
            heads = windowed.windowed_attention(attend, query, key, value, mask, bias, dropout_key)
            return heads.astype(result_dtype), None
        result = None
        if isinstance(score, ScaledProducts):
            inputs = Inputs(query, key, value, mask, score.scale, dropout_rate, dropout_key)
            forms = self.forms if bias is None else ()
            result = next((out for form in forms if (out := form(inputs)) is not None), None)
            score = partial(self._scaled_products, score.scale)
        attend = partial(reference.attention, score=score, softmax=softmax_over_allowed)
        # `query_mask` is True for queries that may attend to a key; see `Heads`.
        heads, query_mask = result or attend(
            query, key, value, mask, bias, dropout_rate=dropout_rate, dropout_key=dropout_key
        )
        return heads.astype(result_dtype), query_mask

    def _scaled_products(
        self, scale: float | None, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"]
    ) -> Float32[Array, "b h q k"]:
        return self.einsum("bqhd,bkhd->bhqk", scaled(query, scale), key)


def softmax_over_allowed(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "#b #h #q k"] | None
) -> Float32[Array, "b h q k"]:
    """Compute the masked softmax of the scores, with a derivative that reads only the result."""
    return masked_softmax(scores, None) if mask is None else _softmax_over_allowed(scores, mask)


@jax.custom_jvp
def _softmax_over_allowed(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "#b #h #q k"]
) -> Float32[Array, "b h q k"]:
    return masked_softmax(scores, mask)


@_softmax_over_allowed.defjvp
def _softmax_tangent(primals: tuple[Array, ...], tangents: PyTree) -> tuple[Array, Array]:
    weights = _softmax_over_allowed(*primals)
    # JAX's own derivative would also read the mask.
    weighted_tangent = weights * tangents[0]
    return weights, weighted_tangent - weights * weighted_tangent.sum(-1, keepdims=True)


def blockwise_form(inputs: Inputs) -> Heads | None:
    """Compute attention of long rows in loops over blocks, on any device. Needs a `SegmentMask`."""
    if not isinstance(inputs.mask, SegmentMask):
        return None
    options = inputs.mask, inputs.dropout_rate, inputs.dropout_key
    return blockwise.blockwise_attention(*inputs.per_head, *options), None


def splash_form(inputs: Inputs) -> Heads | None:
    """Compute attention of long rows by JAX's splash kernel for TPUs, without dropout."""
    mask = inputs.mask
    if not isinstance(mask, SegmentMask) or inputs.dropout_rate > 0:
        return None
    if not splash.takes(inputs.query, inputs.value, mask):
        return None
    return splash.splash_attention(*inputs.per_head, mask), None


def cudnn_form(inputs: Inputs) -> Heads | None:
    """Compute attention on NVIDIA GPUs: short rows by `short_rows`, longer rows by cuDNN."""
    query, key, value, mask, scale, dropout_rate, _ = inputs
    if isinstance(mask, SegmentMask) and mask.size > _MAX_FUSED_PAIRS:
        return None
    if dropout_rate > 0 or not is_fused(query, key, value):
        return None
    dense_mask = mask.dense() if isinstance(mask, SegmentMask) else mask
    if dense_mask is not None and short_rows.fits(query, key, value, dense_mask):
        return short_rows.short_attention(query, key, value, dense_mask, scale), None
    return fused_attention(query, key, value, dense_mask, scale)


def is_fused(query: reference.Queries, key: reference.Keys, value: reference.Values) -> bool:
    """Return whether cuDNN's fused attention supports arrays of these shapes and dtypes.

    cuDNN needs 16-bit floats and equal head widths: a multiple of 8, at most 128. Its derivatives
    need even lengths.
    """
    if not query.dtype == key.dtype == value.dtype:
        return False
    are_even = query.shape[1] % 2 == key.shape[1] % 2 == 0
    return are_even and has_fused_widths(query.shape[-1], value.shape[-1], query.dtype)


def has_fused_widths(d_k: int, d_v: int, dtype: DTypeLike) -> bool:
    """Return whether cuDNN's fused attention supports these head widths; see `is_fused`."""
    has_16_bits = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return has_16_bits and d_k == d_v <= 128 and d_k % 8 == 0


def fused_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k groups d"],
    value: Float[Array, "b k groups d"],
    mask: Bool[Array, "#b #h #q k"] | None,
    scale: float | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Heads:
    """Compute equation 1 by `jax.nn.dot_product_attention`, which stores no attention weights.

    Args:
      mask: True where a query may attend to a key; None allows all pairs.
      scale: factor on the dot products; None means 1 / sqrt(d_k).
      implementation: "cudnn" needs arrays that `is_fused` accepts; "xla" supports all arrays.

    Returns:
      The weighted values, and the mask of queries; see `reference.Heads`.
    """
    has_key = jnp.bool_(True) if mask is None else mask.any(-1, keepdims=True)  # [b, h, q, 1]
    lengths: dict[str, Any] = {}
    if key.shape[1] % 128 == 64:
        # On Hopper GPUs, cuDNN (up to 9.30) returns NaN gradients for a query whose scores are all
        # below -88, masked scores included. It reads 128 keys at a time, and reads 64 missing keys
        # as scores of 0 (NVIDIA/cudnn-frontend, 628). Explicit lengths avoid this error. A query
        # without an allowed key attends to all keys here, so not all of its scores are masked.
        if mask is not None:
            mask |= ~has_key
        inputs = {"query_seq_lengths": query, "key_value_seq_lengths": key}
        lengths = {name: jnp.full(x.shape[0], x.shape[1]) for name, x in inputs.items()}
    heads = jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale, implementation=implementation, **lengths
    )
    if mask is None:
        return heads, None
    # `dot_product_attention` returns the mean of all values for a query that may attend to no key.
    has_key = has_key[..., 0].swapaxes(1, 2)  # [b, q, h]
    if has_key.shape[2] == 1:
        return heads, jnp.broadcast_to(has_key, (*heads.shape[:2], 1))
    return jnp.where(has_key[..., None], heads, 0), None
