"""The position-wise feed-forward network (section 3.3), with or without a gate.

Read `modules.attention` before this file. `functional.feed_forward` computes equation 2 for plain
arrays. The next file, `modules.layers`, joins both sub-layers.
"""

from functools import partial

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig
from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.functional.dropout import dropout
from t2t_jax.modules import parameters
from t2t_jax.modules.attention import DEFAULT_CONTEXT, Context
from t2t_jax.modules.named_functions import elementwise


class FeedForward(nn.Module):
    """The position-wise feed-forward network (section 3.3).

    Attributes:
      config: sizes and options of the network.
      gain: factor on the initial values of the matrices; see `parameters.matrix`.
    """

    config: ModelConfig
    gain: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Compute max(0, x W_1 + b_1) W_2 + b_2 at every position (equation 2).

        With a gate, compute (activation(x W) * x V) W_2 (Shazeer 2020, equation 6).
        """
        config, linear = self.config, context.kernels.linear
        activation = elementwise(ACTIVATIONS[config.feed_forward])
        if activation is jax.nn.relu:
            # The kernel's derivative needs only its result, so its input need not be in memory.
            activation = context.kernels.relu
        inward_shape, outward_shape = (config.d_model, config.d_ff), (config.d_ff, config.d_model)
        # `gain` is DeepNorm's beta; 1 is plain Glorot initialization.
        matrix = partial(parameters.matrix, self, dtype=x.dtype, gain=self.gain)
        drop = partial(dropout, rate=config.activation_dropout_rate, key=context.dropout_key(self))
        if config.is_gated:
            # Gated networks have no biases, as in Shazeer 2020.
            gate_kernel = matrix("gate_kernel", inward_shape, ("embed", "mlp"))
            kernel_1 = matrix("kernel_1", inward_shape, ("embed", "mlp"))
            kernel_2 = matrix("kernel_2", outward_shape, ("mlp", "embed"))
            hidden = activation(linear(x, gate_kernel)) * linear(x, kernel_1)  # [b, t, d_ff]
            return linear(drop(hidden), kernel_2)
        kernel_1 = matrix("kernel_1", inward_shape, ("embed", "mlp"))
        bias_1 = parameters.bias(self, "bias_1", "mlp", config.d_ff, x.dtype)
        kernel_2 = matrix("kernel_2", outward_shape, ("mlp", "embed"))
        bias_2 = parameters.bias(self, "bias_2", "vector", config.d_model, x.dtype)
        hidden = activation(linear(x, kernel_1, bias_1))  # [b, t, d_ff]
        return linear(drop(hidden), kernel_2, bias_2)
