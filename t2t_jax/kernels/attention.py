"""Fast forms of equation 1: fused on GPUs and TPUs, in windows, and in blocks for long rows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, PyTree

from t2t_jax.functional import masks
from t2t_jax.functional.attention import ScaledProducts, masked_softmax, repeat_heads, scaled
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels import blockwise, reference, short_rows, splash, windowed
from t2t_jax.kernels.products import Einsum, einsum_float32
from t2t_jax.kernels.reference import SCALED_PRODUCT, DistanceBias, Heads, Score

_LARGEST_FUSED = 1 << 28
"""Most entries of a mask for cuDNN. The mask is the only quadratic array that it keeps; so many
entries take half a gigabyte in 16 bits."""


class Inputs(NamedTuple):
    """The inputs of attention whose scores are products, for a `Form`."""

    query: Float[Array, "b q h d_k"]
    """Queries of each head."""
    key: Float[Array, "b k groups d_k"]
    """Keys of each head or group of heads."""
    value: Float[Array, "b k groups d_v"]
    """Values of each head or group."""
    mask: Bool[Array, "#b #h #q k"] | SegmentMask | None
    """Which positions may attend to which."""
    scale: float | None
    """Factor on the products; None means 1 / sqrt(d_k)."""
    dropout_rate: float
    """Share of the weights set to zero."""
    dropout_key: DropoutKey | None
    """Key that decides which of them; None if the rate is 0."""

    @property
    def of_each_head(self) -> tuple[Array, Array, Array]:
        """Return scaled queries, and keys and values of each head."""
        heads = self.query.shape[2]
        key, value = (repeat_heads(x, heads) for x in (self.key, self.value))
        return scaled(self.query, self.scale), key, value


Form: TypeAlias = Callable[[Inputs], Heads | None]
"""A form of attention for some shapes, dtypes and masks; it gives None for others."""


@dataclass(frozen=True)
class FastAttention:
    """Equation 1 by the first form that takes the inputs; see `Kernels.attention`.

    Attributes:
      forms: forms for scores that are products without a bias.
      product: the product of queries and keys where no form fits.
      dtype: the dtype to compute in; None means that of the arrays.
    """

    forms: tuple[Form, ...]
    product: Einsum = einsum_float32
    dtype: DTypeLike | None = None

    def __call__(
        self,
        query: Float[Array, "b q h d_k"],
        key: Float[Array, "b k groups d_k"],
        value: Float[Array, "b k groups d_v"],
        mask: Bool[Array, "#b #h #q k"] | SegmentMask | None = None,
        bias: DistanceBias | None = None,
        *,
        score: Score = SCALED_PRODUCT,
        dropout_rate: float = 0.0,
        dropout_key: DropoutKey | None = None,
    ) -> Heads:
        """Compute equation 1; the arguments are those of `reference.attention`."""
        if dropout_key is None or dropout_rate == 0:
            dropout_rate, dropout_key = 0.0, None
        if mask is None and query.shape[1] * key.shape[1] > masks.MAX_DENSE_PAIRS:
            of_queries, of_keys = (jnp.ones(x.shape[:2], jnp.int32) for x in (query, key))
            mask = SegmentMask(of_queries, of_keys)
        dtype = value.dtype
        if self.dtype is not None:
            query, key, value = (x.astype(self.dtype) for x in (query, key, value))
        if isinstance(mask, SegmentMask) and mask.is_narrow:
            key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
            of_blocks = partial(self, score=score, dropout_rate=dropout_rate)
            arrays = query, key, value, mask, bias, dropout_key
            return windowed.windowed_attention(of_blocks, *arrays).astype(dtype), None
        result = None
        if isinstance(score, ScaledProducts):
            inputs = Inputs(query, key, value, mask, score.scale, dropout_rate, dropout_key)
            forms = self.forms if bias is None else ()
            result = next((y for form in forms if (y := form(inputs)) is not None), None)
            score = partial(self._products, score.scale)
        attend = partial(reference.attention, score=score, softmax=softmax_over_allowed)
        heads, rows = result or attend(
            query, key, value, mask, bias, dropout_rate=dropout_rate, dropout_key=dropout_key
        )
        return heads.astype(dtype), rows

    def _products(
        self, scale: float | None, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"]
    ) -> Float32[Array, "b h q k"]:
        return self.product("bqhd,bkhd->bhqk", scaled(query, scale), key)


def softmax_over_allowed(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "#b #h #q k"] | None
) -> Float32[Array, "b h q k"]:
    """Compute `functional.attention.masked_softmax`, with a derivative that reads the weights."""
    return masked_softmax(scores, None) if mask is None else _softmax_over_allowed(scores, mask)


@jax.custom_jvp
def _softmax_over_allowed(
    scores: Float32[Array, "b h q k"], mask: Bool[Array, "#b #h #q k"]
) -> Float32[Array, "b h q k"]:
    return masked_softmax(scores, mask)


@_softmax_over_allowed.defjvp
def _softmax_tangent(primals: tuple[Array, ...], tangents: PyTree) -> tuple[Array, Array]:
    weights = _softmax_over_allowed(*primals)
    # JAX's own rule would read the mask, too.
    weighted = weights * tangents[0]
    return weights, weighted - weights * weighted.sum(-1, keepdims=True)


def blockwise_form(inputs: Inputs) -> Heads | None:
    """Compute attention of long rows in loops over blocks, on any device."""
    if not isinstance(inputs.mask, SegmentMask):
        return None
    options = inputs.mask, inputs.dropout_rate, inputs.dropout_key
    return blockwise.blockwise_attention(*inputs.of_each_head, *options), None


def splash_form(inputs: Inputs) -> Heads | None:
    """Compute attention of long rows by JAX's kernel for TPUs."""
    mask = inputs.mask
    if not isinstance(mask, SegmentMask) or inputs.dropout_rate > 0:
        return None
    if not splash.takes(inputs.query, inputs.value, mask):
        return None
    return splash.splash_attention(*inputs.of_each_head, mask), None


def cudnn_form(inputs: Inputs) -> Heads | None:
    """Compute attention on NVIDIA GPUs: short rows by `short_rows`, others by cuDNN."""
    query, key, value, mask, scale, dropout_rate, _ = inputs
    if isinstance(mask, SegmentMask) and mask.size > _LARGEST_FUSED:
        return None
    if dropout_rate > 0 or not is_fused(query, key, value):
        return None
    whole = mask.dense() if isinstance(mask, SegmentMask) else mask
    if whole is not None and short_rows.fits(query, key, value, whole):
        return short_rows.short_attention(query, key, value, whole, scale), None
    return fused_attention(query, key, value, whole, scale)


def is_fused(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    value: Float[Array, "b k groups d_v"],
) -> bool:
    """Return whether cuDNN's fused attention takes arrays of these shapes and dtypes.

    cuDNN needs 16-bit arrays, heads of equal widths that are multiples of 8 up to 128, and even
    lengths, for the derivatives.
    """
    if not query.dtype == key.dtype == value.dtype:
        return False
    are_even = query.shape[1] % 2 == key.shape[1] % 2 == 0
    return are_even and has_fused_widths(query.shape[-1], value.shape[-1], query.dtype)


def has_fused_widths(d_k: int, d_v: int, dtype: DTypeLike) -> bool:
    """Return whether cuDNN's fused attention takes heads of these widths; see `is_fused`."""
    is_narrow = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return is_narrow and d_k == d_v <= 128 and d_k % 8 == 0


def fused_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k groups d"],
    value: Float[Array, "b k groups d"],
    mask: Bool[Array, "#b #h #q k"] | None,
    scale: float | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Heads:
    """Compute equation 1 by `jax.nn.dot_product_attention`, whose fused kernel keeps no weights.

    Args:
      key: keys of each head or group.
      mask: True where a query may attend to a key, for all heads alike or for each; None allows
        everything.
      scale: factor on the products; None means 1 / sqrt(d_k).
      implementation: "cudnn" takes arrays for which `is_fused` is true; "xla" computes the same of
        any arrays, on any device.

    Returns:
      The weighted values, and the mask of queries; see `reference.Heads`.
    """
    attends = jnp.bool_(True) if mask is None else mask.any(-1, keepdims=True)
    lengths: dict[str, Any] = {}
    if key.shape[1] % 128 == 64:
        # On Hopper GPUs, cuDNN (up to 9.30) gives NaN gradients for a query whose scores are all
        # below -88, hidden ones included: it reads 128 keys at a time, and takes the missing 64 as
        # scores of 0 (NVIDIA/cudnn-frontend, 628). Given lengths, it does not. A query without a
        # key attends to all, so that not all of its scores are hidden.
        if mask is not None:
            mask |= ~attends
        sides = {"query_seq_lengths": query, "key_value_seq_lengths": key}
        lengths = {name: jnp.full(x.shape[0], x.shape[1]) for name, x in sides.items()}
    heads = jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale, implementation=implementation, **lengths
    )
    if mask is None:
        return heads, None
    # That function gives a query that may attend to nothing the mean of all values.
    attends = attends[..., 0].swapaxes(1, 2)
    if attends.shape[2] == 1:
        return heads, jnp.broadcast_to(attends, (*heads.shape[:2], 1))
    return jnp.where(attends[..., None], heads, 0), None
