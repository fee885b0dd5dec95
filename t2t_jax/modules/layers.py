"""Encoder and decoder layers (section 3.1): sub-layers with residual connections around them."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import flax.linen as nn
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig
from t2t_jax.functional.feed_forward import position_wise_feed_forward
from t2t_jax.functional.normalization import layer_norm
from t2t_jax.kernels.products import linear
from t2t_jax.modules.attention import MultiHeadAttention
from t2t_jax.modules.context import Context
from t2t_jax.modules.dropout import Dropout
from t2t_jax.modules.matrices import matrix
from t2t_jax.parallel.axes import constrain, named

Sublayer: TypeAlias = Callable[[Float[Array, "b t d_model"]], Float[Array, "b t d_model"]]
"""The function that a residual connection goes around."""


class LayerNorm(nn.Module):
    """Layer normalisation with a learned scale and bias."""

    @nn.compact
    def __call__(self, x: Float[Array, "*t d_model"]) -> Float[Array, "*t d_model"]:
        """Normalise the last axis of `x`."""
        scale = self.param("scale", named(nn.initializers.ones, "vector"), (x.shape[-1],))
        bias = self.param("bias", named(nn.initializers.zeros, "vector"), (x.shape[-1],))
        return layer_norm(x, scale, bias)


class FeedForward(nn.Module):
    """The position-wise feed-forward network (section 3.3)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Apply the network to every position."""
        config, dtype = self.config, x.dtype
        kernel_init, bias_init = nn.initializers.glorot_uniform(), nn.initializers.zeros
        inward, outward = (config.d_model, config.d_ff), (config.d_ff, config.d_model)
        return position_wise_feed_forward(
            x,
            matrix(self, "kernel_1", kernel_init, inward, ("embed", "mlp"), dtype),
            self.param("bias_1", named(bias_init, "mlp"), (config.d_ff,)).astype(dtype),
            matrix(self, "kernel_2", kernel_init, outward, ("mlp", "embed"), dtype),
            self.param("bias_2", named(bias_init, "vector"), (config.d_model,)).astype(dtype),
            dropout_rate=config.activation_dropout_rate,
            dropout_key=context.dropout_key(self),
            linear=partial(linear, form=context.kernels.products),
        )


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), the paper's order (sections 3.1 and 5.4).

    With `norm_order="pre"` it is x + Dropout(Sublayer(LayerNorm(x))) instead.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], sublayer: Sublayer, context: Context
    ) -> Float[Array, "b t d_model"]:
        """Wrap `sublayer` in dropout, residual connection and layer norm."""
        norm = LayerNorm(name="norm")
        drop = Dropout(self.config.dropout_rate)
        if self.config.norm_order == "post":
            y = norm(x + drop(sublayer(x), context))
        else:
            y = x + drop(sublayer(norm(x)), context)
        return constrain(y, "batch", "length", "channels")


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each with a residual connection."""

    config: ModelConfig

    def setup(self) -> None:
        """Create the sub-layers."""
        self.self_attention = MultiHeadAttention(self.config.attention)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """One layer of the encoder."""
        x = self.self_attention_residual(x, lambda y: self.self_attention(y, context), context)
        return self.feed_forward_residual(x, lambda y: self.feed_forward(y, context), context)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's output, and feed-forward network.

    `modules.decoding` has a layer with the same sub-layers that computes one position at a time.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Create the sub-layers."""
        self.self_attention = self.make_self_attention()
        self.self_attention_residual = Residual(self.config)
        self.cross_attention = MultiHeadAttention(self.config.attention)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def make_self_attention(self) -> nn.Module:
        """The module for self-attention, in place of which a subclass may have another."""
        return MultiHeadAttention(self.config.attention)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """One layer of the decoder, all positions at once."""
        return self.sublayers(
            x,
            lambda y: self.self_attention(y, context),
            lambda y: self.cross_attention.attend_to_encoded(y, context),
            context,
        )

    def sublayers(
        self,
        x: Float[Array, "b t d_model"],
        self_attend: Sublayer,
        cross_attend: Sublayer,
        context: Context,
    ) -> Float[Array, "b t d_model"]:
        """The three sub-layers in their order, whichever way attention is computed.

        Args:
          x: the layer's input.
          self_attend: the first sub-layer, self-attention.
          cross_attend: the second sub-layer, attention to the encoder's output.
          context: the context of the stack.
        """
        x = self.self_attention_residual(x, self_attend, context)
        x = self.cross_attention_residual(x, cross_attend, context)
        return self.feed_forward_residual(x, lambda y: self.feed_forward(y, context), context)
