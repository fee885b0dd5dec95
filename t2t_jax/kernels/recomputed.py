"""Dropout that recomputes its mask for the derivative, and ReLU whose derivative reads its result.

By default, XLA for accelerators stores the mask, one byte per element, and reads it in both
directions. Recomputing it takes a few integer operations, which cost less than the reads.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from t2t_jax.functional.dropout import DropoutKey, dropped, hashes, mixed

_Hashes = tuple[UInt32[Array, "1 *inner"], UInt32[Array, "rows *ones"]]


def dropout_recomputed(
    x: Float[Array, "rows *shape"], rate: float, key: DropoutKey | None
) -> Float[Array, "rows *shape"]:
    """Drop the same elements as `functional.dropout.dropout` of the same arguments."""
    if rate == 0 or key is None:
        return x
    return _dropout(x, hashes(x.shape, key), rate)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(
    x: Float[Array, "rows *inner"], kept: _Hashes, rate: float
) -> Float[Array, "rows *inner"]:
    return dropped(x, rate, mixed(*kept))


def _dropout_gradient(
    rate: float, kept: _Hashes, cotangent: Float[Array, "rows *inner"]
) -> tuple[Float[Array, "rows *inner"], None]:
    # Otherwise XLA would keep the mask, as both directions compute the same one.
    return _dropout(cotangent, jax.lax.optimization_barrier(kept), rate), None


_dropout.defvjp(lambda x, kept, rate: (_dropout(x, kept, rate), kept), _dropout_gradient)


@jax.custom_vjp
def relu_from_result(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute max(0, x). Its derivative needs only the result, so a matmul need not write x."""
    return jnp.maximum(x, 0)


def _relu_gradient(
    result: Float[Array, "..."], cotangent: Float[Array, "..."]
) -> tuple[Float[Array, "..."]]:
    # Otherwise XLA would read x again, as max(0, x) > 0 says the same as x > 0.
    result = jax.lax.optimization_barrier(result)
    return (jnp.where(result > 0, cotangent, 0),)


relu_from_result.defvjp(lambda x: (relu_from_result(x),) * 2, _relu_gradient)
