"""Layer normalization whose derivative reads little more than the input.

One reduction computes the mean and variance of each vector, and the derivative reuses them. XLA for
GPUs would compute both again in the derivative, and write a float32 array to sum the gradient of
the scale. XLA for TPUs is slow at reductions, but fuses plain sums with a matmul at no cost.
"""

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

_Moments = tuple[Float32[Array, "..."], Float32[Array, "..."], Float32[Array, "..."]]
_PerVector: TypeAlias = Float32[Array, "*t 1"]
_Residuals = tuple[Float[Array, "*t d"], _PerVector, _PerVector, Float32[Array, " d"]]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(
    x: Float[Array, "*t d"],
    scale: Float32[Array, " d"],
    bias: Float32[Array, " d"],
    epsilon: float,
    plain_sums: bool = False,
) -> Float[Array, "*t d"]:
    """Compute layer normalization, with a derivative that is fast on GPUs and TPUs.

    Args:
      plain_sums: whether to compute the mean and variance by plain sums, which are fast on TPUs and
        accurate for vectors in bfloat16.
    """
    return _forward(x, scale, bias, epsilon, plain_sums)[0]


def _forward(
    x: Float[Array, "*t d"],
    scale: Float32[Array, " d"],
    bias: Float32[Array, " d"],
    epsilon: float,
    plain_sums: bool,
) -> tuple[Float[Array, "*t d"], _Residuals]:
    mean, variance = (_moments_by_sums if plain_sums else _mean_and_variance)(x)
    inverse_std = jax.lax.rsqrt(variance + epsilon)
    normalized = (x.astype(jnp.float32) - mean) * inverse_std
    return (normalized * scale + bias).astype(x.dtype), (x, mean, inverse_std, scale)


def _gradient(
    epsilon: float, plain_sums: bool, residuals: _Residuals, cotangent: Float[Array, "*t d"]
) -> tuple[Float[Array, "*t d"], Float32[Array, " d"], Float32[Array, " d"]]:
    x, mean, inverse_std, scale = residuals
    # The barrier prevents XLA from computing the mean and the inverse again from x.
    mean, inverse_std = jax.lax.optimization_barrier((mean, inverse_std))
    normalized = (x.astype(jnp.float32) - mean) * inverse_std
    result_bar = cotangent.astype(jnp.float32)
    normalized_bar = result_bar * scale
    projection = normalized * (normalized_bar * normalized).mean(-1, keepdims=True)
    x_bar = inverse_std * (normalized_bar - normalized_bar.mean(-1, keepdims=True) - projection)
    if plain_sums:
        scale_bar, bias_bar = _sum_of_vectors(result_bar * normalized), _sum_of_vectors(cotangent)
        return x_bar.astype(x.dtype), scale_bar, bias_bar
    # One reduction computes the gradients of scale and bias, and reads the cotangent once.
    zero, axes = jnp.zeros((), jnp.float32), tuple(range(x.ndim - 1))
    scale_bar, bias_bar = jax.lax.reduce(
        (result_bar * normalized, result_bar), (zero, zero), partial(jax.tree.map, jnp.add), axes
    )
    return x_bar.astype(x.dtype), scale_bar, bias_bar


def _sum_of_vectors(x: Float[Array, "*t d"]) -> Float32[Array, " d"]:
    return x.astype(jnp.float32).sum(tuple(range(x.ndim - 1)))


layer_norm.defvjp(_forward, _gradient)


def _mean_and_variance(x: Float[Array, "*t d"]) -> tuple[_PerVector, _PerVector]:
    # The reduction carries the count, the mean, and the sum of squared differences to the mean. Two
    # such triples combine without cancellation (Chan, Golub and LeVeque 1979).

    def combine(first: _Moments, second: _Moments) -> _Moments:
        count = first[0] + second[0]
        share = second[0] / jnp.maximum(count, 1)
        difference = second[1] - first[1]
        # Multiply by the count first: the plain square could be infinite at count 0.
        squares = first[2] + second[2] + difference * (difference * first[0] * share)
        return count, first[1] + difference * share, squares

    x32 = x.astype(jnp.float32)
    operands = jnp.ones_like(x32), x32, jnp.zeros_like(x32)
    zeros = (jnp.zeros((), jnp.float32),) * 3
    _, mean, squares = jax.lax.reduce(operands, zeros, combine, (x.ndim - 1,))
    return mean[..., None], squares[..., None] / x.shape[-1]


def _moments_by_sums(x: Float[Array, "*t d"]) -> tuple[_PerVector, _PerVector]:
    """Compute the mean and variance of every vector from the means of x and x squared."""
    # If the mean is large, the difference of the means cancels. For bfloat16 inputs, whose squares
    # are exact in float32, this error is smaller than the rounding error of the input.
    x32 = x.astype(jnp.float32)
    mean, mean_square = (y.mean(-1, keepdims=True) for y in (x32, x32 * x32))
    return mean, jnp.maximum(mean_square - mean * mean, 0)
