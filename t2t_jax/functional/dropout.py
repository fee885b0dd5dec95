"""Dropout (section 5.4), with random bits from a cheap hash of each element's index."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32


class DropoutKey(NamedTuple):
    """A PRNG key for dropout, and the position of the array in the global batch.

    Dropout hashes global row indices. An element gets the same random bits when the batch is split
    into gradient accumulation passes or over devices.

    Attributes:
      key: PRNG key of this call of dropout.
      first_row: index of the array's first row (leading axis) in the global batch.
    """

    key: Key[Array, ""]
    first_row: Int[Array, ""] | int = 0


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Hash 32-bit words by the bijection "lowbias32" (multiply-xorshift, by C. Wellons)."""
    # Flipping one input bit flips each output bit with a probability of about 1/2.
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_words(shape: tuple[int, ...], key: DropoutKey) -> UInt32[Array, "..."]:
    """Return a random 32-bit word per element: a hash of its row, its index in the row and the key.

    On CPUs, a general-purpose generator takes a fifth of a training step. XLA fuses this hash into
    the loop that reads the words.

    Args:
      shape: `[rows, ...]`.
      key: the PRNG key, and the global index of the first row.
    """
    return combine_hashes(*hashes(shape, key))


def hashes(
    shape: tuple[int, ...], key: DropoutKey
) -> tuple[UInt32[Array, "1 *inner"], UInt32[Array, "rows *ones"]]:
    """Hash the index of each element in its row, and of each row, for `combine_hashes`.

    Args:
      shape: `[rows, *inner]`.
      key: the PRNG key, and the global index of the first row.
    """
    num_rows, *inner = shape
    indices = jax.lax.iota(jnp.uint32, math.prod(inner)).reshape(1, *inner)
    first_row = jnp.asarray(key.first_row, jnp.uint32)
    return hashes_at(indices, num_rows, jax.random.bits(key.key, (2,)), first_row)


def hashes_at(
    indices: UInt32[Array, "1 *inner"],
    num_rows: int,
    bits: UInt32[Array, "2"],
    first_row: UInt32[Array, ""],
) -> tuple[UInt32[Array, "1 *inner"], UInt32[Array, "{num_rows} *ones"]]:
    """Hash a slice of an array that does not fit in memory, for `combine_hashes`.

    Args:
      indices: flat indices of the slice's elements within a row of the full array.
      num_rows: number of rows.
      bits: 64 random bits from the PRNG key.
      first_row: global index of the first row.

    Returns:
      The hash of each index, in the shape of `indices`; and of each row, `[rows, 1, ...]`.
    """
    low_bits, high_bits = bits
    row_indices = jax.lax.iota(jnp.uint32, num_rows) + first_row
    row_hashes = _mix(row_indices ^ high_bits).reshape(num_rows, *[1] * (indices.ndim - 1))
    return _mix(indices ^ low_bits), row_hashes


def combine_hashes(
    index_hashes: UInt32[Array, "1 *inner"], row_hashes: UInt32[Array, "rows *ones"]
) -> UInt32[Array, "rows *inner"]:
    """Combine the hashes of indices and rows into one random word per element.

    Args:
      index_hashes: the hash of each index within a row, from `hashes`.
      row_hashes: the hash of each row, from `hashes`.
    """
    return _mix(index_hashes + row_hashes)


def threshold(rate: float) -> UInt32[Array, ""]:
    """Return the threshold for random words: dropout drops the elements whose word is below it."""
    return jnp.uint32(round(rate * 2**32))


def dropout(
    x: Float[Array, "rows *shape"], rate: float, key: DropoutKey | None
) -> Float[Array, "rows *shape"]:
    """Set each element to 0 with probability `rate`, and divide the other elements by `1 - rate`.

    Section 5.4 applies dropout to the output of each sub-layer and to the embeddings.

    Args:
      x: the array.
      rate: the paper's P_drop, in [0, 1).
      key: equal keys drop the same elements; None disables dropout.
    """
    if rate == 0 or key is None:
        return x
    return dropped(x, rate, random_words(x.shape, key))


def dropped(
    x: Float[Array, "*shape"], rate: float, words: UInt32[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Apply dropout with precomputed random words.

    Args:
      x: the array.
      rate: dropout probability, in [0, 1).
      words: a random word for each element, from `random_words`.
    """
    return jnp.where(words >= threshold(rate), x * jnp.asarray(1 / (1 - rate), x.dtype), 0)
