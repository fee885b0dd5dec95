"""Matrices of 8-bit integers, for decoding: less memory, and faster products on CPUs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Int8

_LARGEST = 127
_FEWEST_ROWS = 2  # on CPUs, a single row is multiplied by a loop that takes 20 times as long


class Int8Matrix(NamedTuple):
    """A matrix in 8 bits: `values * scales`."""

    values: Int8[Array, "m n"]
    scales: Float32[Array, "#m #n"]
    """A factor for every vector of the matrix; the axis of a vector's elements has size 1."""

    def astype(self, dtype: DTypeLike) -> "Int8Matrix":
        """Return the matrix itself: its products are of integers, whatever the vectors' dtype."""
        return self


def quantize(x: Float[Array, "*shape"], axis: int) -> tuple[Int8[Array, "*shape"], Array]:
    """Round each element to the nearest of 255 evenly spaced numbers, symmetric about 0.

    Args:
      x: an array of vectors.
      axis: the axis that holds the elements of a vector. The element that is greatest in magnitude
        becomes 127 or -127.

    Returns:
      The integers, and the factor of each vector that gives back its elements (float32, with size 1
      along `axis`).
    """
    greatest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=axis, keepdims=True)
    scales = jnp.where(greatest == 0, 1, greatest) / _LARGEST
    return jnp.round(x / scales).astype(jnp.int8), scales


def int8_product(
    x: Float[Array, "b t d_in"], matrix: Int8Matrix, axis: int
) -> Float32[Array, "b t d_out"]:
    """Multiply vectors by a matrix, as integers that are summed exactly and then scaled.

    Args:
      x: the vectors, which are quantised too, each by its own greatest element.
      axis: the axis of the matrix that is summed over; its scales have size 1 along it.
    """
    values, scales = quantize(x, axis=-1)
    missing = max(0, _FEWEST_ROWS - x.shape[0] * x.shape[1])
    values = jnp.pad(values, ((0, 0), (0, missing), (0, 0)))
    sums = jax.lax.dot_general(
        values, matrix.values, (((2,), (axis,)), ((), ())), preferred_element_type=jnp.int32
    )
    return sums[:, : x.shape[1]].astype(jnp.float32) * scales * matrix.scales.reshape(-1)
