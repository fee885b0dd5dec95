"""Dropout and ReLU whose derivatives read less memory.

XLA for accelerators stores a dropout mask, one byte per element, for the derivative. Computing the
mask again takes a few integer operations, which cost less than reading it.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from t2t_jax.functional.dropout import DropoutKey, combine_hashes, dropped, hashes

_Hashes = tuple[UInt32[Array, "1 *inner"], UInt32[Array, "rows *ones"]]


def dropout_recomputed(
    x: Float[Array, "rows *shape"], rate: float, key: DropoutKey | None
) -> Float[Array, "rows *shape"]:
    """Apply dropout as `functional.dropout` does; the derivative computes the mask again."""
    if rate == 0 or key is None:
        return x
    return _dropout(x, hashes(x.shape, key), rate)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(
    x: Float[Array, "rows *inner"], index_hashes: _Hashes, rate: float
) -> Float[Array, "rows *inner"]:
    return dropped(x, rate, combine_hashes(*index_hashes))


def _dropout_gradient(
    rate: float, index_hashes: _Hashes, cotangent: Float[Array, "rows *inner"]
) -> tuple[Float[Array, "rows *inner"], None]:
    # Without the barrier, XLA would store the mask, because both directions compute the same one.
    return _dropout(cotangent, jax.lax.optimization_barrier(index_hashes), rate), None


_dropout.defvjp(lambda x, pair, rate: (_dropout(x, pair, rate), pair), _dropout_gradient)


@jax.custom_vjp
def relu_from_result(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute max(0, x), with a derivative that reads the result, so a matmul need not write x."""
    return jnp.maximum(x, 0)


def _relu_gradient(
    result: Float[Array, "..."], cotangent: Float[Array, "..."]
) -> tuple[Float[Array, "..."]]:
    # Without the barrier, XLA would simplify max(0, x) > 0 to x > 0, and read x.
    result = jax.lax.optimization_barrier(result)
    return (jnp.where(result > 0, cotangent, 0),)


relu_from_result.defvjp(lambda x: (relu_from_result(x),) * 2, _relu_gradient)
