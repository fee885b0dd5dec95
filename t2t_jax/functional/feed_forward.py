"""The position-wise feed-forward network (section 3.3) and its gated variants.

`config.tables.ACTIVATIONS` names these activations of the hidden layer::

    relu, reglu             max(0, x)
    gelu, geglu             `gelu`
    gelu_tanh, geglu_tanh   `gelu_tanh`
    silu, swiglu            x sigmoid(x), which is Swish with beta = 1 (Ramachandran et al. 2017)
    glu                     sigmoid(x)

Activations with `glu` in their names belong to `gated_feed_forward`.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
from jaxtyping import Array, Float

from t2t_jax.functional.dropout import DropoutKey, dropout

Activation: TypeAlias = Callable[[Float[Array, "..."]], Float[Array, "..."]]
"""An elementwise activation function."""


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compute the exact GELU, x Phi(x), where Phi is the standard normal CDF.

    Source: Hendrycks and Gimpel 2016, without their approximation by tanh.
    """
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Approximate `gelu` by x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, as in GPT-2."""
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
    """Compute max(0, x W_1 + b_1) W_2 + b_2 at every position (equation 2).

    Args:
      x: input vectors.
      kernel_1: W_1.
      bias_1: b_1.
      kernel_2: W_2.
      bias_2: b_2.
      activation: the activation; the paper's is max(0, .), the default.
      dropout_rate: dropout probability of the hidden activations (the paper: 0).
      dropout_key: key for dropout; None disables dropout.
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
    """Compute (activation(x W) * x V) W_2 at every position, without biases.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", equations 4 to 6.

    Args:
      x: input vectors.
      gate_kernel: W.
      kernel_1: V.
      kernel_2: W_2.
      activation: activation of the gate.
      dropout_rate: dropout probability of the hidden activations.
      dropout_key: key for dropout; None disables dropout.
    """
    hidden = activation(x @ gate_kernel) * (x @ kernel_1)  # [b, t, d_ff]
    return dropout(hidden, dropout_rate, dropout_key) @ kernel_2
