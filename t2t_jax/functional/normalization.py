"""Layer normalisation (Ba et al. 2016), which section 3.1 puts around every sub-layer."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

EPSILON = 1e-6  # The paper names none; this is tensor2tensor's.


def layer_norm(
    x: Float[Array, "*t d"], scale: Float[Array, " d"], bias: Float[Array, " d"]
) -> Float[Array, "*t d"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis.

    Args:
      x: vectors.
      scale: the learned factor of each element.
      bias: the learned summand of each element.

    Returns:
      The normalised vectors, computed in float32, in the dtype of `x`.
    """
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + EPSILON) * scale + bias).astype(x.dtype)
