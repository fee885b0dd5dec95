"""Section 3.3: the position-wise feed-forward network."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jaxtyping import Array, Float

from t2t_jax.functional.dropout import DropoutKey, dropout

_Matrix = TypeVar("_Matrix")


def _linear(
    x: Float[Array, "b t d_in"], kernel: Float[Array, "d_in d_out"], bias: Float[Array, " d_out"]
) -> Float[Array, "b t d_out"]:
    return x @ kernel + bias


def position_wise_feed_forward(
    x: Float[Array, "b t d_model"],
    kernel_1: _Matrix,
    bias_1: Float[Array, " d_ff"],
    kernel_2: _Matrix,
    bias_2: Float[Array, " d_model"],
    *,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    linear: Callable[
        [Float[Array, "b t d_in"], Any, Float[Array, " d_out"]], Float[Array, "b t d_out"]
    ] = _linear,
) -> Float[Array, "b t d_model"]:
    """max(0, x W_1 + b_1) W_2 + b_2 at every position alike (equation 2).

    Args:
      x: one vector per position.
      kernel_1: W_1, `[d_model, d_ff]`: an array, or whatever `linear` multiplies with.
      bias_1: b_1, `[d_ff]`.
      kernel_2: W_2, `[d_ff, d_model]`, likewise.
      bias_2: b_2, `[d_model]`.
      dropout_rate: share of the hidden activations set to zero (the paper: 0).
      dropout_key: key that decides which of them; None means no dropout.
      linear: how x W + b is computed, `linear(x, kernel, bias)`.
    """
    hidden = jax.nn.relu(linear(x, kernel_1, bias_1))
    return linear(dropout(hidden, dropout_rate, dropout_key), kernel_2, bias_2)
