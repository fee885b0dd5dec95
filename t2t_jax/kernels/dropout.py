"""Dropout whose derivative finds again which elements were dropped.

Left to itself, XLA for accelerators writes a mask with a byte for each element and reads it in both
directions. The few integer operations that make the mask cost nothing beside other reads.
"""

from functools import partial

import jax
from jaxtyping import Array, Float, UInt32

from t2t_jax.functional.dropout import DropoutKey, dropped, hashes, mixed

_Hashes = tuple[UInt32[Array, "1 *inner"], UInt32[Array, "rows *ones"]]


def dropout_found_again(
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


def _gradient(
    rate: float, kept: _Hashes, cotangent: Float[Array, "rows *inner"]
) -> tuple[Float[Array, "rows *inner"], None]:
    # Otherwise XLA would keep the mask, as both directions compute the same one.
    return _dropout(cotangent, jax.lax.optimization_barrier(kept), rate), None


_dropout.defvjp(lambda x, kept, rate: (_dropout(x, kept, rate), kept), _gradient)
