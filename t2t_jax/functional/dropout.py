"""Section 5.4: dropout, at the cost of a few integer operations per element."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32


def _mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A bijection of 32-bit words in which every input bit flips every output bit half the time.

    Multiply-xorshift with the constants of C. Wellons' search for low bias ("lowbias32").
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_words(shape: tuple[int, ...], key: Key[Array, ""]) -> UInt32[Array, "..."]:
    """One random 32-bit word per element: a hash of its index and of 64 bits drawn from the key.

    A general-purpose generator spends a fifth of a training step on CPU on bits that dropout
    compares with one threshold. This one is cheap enough for XLA to compute inside the loop that
    uses it, and a word depends only on its index, so sharding an array does not change its bits.
    """
    low, high = jax.random.bits(key, (2,))
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _mix(_mix(index ^ low) + high)


def dropout(x: Float[Array, "*shape"], rate: float, key: Key[Array, ""]) -> Float[Array, "*shape"]:
    """Set each element to zero with probability `rate`, and divide the others by `1 - rate`.

    Args:
      x: any array.
      rate: the paper's P_drop, in [0, 1).
      key: PRNG key; the same key drops the same elements.
    """
    if rate == 0:
        return x
    keep = random_words(x.shape, key) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), 0)
