"""Sums and maxima of a row of logits, read once, for the loss and for greedy search."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

LogAndMean: TypeAlias = tuple[Float32[Array, "*t"], Float32[Array, "*t"]]
"""The logarithm of the sum of exponentials of each row of logits, and the mean of the row."""
Normalizer: TypeAlias = Callable[..., LogAndMean]
"""A function of logits, and of a number near the greatest of each row if it takes one."""

_Sums = tuple[Float32[Array, "*t"], Float32[Array, "*t"], Float32[Array, "*t"]]
_LEAST = -1e30
"""A number below every logit, and finite, so that its difference to itself is 0."""


def in_passes(logits: Float32[Array, "*t v"]) -> LogAndMean:
    """Compute the logarithm of the sum of exponentials, and the mean, of each row of logits."""
    return jax.nn.logsumexp(logits, axis=-1), logits.mean(-1)


def in_one_pass(logits: Float32[Array, "*t v"]) -> LogAndMean:
    """Compute the logarithm of the sum of exponentials, and the mean, of each row of logits.

    One reduction finds both: it carries the greatest logit so far, the sum of the exponentials of
    the differences to it, and the plain sum ("Online normalizer calculation for softmax",
    Milakov and Gimelshein 2018). Three reductions read the logits three times, and they are the
    largest array of a training step.
    """

    def add(one: _Sums, other: _Sums) -> _Sums:
        most, total = _added(one[:2], other[:2])
        return most, total, one[2] + other[2]

    operands = logits, jnp.ones_like(logits), logits
    initial = tuple(jnp.float32(x) for x in (_LEAST, 0, 0))
    most, total, plain = jax.lax.reduce(operands, initial, add, (logits.ndim - 1,))
    return most + jnp.log(total), plain / logits.shape[-1]


def _added(one: tuple[Array, ...], other: tuple[Array, ...]) -> tuple[Array, Array]:
    """Add up two sums of exponentials of differences, each with the number that is subtracted."""
    # The greater of both numbers stays, so that one of the sums is multiplied by 1: GPUs compute
    # exponentials at a quarter of the rate of other operations, and the other one is enough.
    apart = one[0] - other[0]
    factor = jnp.exp(-jnp.abs(apart))
    total = jnp.where(apart > 0, one[1] + other[1] * factor, one[1] * factor + other[1])
    return jnp.maximum(one[0], other[0]), total


def greatest_in_one_pass(
    logits: Float32[Array, "*t v"], choices: Float32[Array, "*t v"]
) -> tuple[Int32[Array, "*t"], Float32[Array, "*t"]]:
    """Find the index of the greatest choice, and the log of the sum of exponentials of the logits.

    Of equal choices the first is taken. One reduction finds both, as in `in_one_pass`.

    Args:
      choices: the same scores, with -inf for the entries that may not be chosen.
    """

    def add(one: tuple[Array, ...], other: tuple[Array, ...]) -> tuple[Array, ...]:
        most, total = _added(one[:2], other[:2])
        is_first = (one[2] > other[2]) | ((one[2] == other[2]) & (one[3] < other[3]))
        best = (jnp.where(is_first, x, y) for x, y in zip(one[2:], other[2:], strict=True))
        return most, total, *best

    places = jax.lax.broadcasted_iota(jnp.int32, choices.shape, choices.ndim - 1)
    operands = logits, jnp.ones_like(logits), choices, places
    beyond = jnp.int32(choices.shape[-1])
    initial = jnp.float32(_LEAST), jnp.float32(0), jnp.float32(-jnp.inf), beyond
    most, total, _, place = jax.lax.reduce(operands, initial, add, (logits.ndim - 1,))
    return place, most + jnp.log(total)


_LEAST_SUM, _MOST_SUM = 1e-30, 1e38


def within_the_product(logits: Float32[Array, "*t v"], near: Float32[Array, "*t"]) -> LogAndMean:
    """Compute `in_one_pass` by sums that XLA for TPUs computes in the kernel of the logits.

    XLA fuses plain sums with a product, but no reduction that carries the greatest logit so far. So
    the number subtracted from the logits has to be known before them. Any number within some 60 of
    the greatest logit will do; if one is farther off, the sums are computed by `in_one_pass`.

    Args:
      near: a number near the greatest of each row, such as the logit of the target.
    """
    total = jnp.exp(logits - near[..., None]).sum(-1)
    is_exact = ((total > _LEAST_SUM) & (total < _MOST_SUM)).all()
    log_sum = jax.lax.cond(is_exact, lambda: near + jnp.log(total), lambda: in_one_pass(logits)[0])
    return log_sum, logits.mean(-1)
