"""Reductions that read the logits once, for the loss and for greedy search."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

LogAndMean: TypeAlias = tuple[Float32[Array, "*t"], Float32[Array, "*t"]]
"""The log of the sum of exponentials of each row of logits, and the mean of the row."""
Normalizer: TypeAlias = Callable[..., LogAndMean]
"""Computes `LogAndMean` from logits and, for some functions, an estimate of their maximum."""

_Sums = tuple[Float32[Array, "*t"], Float32[Array, "*t"], Float32[Array, "*t"]]
_FLOOR = -1e30
"""A value below every logit. It is finite, so its difference to itself is 0 and not NaN."""


def in_passes(logits: Float32[Array, "*t v"]) -> LogAndMean:
    """Compute the log of the sum of exponentials, and the mean, of each row of logits."""
    return jax.nn.logsumexp(logits, axis=-1), logits.mean(-1)


def in_one_pass(logits: Float32[Array, "*t v"]) -> LogAndMean:
    """Compute the log of the sum of exponentials, and the mean, of each row in one reduction.

    The reduction carries the maximum, the sum of exponentials relative to the maximum, and the
    plain sum ("Online normalizer calculation for softmax", Milakov and Gimelshein 2018).
    """

    def combine(first: _Sums, second: _Sums) -> _Sums:
        maximum, total = _combined(first[:2], second[:2])
        return maximum, total, first[2] + second[2]

    operands = logits, jnp.ones_like(logits), logits
    initial = tuple(jnp.float32(x) for x in (_FLOOR, 0, 0))
    maximum, total, plain_sum = jax.lax.reduce(operands, initial, combine, (logits.ndim - 1,))
    return maximum + jnp.log(total), plain_sum / logits.shape[-1]


def _combined(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, Array]:
    """Combine two pairs of a maximum and a sum of exponentials relative to the maximum."""
    # Only the sum with the smaller maximum is rescaled, so one exponential is enough: GPUs compute
    # exponentials at a quarter of the rate of other operations.
    difference = first[0] - second[0]
    factor = jnp.exp(-jnp.abs(difference))
    total = jnp.where(difference > 0, first[1] + second[1] * factor, first[1] * factor + second[1])
    return jnp.maximum(first[0], second[0]), total


def greatest_in_one_pass(
    logits: Float32[Array, "*t v"], choices: Float32[Array, "*t v"]
) -> tuple[Int32[Array, "*t"], Float32[Array, "*t"]]:
    """Compute the argmax of the choices and the logsumexp of the logits in one reduction.

    Of equal choices, the function returns the first index.

    Args:
      choices: the logits, with -inf for the tokens that must not be chosen.
    """

    def combine(first: tuple[Array, ...], second: tuple[Array, ...]) -> tuple[Array, ...]:
        maximum, total = _combined(first[:2], second[:2])
        is_first = (first[2] > second[2]) | ((first[2] == second[2]) & (first[3] < second[3]))
        best = (jnp.where(is_first, x, y) for x, y in zip(first[2:], second[2:], strict=True))
        return maximum, total, *best

    indices = jax.lax.broadcasted_iota(jnp.int32, choices.shape, choices.ndim - 1)
    operands = logits, jnp.ones_like(logits), choices, indices
    num_choices = jnp.int32(choices.shape[-1])
    initial = jnp.float32(_FLOOR), jnp.float32(0), jnp.float32(-jnp.inf), num_choices
    maximum, total, _, index = jax.lax.reduce(operands, initial, combine, (logits.ndim - 1,))
    return index, maximum + jnp.log(total)


_MIN_SUM, _MAX_SUM = 1e-30, 1e38


def within_the_product(logits: Float32[Array, "*t v"], guess: Float32[Array, "*t"]) -> LogAndMean:
    """Return the log of the sum of exponentials, and the mean, of each row of logits.

    The sums are plain, so XLA for TPUs fuses them with the matmul of the logits. Instead of the
    maximum, they subtract `guess`. This is accurate within about 60 of the maximum. If any guess is
    farther off, `in_one_pass` computes the logs.

    Args:
      guess: an estimate of the maximum of each row, such as the logit of the target.
    """
    total = jnp.exp(logits - guess[..., None]).sum(-1)
    is_exact = ((total > _MIN_SUM) & (total < _MAX_SUM)).all()
    log_sum = jax.lax.cond(is_exact, lambda: guess + jnp.log(total), lambda: in_one_pass(logits)[0])
    return log_sum, logits.mean(-1)
