"""Matrices of 8-bit integers, for decoding: less memory, and faster products on CPUs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Int8

_LARGEST = 127
_FEWEST_ROWS = 2  # one alone is multiplied by a loop that takes 20 times as long, on CPUs


class Int8Matrix(NamedTuple):
    """A matrix in 8 bits: `values * scales`."""

    values: Int8[Array, "m n"]
    scales: Float32[Array, "#m #n"]
    """One for every vector that is multiplied with, which makes the axis of its elements 1."""

    def astype(self, dtype: DTypeLike) -> "Int8Matrix":
        """The matrix itself: its products are of integers, whatever the dtype of the vectors."""
        del dtype
        return self


def quantize(x: Float[Array, "*shape"], axis: int) -> tuple[Int8[Array, "*shape"], Array]:
    """The nearest of 255 evenly spaced numbers to each element, 0 in their midst.

    Args:
      x: vectors.
      axis: which axis holds the elements of a vector. The greatest of them in magnitude becomes
        127 or -127.

    Returns:
      The integers, and what they are multiplied by for each vector (float32; `axis` has size 1).
    """
    greatest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=axis, keepdims=True)
    scales = jnp.where(greatest == 0, 1, greatest) / _LARGEST
    return jnp.round(x / scales).astype(jnp.int8), scales


def int8_product(
    x: Float[Array, "b t d_in"], matrix: Int8Matrix, axis: int
) -> Float32[Array, "b t d_out"]:
    """Vectors times a matrix: integers that are multiplied and summed exactly, and then scaled.

    Args:
      x: the vectors, which become integers themselves, each by its own greatest element.
      matrix: W.
      axis: of the matrix, which is summed over and has its scales' size 1.
    """
    values, scales = quantize(x, axis=-1)
    missing = max(0, _FEWEST_ROWS - x.shape[0] * x.shape[1])
    values = jnp.pad(values, ((0, 0), (0, missing), (0, 0)))
    sums = jax.lax.dot_general(
        values,
        matrix.values,
        (((2,), (axis,)), ((), ())),
        preferred_element_type=jnp.int32,
    )
    return sums[:, : x.shape[1]].astype(jnp.float32) * scales * matrix.scales.reshape(-1)
