"""Attention of short rows (section 3.2.1) on NVIDIA GPUs: a row and a head are one piece of work.

All scores of a row of up to 64 positions fit the registers of a multiprocessor. So one kernel reads
queries, keys and values once and writes the weighted values, and one writes all three derivatives:
nothing but the mask is kept for them. cuDNN's kernels, for rows of any length, go through blocks of
128 keys, keep the logarithms of sums, and find the derivatives in three kernels: on an H200 they
take two and a half times as long.

The kernels are written in Pallas, which makes Triton's of them.
"""

import functools
from importlib.util import find_spec
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int8

from t2t_jax.parallel.axes import HEADS, in_parts, is_divided

_LONGEST = 64
"""Most queries, and most keys, of a row."""
_WIDTHS = 16, 32, 64
"""Widths of heads: powers of two, as Triton has them, from the smallest of a matrix unit on."""
_HIDDEN = -1e30
"""The score of a key that a query may not attend to, before its weight is set to zero."""

Ref: TypeAlias = Any
"""A block of an array that a kernel reads or writes: Pallas has no public type for it."""

_Heads: TypeAlias = Float[Array, "b _ h d"]
_Arrays: TypeAlias = tuple[_Heads, _Heads, _Heads, Int8[Array, "b 1 q k"]]
"""Queries, keys, values and the mask."""


def fits(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    value: Float[Array, "b k groups d_v"],
    mask: Bool[Array, "b #h #q k"],
) -> bool:
    """Return whether the kernels compute this attention, of arrays that cuDNN takes as well.

    The devices have to be known, and to have equally many rows and heads, as for `splash.takes`.

    Args:
      mask: True where a query may attend to a key.
    """
    has_own_keys = query.shape[2] == key.shape[2]
    is_short = max(query.shape[1], key.shape[1]) <= _LONGEST
    is_wide = query.shape[3] == value.shape[3] and query.shape[3] in _WIDTHS
    is_alike = mask.shape[1] == 1 and mask.shape[0] == query.shape[0]
    is_right = has_own_keys and is_short and is_wide and is_alike
    return is_right and is_divided(query, *HEADS) and _has_triton()


@functools.cache
def _has_triton() -> bool:
    """Return whether the installed JAX compiles kernels by Triton, which it may give up."""
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
      scale: factor on the products; None means 1 / sqrt(d_k).
      interpret: whether the interpreter of Pallas runs the kernels, on any device.

    Returns:
      The weighted values; zeros for a query that may attend to nothing.
    """
    of_rows = "batch", None, "length", "length"
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    whole_mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))

    def attend(query: Array, key: Array, value: Array, mask: Array) -> Array:
        return _attention(scale, interpret, (query, key, value, mask))

    attend_in_parts = in_parts(attend, (*[HEADS] * 3, of_rows), HEADS)
    return attend_in_parts(query, key, value, whole_mask.astype(jnp.int8))


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
    """Call a kernel for every row and head.

    Args:
      results: arrays of the shapes and dtypes that the kernel writes.
    """
    # Only programs for GPUs need Pallas, which takes half a second to import.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    rows, num_queries, num_heads, width = arrays[0].shape
    lengths = num_queries, arrays[1].shape[1]
    # The sizes of blocks are powers of two, as Triton has them.
    padded = [max(16, pallas.next_power_of_2(length)) for length in lengths]

    def block(x: Array) -> pallas.BlockSpec:
        if x.dtype == jnp.int8:
            return pallas.BlockSpec((None, None, *padded), lambda row, _: (row, 0, 0, 0))
        whole = None, padded[lengths.index(x.shape[1])], None, width
        return pallas.BlockSpec(whole, lambda row, head: (row, 0, head, 0))

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
    _write(output, _product(weights.astype(v.dtype), v), num_queries)


def _backward_kernel(scale: float, lengths: tuple[int, int], *arrays: Ref) -> None:
    """Write the derivatives by the queries, keys and values."""
    query, key, value, mask, cotangent, by_query, by_key, by_value = arrays
    num_queries, num_keys = lengths
    q, k, v = _read(query, num_queries), _read(key, num_keys), _read(value, num_keys)
    heads_bar = _read(cotangent, num_queries)
    weights = _weights(q, k, _read(mask, *lengths), scale)
    weights_bar = _product(heads_bar, v.T)
    # The derivative of the softmax: w (w_bar - sum(w w_bar)).
    inner = weights * weights_bar
    scores_bar = (inner - weights * inner.sum(1, keepdims=True)) * scale
    scores_bar = scores_bar.astype(q.dtype)
    _write(by_value, _product(weights.astype(v.dtype).T, heads_bar), num_keys)
    _write(by_query, _product(scores_bar, k), num_queries)
    _write(by_key, _product(scores_bar.T, q), num_keys)


def _weights(
    q: Float[Array, "q d"], k: Float[Array, "k d"], mask: Int8[Array, "q k"], scale: float
) -> Float[Array, "q k"]:
    """Compute the weights of a row and head, zeros for a query that may attend to nothing."""
    is_allowed = mask != 0
    scores = jnp.where(is_allowed, _product(q, k.T) * scale, _HIDDEN)
    exponentials = jnp.where(is_allowed, jnp.exp(scores - scores.max(1, keepdims=True)), 0)
    total = exponentials.sum(1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def _product(a: Float[Array, "m k"], b: Float[Array, "k n"]) -> Float[Array, "m n"]:
    return jax.lax.dot(a, b, preferred_element_type=jnp.float32)


def _read(ref: Ref, *sizes: int) -> Array:
    """Read a block, with zeros for elements beyond the sizes."""
    from jax.experimental.pallas import triton

    mask = _within(ref, *sizes)
    return triton.load(ref, mask=mask, other=None if mask is None else 0)


def _write(ref: Ref, x: Float[Array, "n d"], size: int) -> None:
    from jax.experimental.pallas import triton

    triton.store(ref, x.astype(ref.dtype), mask=_within(ref, size))


def _within(ref: Ref, *sizes: int) -> Bool[Array, "n d"] | None:
    """Return the mask of the valid elements of a block, or None if all are valid."""
    inside = [
        jax.lax.broadcasted_iota(jnp.int32, ref.shape, axis) < size
        for axis, size in enumerate(sizes)
        if ref.shape[axis] != size
    ]
    return functools.reduce(jnp.logical_and, inside) if inside else None
