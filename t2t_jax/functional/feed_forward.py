"""Section 3.3: the position-wise feed-forward network, and its variants with a gate.

By the names of `config.tables.ACTIVATIONS`, the activations of its hidden layer are::

    relu, reglu             max(0, x)
    gelu, geglu             `gelu`
    gelu_tanh, geglu_tanh   `gelu_tanh`
    silu, swiglu            x sigmoid(x), which is Swish with beta = 1 (Ramachandran et al. 2017)
    glu                     sigmoid(x)

Those with `glu` in their names are for `gated_feed_forward`.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
from jaxtyping import Array, Float

from t2t_jax.functional.dropout import DropoutKey, dropout

Activation: TypeAlias = Callable[[Float[Array, "..."]], Float[Array, "..."]]
"""A function that is applied to each hidden activation by itself."""


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute x Phi(x), Phi being the distribution function of the standard normal distribution.

    This is the GELU of Hendrycks and Gimpel 2016 exactly, without their approximation by tanh.
    """
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Approximate `gelu`, as in GPT-2, by x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    return jax.nn.gelu(x, approximate=True)


def position_wise_feed_forward(
    x: Float[Array, "b t d_model"],
    kernel_1: Float[Array, "d_model d_ff"],
    bias_1: Float[Array, " d_ff"],
    kernel_2: Float[Array, "d_ff d_model"],
    bias_2: Float[Array, " d_model"],
    *,
    activation: Activation = jax.nn.relu,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Float[Array, "b t d_model"]:
    """Compute max(0, x W_1 + b_1) W_2 + b_2 at every position alike (equation 2).

    Args:
      x: one vector per position.
      kernel_1: W_1.
      bias_1: b_1.
      kernel_2: W_2.
      bias_2: b_2.
      activation: the function in place of max(0, .).
      dropout_rate: share of the hidden activations set to zero (the paper: 0).
      dropout_key: key that decides which of them; None means no dropout.
    """
    hidden = activation(x @ kernel_1 + bias_1)  # [b, t, d_ff]
    return dropout(hidden, dropout_rate, dropout_key) @ kernel_2 + bias_2


def gated_feed_forward(
    x: Float[Array, "b t d_model"],
    gate_kernel: Float[Array, "d_model d_ff"],
    kernel_1: Float[Array, "d_model d_ff"],
    kernel_2: Float[Array, "d_ff d_model"],
    *,
    activation: Activation,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Float[Array, "b t d_model"]:
    """Compute (activation(x W) * x V) W_2 at every position alike, without biases.

    These are the feed-forward networks of "GLU Variants Improve Transformer" (Shazeer 2020):
    equation 6, whose gated linear units equations 4 and 5 define.

    Args:
      x: one vector per position.
      gate_kernel: W.
      kernel_1: V.
      kernel_2: W_2.
      activation: the function of the gate.
      dropout_rate: share of the hidden activations set to zero.
      dropout_key: key that decides which of them; None means no dropout.
    """
    hidden = activation(x @ gate_kernel) * (x @ kernel_1)  # [b, t, d_ff]
    return dropout(hidden, dropout_rate, dropout_key) @ kernel_2
