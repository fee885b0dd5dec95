"""Section 5.4: dropout, at the cost of a few integer operations per element."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32


class DropoutKey(NamedTuple):
    """The key that decides which elements of an array are dropped.

    A batch may be cut into passes or lie on several devices. Each part names its place in the
    whole, so that an element is dropped or kept whatever part it is computed in.

    Attributes:
      key: PRNG key of this use of dropout.
      first_row: number of the array's first row (of its leading axis) in the global batch.
    """

    key: Key[Array, ""]
    first_row: Int[Array, ""] | int = 0


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Map 32-bit words one to one, so that any input bit flips any output bit half the time.

    This is multiply-xorshift with the constants of C. Wellons' search for low bias ("lowbias32").
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_words(shape: tuple[int, ...], key: DropoutKey) -> UInt32[Array, "..."]:
    """Return a random 32-bit word per element: a hash of its row, its place, and 64 bits of key.

    A general-purpose generator spends a fifth of a training step on CPU on bits that dropout
    compares with one threshold. The hash is cheap enough for XLA to compute inside the loop that
    uses it, and a word depends only on its row and place, so cutting an array up, over devices or
    over time, does not change its bits.

    Args:
      shape: `[rows, ...]`.
      key: the key, and the number of the first row.
    """
    return mixed(*hashes(shape, key))


def hashes(
    shape: tuple[int, ...], key: DropoutKey
) -> tuple[UInt32[Array, "1 *inner"], UInt32[Array, "rows *ones"]]:
    """Return the hashes of place and of row, from which `mixed` makes the words of `random_words`.

    Args:
      shape: `[rows, *inner]`.
      key: the key, and the number of the first row.
    """
    rows, *inner = shape
    place = jax.lax.iota(jnp.uint32, math.prod(inner)).reshape(1, *inner)
    first_row = jnp.asarray(key.first_row, jnp.uint32)
    return hashes_at(place, rows, jax.random.bits(key.key, (2,)), first_row)


def hashes_at(
    place: UInt32[Array, "1 *inner"],
    rows: int,
    bits: UInt32[Array, "2"],
    first_row: UInt32[Array, ""],
) -> tuple[UInt32[Array, "1 *inner"], UInt32[Array, "{rows} *ones"]]:
    """Return the hashes of some places of an array that never exists as a whole; see `hashes`.

    Args:
      place: numbers of the places within a row, as they follow one another in the whole array.
      rows: number of rows.
      bits: 64 bits of the key.
      first_row: number of the first row.
    """
    low, high = bits
    number = jax.lax.iota(jnp.uint32, rows) + first_row
    of_row = _mix(number ^ high).reshape(rows, *[1] * (place.ndim - 1))
    return _mix(place ^ low), of_row


def mixed(
    of_place: UInt32[Array, "1 *inner"], of_row: UInt32[Array, "rows *ones"]
) -> UInt32[Array, "rows *inner"]:
    """Combine the hashes of place and of row to a word for each element of an array.

    Args:
      of_place: the hash of each place, from `hashes`.
      of_row: the hash of each row, from `hashes`.
    """
    return _mix(of_place + of_row)


def threshold(rate: float) -> UInt32[Array, ""]:
    """Return the number below which an element's random word means that it is dropped."""
    return jnp.uint32(round(rate * 2**32))


def dropout(
    x: Float[Array, "rows *shape"], rate: float, key: DropoutKey | None
) -> Float[Array, "rows *shape"]:
    """Set each element to zero with probability `rate`, and divide the others by `1 - rate`.

    Section 5.4 applies it to the output of each sub-layer and to embeddings.

    Args:
      x: any array with rows.
      rate: the paper's P_drop, in [0, 1).
      key: the same key drops the same elements; None drops nothing.
    """
    if rate == 0 or key is None:
        return x
    return dropped(x, rate, random_words(x.shape, key))


def dropped(
    x: Float[Array, "*shape"], rate: float, words: UInt32[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Set the elements that their words drop to zero, and divide the others by `1 - rate`.

    Args:
      x: any array.
      rate: the share of the elements that are dropped, in [0, 1).
      words: a random word for each element; see `random_words`.
    """
    return jnp.where(words >= threshold(rate), x * jnp.asarray(1 / (1 - rate), x.dtype), 0)
