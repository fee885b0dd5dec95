"""Matrices of 8-bit integers for decoding: less memory, and faster matmuls on CPUs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Int8

_MAX_INT8 = 127
_MIN_ROWS = 2  # XLA for CPUs multiplies a single row in a loop, which takes 20 times as long


class Int8Matrix(NamedTuple):
    """A matrix in 8 bits: `values * scales`."""

    values: Int8[Array, "m n"]
    scales: Float32[Array, "#m #n"]
    """Scale of each vector of the matrix; the axis of a vector's elements has size 1."""

    def astype(self, dtype: DTypeLike) -> "Int8Matrix":
        """Return the matrix unchanged: `int8_product` multiplies integers for every dtype of x."""
        return self


def quantize(x: Float[Array, "*shape"], axis: int) -> tuple[Int8[Array, "*shape"], Array]:
    """Quantize vectors to 8-bit integers from -127 to 127.

    Args:
      axis: the axis of a vector's elements. The element of largest magnitude becomes 127 or -127.

    Returns:
      The integers, and the scale of each vector in float32, with size 1 along `axis`: integer times
      scale restores an element up to rounding.
    """
    magnitude = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=axis, keepdims=True)
    scales = jnp.where(magnitude == 0, 1, magnitude) / _MAX_INT8
    return jnp.round(x / scales).astype(jnp.int8), scales


def int8_product(
    x: Float[Array, "b t d_in"], matrix: Int8Matrix, axis: int
) -> Float32[Array, "b t d_out"]:
    """Multiply vectors by an int8 matrix: sum integer products exactly, then scale the sums.

    Args:
      x: the vectors, which this function quantizes too.
      axis: the matrix axis to sum over; the scales of the matrix have size 1 along it.
    """
    quantized, x_scales = quantize(x, axis=-1)
    num_padding = max(0, _MIN_ROWS - x.shape[0] * x.shape[1])
    quantized = jnp.pad(quantized, ((0, 0), (0, num_padding), (0, 0)))
    sums = jax.lax.dot_general(
        quantized, matrix.values, (((2,), (axis,)), ((), ())), preferred_element_type=jnp.int32
    )
    return sums[:, : x.shape[1]].astype(jnp.float32) * x_scales * matrix.scales.reshape(-1)
