"""Layer normalisation whose derivative reads its input again, and little else.

XLA for GPUs would find the mean and the variance of every vector anew for the derivative, within a
kernel that then cannot add up the gradient of the scale: it writes a product of `x` in float32 for
that, and reads it. Here both are kept, two numbers a vector, and found in one reduction.

XLA for TPUs is slow at reductions, but computes plain sums for nothing in the kernel of a product
that they come out of, or that reads what is added up.
"""

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

_Moments = tuple[Float32[Array, "..."], Float32[Array, "..."], Float32[Array, "..."]]
_PerVector: TypeAlias = Float32[Array, "*t 1"]
_Kept = tuple[Float[Array, "*t d"], _PerVector, _PerVector, Float32[Array, " d"]]


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(
    x: Float[Array, "*t d"],
    scale: Float32[Array, " d"],
    bias: Float32[Array, " d"],
    epsilon: float,
    with_products: bool = False,
) -> Float[Array, "*t d"]:
    """Compute `functional.normalization.layer_norm`, with a derivative for GPUs and TPUs.

    Args:
      with_products: whether to use sums that XLA for TPUs computes beside products, for vectors in
        bfloat16.
    """
    return _forward(x, scale, bias, epsilon, with_products)[0]


def _forward(
    x: Float[Array, "*t d"],
    scale: Float32[Array, " d"],
    bias: Float32[Array, " d"],
    epsilon: float,
    with_products: bool,
) -> tuple[Float[Array, "*t d"], _Kept]:
    mean, variance = (_moments_by_sums if with_products else _mean_and_variance)(x)
    inverse = jax.lax.rsqrt(variance + epsilon)
    normal = (x.astype(jnp.float32) - mean) * inverse
    return (normal * scale + bias).astype(x.dtype), (x, mean, inverse, scale)


def _gradient(
    epsilon: float, with_products: bool, kept: _Kept, cotangent: Float[Array, "*t d"]
) -> tuple[Float[Array, "*t d"], Float32[Array, " d"], Float32[Array, " d"]]:
    x, mean, inverse, scale = kept
    # Otherwise XLA would find them again.
    mean, inverse = jax.lax.optimization_barrier((mean, inverse))
    normal = (x.astype(jnp.float32) - mean) * inverse
    of_result = cotangent.astype(jnp.float32)
    scaled = of_result * scale
    along = normal * (scaled * normal).mean(-1, keepdims=True)
    of_x = inverse * (scaled - scaled.mean(-1, keepdims=True) - along)
    if with_products:
        of_scale, of_bias = _sum_of_vectors(of_result * normal), _sum_of_vectors(cotangent)
        return of_x.astype(x.dtype), of_scale, of_bias
    # In one reduction, which reads the cotangent once.
    zero, rows = jnp.zeros((), jnp.float32), tuple(range(x.ndim - 1))
    of_scale, of_bias = jax.lax.reduce(
        (of_result * normal, of_result), (zero, zero), partial(jax.tree.map, jnp.add), rows
    )
    return of_x.astype(x.dtype), of_scale, of_bias


def _sum_of_vectors(x: Float[Array, "*t d"]) -> Float32[Array, " d"]:
    return x.astype(jnp.float32).sum(tuple(range(x.ndim - 1)))


layer_norm.defvjp(_forward, _gradient)


def _mean_and_variance(x: Float[Array, "*t d"]) -> tuple[_PerVector, _PerVector]:
    """Compute the mean and the variance of every vector, by one reduction."""
    # It carries how many numbers there were so far, their mean, and the sum of the squares of their
    # differences to it, which two parts add up without cancellation (Chan, Golub and LeVeque 1979).

    def add(one: _Moments, other: _Moments) -> _Moments:
        count = one[0] + other[0]
        share = other[0] / jnp.maximum(count, 1)
        difference = other[1] - one[1]
        # The square by itself could be infinite where the count is 0.
        squares = one[2] + other[2] + difference * (difference * one[0] * share)
        return count, one[1] + difference * share, squares

    wide = x.astype(jnp.float32)
    operands = jnp.ones_like(wide), wide, jnp.zeros_like(wide)
    zeros = (jnp.zeros((), jnp.float32),) * 3
    _, mean, squares = jax.lax.reduce(operands, zeros, add, (x.ndim - 1,))
    return mean[..., None], squares[..., None] / x.shape[-1]


def _moments_by_sums(x: Float[Array, "*t d"]) -> tuple[_PerVector, _PerVector]:
    """Compute the mean and variance of every vector, from the sums of its numbers and squares."""
    # Where the mean is large, the sums cancel. For numbers in bfloat16, whose squares are exact in
    # float32, that loses less than the rounding to bfloat16 did.
    wide = x.astype(jnp.float32)
    mean, square = (y.mean(-1, keepdims=True) for y in (wide, wide * wide))
    return mean, jnp.maximum(square - mean * mean, 0)
