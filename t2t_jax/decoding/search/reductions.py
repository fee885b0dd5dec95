"""Reductions of logits over the vocabulary, in plain JAX."""

import math
from collections.abc import Callable
from typing import NamedTuple

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
        values, indices = jax.lax.top_k(x, k)
        return values, indices
    whole = blocks * block
    maxima = jnp.max(x[..., :whole].reshape(*x.shape[:-1], blocks, block), axis=-1)
    chosen = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)
    indices = (chosen[..., None] * block + jnp.arange(block)).reshape(*x.shape[:-1], k * block)
    rest = jnp.broadcast_to(jnp.arange(whole, length), (*x.shape[:-1], length - whole))
    indices = jnp.concatenate([indices, rest], axis=-1)
    values, best = jax.lax.top_k(jnp.take_along_axis(x, indices, axis=-1), k)
    return values, jnp.take_along_axis(indices, best, axis=-1)


def logsumexp(logits: Float32[Array, "b k v"]) -> Float32[Array, "b k"]:
    """Compute the log of the sum of exponentials of each hypothesis's logits."""
    return jax.nn.logsumexp(logits, axis=-1)


def argmax_and_logsumexp(
    logits: Float32[Array, "b k v"], allowed_logits: Float32[Array, "b k v"]
) -> tuple[Int32[Array, "b k"], Float32[Array, "b k"]]:
    """Return the index of the greatest allowed logit, the first of equal ones, and `logsumexp`."""
    # On CPUs, top_k is many times faster than argmax.
    return top_k(allowed_logits, 1)[1][:, :, 0], logsumexp(logits)


class Reductions(NamedTuple):
    """The reductions that a caller may replace with faster ones for its devices."""

    logsumexp: Callable[..., Array] = logsumexp
    """Reduces logits; for sampling and beam search."""
    argmax_and_logsumexp: Callable[..., tuple[Array, Array]] = argmax_and_logsumexp
    """Reduces logits, and the same with -inf for tokens that are not allowed; for greedy search."""


PLAIN = Reductions()
"""Plain JAX."""
