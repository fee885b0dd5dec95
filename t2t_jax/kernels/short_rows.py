"""Attention of rows of at most 64 positions (section 3.2.1) on NVIDIA GPUs, by Pallas kernels.

The scores of a short row and head fit in the registers of a multiprocessor. So one kernel computes
the weighted values, and one kernel all three derivatives. cuDNN's kernels read blocks of 128 keys,
and take 2.5 times as long on an H200. Pallas compiles the kernels here through Triton.
"""

import functools
from importlib.util import find_spec
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8

from t2t_jax.kernels.reference import Keys, Queries, Values
from t2t_jax.parallel.axes import HEADS, in_parts, is_divided

_MAX_LENGTH = 64
"""Maximum number of queries, and of keys, of a row."""
_WIDTHS = 16, 32, 64
"""Supported head widths: powers of two for Triton, and at least 16 for the matrix unit."""
_MASKED_SCORE = -1e30
"""Score of a pair that the mask forbids, before its weight is set to zero."""

Ref: TypeAlias = Any
"""A reference to a block of an array in a kernel. Pallas has no public type for it."""

_Heads: TypeAlias = Float[Array, "b _ h d"]
_Arrays: TypeAlias = tuple[_Heads, _Heads, _Heads, Int8[Array, "b 1 q k"]]
"""Queries, keys, values and the mask."""


def fits(query: Queries, key: Keys, value: Values, mask: Bool[Array, "b #h #q k"]) -> bool:
    """Return whether the kernels for short rows support these arrays and this mask.

    cuDNN must support the arrays too. The mesh must be known (`parallel.axes.on_mesh`).
    """
    has_key_per_head = query.shape[2] == key.shape[2]
    is_short = max(query.shape[1], key.shape[1]) <= _MAX_LENGTH
    has_width = query.shape[3] == value.shape[3] and query.shape[3] in _WIDTHS
    has_mask_per_row = mask.shape[1] == 1 and mask.shape[0] == query.shape[0]
    is_supported = has_key_per_head and is_short and has_width and has_mask_per_row
    return is_supported and is_divided(query, *HEADS) and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return find_spec("jax.experimental.pallas.triton") is not None


def short_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k h d"],
    value: Float[Array, "b k h d"],
    mask: Bool[Array, "b 1 #q k"],
    scale: float | None = None,
    *,
    interpret: bool = False,
) -> Float[Array, "b q h d"]:
    """Compute equation 1 for arrays that `fits` accepts.

    Args:
      mask: True where a query may attend to a key.
      scale: factor on the dot products; None means 1 / sqrt(d_k).
      interpret: whether Pallas interprets the kernels, on any device.

    Returns:
      The weighted values; zeros for a query that may attend to no key.
    """
    mask_axes = "batch", None, "length", "length"
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    full_mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))

    def attend(query: Array, key: Array, value: Array, mask: Array) -> Array:
        return _attention(scale, interpret, (query, key, value, mask))

    attend_in_parts = in_parts(attend, (*[HEADS] * 3, mask_axes), HEADS)
    return attend_in_parts(query, key, value, full_mask.astype(jnp.int8))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(scale: float, interpret: bool, arrays: _Arrays) -> Float[Array, "b q h d"]:
    kernel = functools.partial(_forward_kernel, scale)
    return _call(kernel, "forward", interpret, arrays, arrays[:1])[0]


def _forward(scale: float, interpret: bool, arrays: _Arrays) -> tuple[Array, _Arrays]:
    return _attention(scale, interpret, arrays), arrays


def _backward(
    scale: float, interpret: bool, arrays: _Arrays, cotangent: Float[Array, "b q h d"]
) -> tuple[tuple[Array | None, ...]]:
    kernel, inputs = functools.partial(_backward_kernel, scale), (*arrays, cotangent)
    return ((*_call(kernel, "backward", interpret, inputs, arrays[:3]), None),)


_attention.defvjp(_forward, _backward)


def _call(
    kernel: Any, name: str, interpret: bool, arrays: tuple[Array, ...], results: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Run a kernel for every row and head.

    Args:
      results: arrays with the shapes and dtypes of the kernel's results.
    """
    # Import Pallas only in programs for GPUs, because this takes half a second.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    rows, num_queries, num_heads, width = arrays[0].shape
    lengths = num_queries, arrays[1].shape[1]
    # Triton needs block sizes that are powers of two.
    block_lengths = [max(16, pallas.next_power_of_2(length)) for length in lengths]

    def block(x: Array) -> pallas.BlockSpec:
        if x.dtype == jnp.int8:
            return pallas.BlockSpec((None, None, *block_lengths), lambda row, _: (row, 0, 0, 0))
        block_shape = None, block_lengths[lengths.index(x.shape[1])], None, width
        return pallas.BlockSpec(block_shape, lambda row, head: (row, 0, head, 0))

    return pallas.pallas_call(
        functools.partial(kernel, lengths),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
        grid=(rows, num_heads),
        in_specs=[block(x) for x in arrays],
        out_specs=[block(x) for x in results],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
        name=f"short_attention_{name}",
        interpret=interpret,
    )(*arrays)


def _forward_kernel(
    scale: float, lengths: tuple[int, int], query: Ref, key: Ref, value: Ref, mask: Ref, output: Ref
) -> None:
    num_queries, num_keys = lengths
    q, k, v = _read(query, num_queries), _read(key, num_keys), _read(value, num_keys)
    weights = _weights(q, k, _read(mask, *lengths), scale)
    _write(output, _matmul(weights.astype(v.dtype), v), num_queries)


def _backward_kernel(scale: float, lengths: tuple[int, int], *arrays: Ref) -> None:
    """Write the gradients with respect to the queries, keys and values."""
    query, key, value, mask, cotangent, query_bar, key_bar, value_bar = arrays
    num_queries, num_keys = lengths
    q, k, v = _read(query, num_queries), _read(key, num_keys), _read(value, num_keys)
    heads_bar = _read(cotangent, num_queries)
    weights = _weights(q, k, _read(mask, *lengths), scale)
    weights_bar = _matmul(heads_bar, v.T)
    # The gradient of the softmax: w (w_bar - sum(w w_bar)).
    weighted = weights * weights_bar
    scores_bar = (weighted - weights * weighted.sum(1, keepdims=True)) * scale
    scores_bar = scores_bar.astype(q.dtype)
    _write(value_bar, _matmul(weights.astype(v.dtype).T, heads_bar), num_keys)
    _write(query_bar, _matmul(scores_bar, k), num_queries)
    _write(key_bar, _matmul(scores_bar.T, q), num_keys)


def _weights(
    q: Float[Array, "q d"], k: Float[Array, "k d"], mask: Int8[Array, "q k"], scale: float
) -> Float[Array, "q k"]:
    """Compute attention weights of a row and head; zeros for a query that may attend to no key."""
    is_allowed = mask != 0
    scores = jnp.where(is_allowed, _matmul(q, k.T) * scale, _MASKED_SCORE)
    exponentials = jnp.where(is_allowed, jnp.exp(scores - scores.max(1, keepdims=True)), 0)
    total = exponentials.sum(1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def _matmul(a: Float[Array, "m k"], b: Float[Array, "k n"]) -> Float[Array, "m n"]:
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)


def _read(ref: Ref, *sizes: int) -> Array:
    from jax.experimental.pallas import triton

    mask = _bounds_mask(ref, *sizes)
    return triton.load(ref, mask=mask, other=None if mask is None else 0)


def _write(ref: Ref, x: Float[Array, "n d"], size: int) -> None:
    from jax.experimental.pallas import triton

    triton.store(ref, x.astype(ref.dtype), mask=_bounds_mask(ref, size))


def _bounds_mask(ref: Ref, *sizes: int) -> Bool[Array, "n d"] | None:
    """Return a mask that is True within the given sizes, or None if they cover the block."""
    masks = [
        jax.lax.broadcasted_iota(jnp.int32, ref.shape, axis) < size
        for axis, size in enumerate(sizes)
        if ref.shape[axis] != size
    ]
    return functools.reduce(jnp.logical_and, masks) if masks else None
