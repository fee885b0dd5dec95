"""The position-wise feed-forward network (section 3.3), with or without a gate."""

from functools import partial
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig
from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.functional.feed_forward import gated_feed_forward, position_wise_feed_forward
from t2t_jax.kernels.products import linear
from t2t_jax.kernels.recomputed import activation_of
from t2t_jax.modules.context import DEFAULT_CONTEXT, Context
from t2t_jax.modules.matrices import HeldMatrix, glorot_uniform, matrix, summand
from t2t_jax.modules.named_functions import elementwise


class FeedForward(nn.Module):
    """The position-wise feed-forward network (section 3.3).

    Attributes:
      config: sizes and options of the network.
      gain: factor on the first values of the matrices; see `glorot_uniform`.
    """

    config: ModelConfig
    gain: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Apply the network to every position."""
        config, dtype, kernels = self.config, x.dtype, context.kernels
        activation = elementwise(ACTIVATIONS[config.feed_forward])
        options: dict[str, Any] = {
            "activation": activation_of(activation, kernels.activations),
            "dropout_rate": config.activation_dropout_rate,
            "dropout_key": context.dropout_key(self),
            "linear": partial(linear, form=kernels.products),
        }
        if config.is_gated:
            gate, inward = self._inward("gate_kernel", x), self._inward("kernel_1", x)
            return gated_feed_forward(x, gate, inward, self._outward(x), **options)
        inward = self._inward("kernel_1", x)
        bias_1 = summand(self, "bias_1", "mlp", config.d_ff, dtype)
        outward = self._outward(x)
        bias_2 = summand(self, "bias_2", "vector", config.d_model, dtype)
        return position_wise_feed_forward(x, inward, bias_1, outward, bias_2, **options)

    def _inward(self, name: str, x: Float[Array, "b t d_model"]) -> HeldMatrix:
        shape = self.config.d_model, self.config.d_ff
        return matrix(self, name, glorot_uniform(self.gain), shape, ("embed", "mlp"), x.dtype)

    def _outward(self, x: Float[Array, "b t d_model"]) -> HeldMatrix:
        shape = self.config.d_ff, self.config.d_model
        init = glorot_uniform(self.gain)
        return matrix(self, "kernel_2", init, shape, ("mlp", "embed"), x.dtype)
