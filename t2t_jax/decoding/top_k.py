"""A search for the k greatest of many numbers that is faster on CPUs than `jax.lax.top_k`."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32


def top_k(
    x: Float32[Array, "*rows n"], k: int
) -> tuple[Float32[Array, "*rows {k}"], Int32[Array, "*rows {k}"]]:
    """Return what `jax.lax.top_k` returns, for long rows on CPUs in a third of its time or less.

    A row is cut into blocks. The k greatest numbers are in the k blocks with the greatest maxima,
    so that one pass over the row finds the few numbers that have to be sorted.

    Args:
      k: how many to find in each row, at most n.

    Returns:
      The k greatest of each row, greatest first, and their indices. Of equal numbers, the first.
    """
    length = x.shape[-1]
    block = 1 << round(math.log2(length / k) / 2)  # as many maxima as numbers in the k blocks
    blocks = length // block
    if blocks < 2 * k:
        values, places = jax.lax.top_k(x, k)
        return values, places
    whole = blocks * block
    maxima = jnp.max(x[..., :whole].reshape(*x.shape[:-1], blocks, block), axis=-1)
    chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
    places = (chosen[..., None] * block + jnp.arange(block)).reshape(*x.shape[:-1], k * block)
    rest = jnp.broadcast_to(jnp.arange(whole, length), (*x.shape[:-1], length - whole))
    places = jnp.concatenate([places, rest], axis=-1)
    values, best = jax.lax.top_k(jnp.take_along_axis(x, places, axis=-1), k)
    return values, jnp.take_along_axis(places, best, axis=-1)
