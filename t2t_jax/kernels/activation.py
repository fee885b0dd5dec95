"""Activations whose derivative is found from their result, which is kept in any case."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2t_jax.kernels.choice import ActivationForm


def activation_of(function: Callable[..., Any], form: ActivationForm) -> Callable[..., Any]:
    """Return the form of an activation that suits the devices: same function, same derivative.

    Args:
      function: the function of each hidden activation.
      form: how its derivative is found, from `kernels_of`.
    """
    return _relu if form == "from_results" and function is jax.nn.relu else function


@jax.custom_vjp
def _relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute max(0, x); for `jax.nn.relu`, a product would write x too, for the derivative."""
    return jnp.maximum(x, 0)


def _gradient(
    result: Float[Array, "..."], cotangent: Float[Array, "..."]
) -> tuple[Float[Array, "..."]]:
    # Otherwise XLA would read x again, as max(0, x) > 0 says the same as x > 0.
    result = jax.lax.optimization_barrier(result)
    return (jnp.where(result > 0, cotangent, 0),)


_relu.defvjp(lambda x: (_relu(x),) * 2, _gradient)
