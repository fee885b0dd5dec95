"""Layer normalization, which section 3.1 applies around every sub-layer, and RMSNorm."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

EPSILON = 1e-6  # The paper gives no epsilon; tensor2tensor uses this value.


def layer_norm(
    x: Float[Array, "*t d"],
    scale: Float[Array, " d"],
    bias: Float[Array, " d"],
    epsilon: float = EPSILON,
) -> Float[Array, "*t d"]:
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias (section 3.1; Ba et al. 2016).

    Args:
      x: vectors along the last axis.
      scale: learned scale of each element.
      bias: learned bias of each element.
      epsilon: small constant that prevents a division by zero for constant vectors.

    Returns:
      The normalized vectors, computed in float32, in the dtype of `x`.
    """
    x32 = x.astype(jnp.float32)  # bfloat16 sums over d_model elements would lose precision
    centered = x32 - x32.mean(-1, keepdims=True)
    variance = jnp.square(centered).mean(-1, keepdims=True)  # [*t, 1]
    return (centered * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*t d"], scale: Float[Array, " d"], epsilon: float = EPSILON
) -> Float[Array, "*t d"]:
    """Compute x / sqrt(mean(x^2) + epsilon) * scale over the last axis.

    RMSNorm (Zhang and Sennrich 2019, equation 4) is layer normalization without mean subtraction
    and bias. Its paper has no epsilon; Llama and T5 add epsilon to the mean square, as here.

    Args:
      x: vectors along the last axis.
      scale: learned scale of each element, g.
      epsilon: small constant that prevents a division by zero for zero vectors.

    Returns:
      The normalized vectors, computed in float32, in the dtype of `x`.
    """
    x32 = x.astype(jnp.float32)
    mean_square = jnp.square(x32).mean(-1, keepdims=True)  # [*t, 1]
    return (x32 * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)
