"""Reduce logits over the vocabulary in plain JAX."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32


def top_k(
    x: Float32[Array, "*rows n"], k: int
) -> tuple[Float32[Array, "*rows {k}"], Int32[Array, "*rows {k}"]]:
    """Compute `jax.lax.top_k`, on CPUs in at most a third of its time for long rows.

    Returns:
      The k greatest values of each row in descending order, and their indices. Of equal values,
      the one with the lower index comes first.
    """
    # The k greatest values are in the k blocks with the greatest maxima, so one pass over the row
    # finds the few values to sort.
    length = x.shape[-1]
    size = 1 << round(math.log2(length / k) / 2)  # as many maxima as values in the k blocks
    num_blocks = length // size
    if num_blocks < 2 * k:
        values, indices = jax.lax.top_k(x, k)
        return values, indices
    tail = num_blocks * size  # the start of the values after the last full block
    maxima = jnp.max(x[..., :tail].reshape(*x.shape[:-1], num_blocks, size), axis=-1)
    blocks = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)  # sorted, so that ties keep their order
    indices = (blocks[..., None] * size + jnp.arange(size)).reshape(*x.shape[:-1], k * size)
    tail_indices = jnp.broadcast_to(jnp.arange(tail, length), (*x.shape[:-1], length - tail))
    indices = jnp.concatenate([indices, tail_indices], axis=-1)
    values, ranks = jax.lax.top_k(jnp.take_along_axis(x, indices, axis=-1), k)
    return values, jnp.take_along_axis(indices, ranks, axis=-1)


def logsumexp(logits: Float32[Array, "b k v"]) -> Float32[Array, "b k"]:
    """Compute the log of the sum of exponentials of each hypothesis's logits."""
    return jax.nn.logsumexp(logits, axis=-1)


def argmax_and_logsumexp(
    logits: Float32[Array, "b k v"], allowed_logits: Float32[Array, "b k v"]
) -> tuple[Int32[Array, "b k"], Float32[Array, "b k"]]:
    """Return the index of the first greatest allowed logit, and the logsumexp of all logits."""
    # On CPUs, top_k is many times faster than argmax.
    return top_k(allowed_logits, 1)[1][:, :, 0], logsumexp(logits)


class Reductions(NamedTuple):
    """The functions by which a search reduces logits; faster kernels may replace the defaults."""

    logsumexp: Callable[..., Array] = logsumexp
    """The function for sampling and beam search. It takes logits."""
    argmax_and_logsumexp: Callable[..., tuple[Array, Array]] = argmax_and_logsumexp
    """The function for greedy search. It takes logits, and logits with -inf for disallowed tokens.
    """


PLAIN = Reductions()
"""Reductions in plain JAX."""
