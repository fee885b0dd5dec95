"""Section 3.2.3: who may attend to whom. Masks are bool; True means "may attend".

A row of a batch holds one sentence or several; `segments` numbers them from 1 and is 0 in padding:

    segments        1 1 1 2 2 0
    segment mask    x x x . . .        causal mask    x . . . . .
                    x x x . . .                       x x . . . .
                    x x x . . .                       x x x . . .
                    . . . x x .                       x x x x . .
                    . . . x x .                       x x x x x .
                    . . . . . .                       x x x x x x
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def segment_mask(
    query_segments: Int[Array, "b q"], key_segments: Int[Array, "b k"]
) -> Bool[Array, "b 1 q k"]:
    """A position attends to the positions of its own sentence; padding attends to nothing."""
    same = query_segments[:, None, :, None] == key_segments[:, None, None, :]
    return same & (key_segments != 0)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 t t"]:
    """A position attends to itself and to what comes before it."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))
