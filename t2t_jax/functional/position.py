"""Section 3.5: positions as sinusoids."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float


def sinusoidal_positions(length: int, d_model: int) -> Float[Array, "t d_model"]:
    """The fixed position encodings of section 3.5, interleaved as in the paper's formula.

        PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))        even columns
        PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))        odd columns

    tensor2tensor, Marian and fairseq compute another table: for i from 0 to d_model / 2 - 1 the
    frequencies 10000^(-i / (d_model / 2 - 1)), all sines first and all cosines after. As the
    frequencies differ, that table is no permutation of this one, and weights that were trained with
    one cannot be used with the other.

    Args:
      length: number of positions, from 0.
      d_model: width; even.

    Returns:
      float32 encodings, one row per position.
    """
    pair = jnp.arange(d_model // 2, dtype=jnp.float32)
    frequency = jnp.exp(pair * (-2 * math.log(10_000.0) / d_model))
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, d_model)
