"""Norms: layer normalisation, which section 3.1 puts around every sub-layer, and RMSNorm."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

EPSILON = 1e-6  # The paper names none; this is tensor2tensor's.


def layer_norm(
    x: Float[Array, "*t d"],
    scale: Float[Array, " d"],
    bias: Float[Array, " d"],
    epsilon: float = EPSILON,
) -> Float[Array, "*t d"]:
    """Compute (x - mean) / sqrt(variance + epsilon) * scale + bias (section 3.1; Ba et al. 2016).

    Args:
      x: vectors, along the last axis.
      scale: the learned factor of each element.
      bias: the learned summand of each element.
      epsilon: number added to the variance, so that a constant vector divides by no zero.

    Returns:
      The normalised vectors, computed in float32, in the dtype of `x`.
    """
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*t d"], scale: Float[Array, " d"], epsilon: float = EPSILON
) -> Float[Array, "*t d"]:
    """Compute x / sqrt(mean(x^2) + epsilon) * scale over the last axis.

    This is equation 4 of "Root Mean Square Layer Normalization" (Zhang and Sennrich 2019): layer
    normalisation that does not subtract the mean and has no bias. The paper has no epsilon; Llama
    and T5 add it to the mean of squares as here.

    Args:
      x: vectors.
      scale: the learned factor of each element, g.
      epsilon: number added to the mean of squares, so that a zero vector divides by no zero.

    Returns:
      The normalised vectors, computed in float32, in the dtype of `x`.
    """
    x32 = x.astype(jnp.float32)
    mean_square = jnp.square(x32).mean(-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(mean_square + epsilon) * scale).astype(x.dtype)
