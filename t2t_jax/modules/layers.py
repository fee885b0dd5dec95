"""The stack of equal layers of every network, and its layers: sub-layers with residual connections
around them (section 3.1).

The layers of a stack are compiled as one scan: a parameter of all layers is one array with the
layer as leading axis (`encoder/layers/self_attention/query/kernel`: `[layers, d_model, h * d_k]`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig, model, sections
from t2t_jax.functional.dropout import dropout
from t2t_jax.functional.masks import attention_mask
from t2t_jax.kernels.products import PRODUCT, has_form
from t2t_jax.kernels.recomputed import dropout_found_again
from t2t_jax.modules import attention, feed_forward, normalization
from t2t_jax.modules.context import DEFAULT_CONTEXT, Context
from t2t_jax.parallel.axes import constrain, uses_values


class Dropout(nn.Module):
    """Dropout (section 5.4).

    Attributes:
      rate: the paper's P_drop.
    """

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Set elements of `x` to zero, and scale up the others, unless dropout is off."""
        drop = dropout_found_again if context.kernels.dropout == "found_again" else dropout
        return drop(x, self.rate, context.dropout_key(self))


Sublayer: TypeAlias = Callable[[Float[Array, "b t d_model"]], Float[Array, "b t d_model"]]
"""The function that a residual connection goes around."""


class Residual(nn.Module):
    """A residual connection, LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

    With `norm_order="pre"` it is x + Dropout(Sublayer(LayerNorm(x))) / depth instead, and with
    "deep" LayerNorm(alpha x + Dropout(Sublayer(x))), as in DeepNorm (Wang et al. 2022).

    Attributes:
      config: sizes and options of the network.
      scale: alpha; 1 unless `norm_order` is "deep".
      depth: the multiple of the depth of the stack; 1 unless `parametrisation` is "complete".
    """

    config: ModelConfig
    scale: float = 1.0
    depth: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], sublayer: Sublayer, context: Context
    ) -> Float[Array, "b t d_model"]:
        """Wrap `sublayer` in dropout, residual connection and norm."""
        form = "plain" if context.deterministic else context.kernels.norms  # made for derivatives
        norm = normalization.Norm(self.config.normalization, form, name="norm")
        drop = Dropout(self.config.dropout_rate)
        if self.config.norm_order == "pre":
            branch = drop(sublayer(norm(x)), context)
            y = x + (branch if self.depth == 1 else branch / self.depth)
        else:
            scaled = x if self.scale == 1 else self.scale * x
            y = norm(scaled + drop(sublayer(x), context))
        return constrain(y, "batch", "length", "channels")


class Layer(nn.Module):
    """A layer: self-attention, cross-attention if the stack has it, and a feed-forward network.

    A residual connection goes around each of them. The matrices of the feed-forward network, and
    those for values and output of attention, start smaller by the stack's `initial_gain` (DeepNorm,
    Wang et al. 2022, figure 2).

    Attributes:
      config: sizes and options of the network.
      stack: the attentions of the layer, and the constants of its residual connections.
    """

    config: ModelConfig
    stack: model.Stack

    def setup(self) -> None:
        """Create the sub-layers."""
        config, gain = self.config, self.stack.initial_gain
        constants = self.stack.residual_scale, config.depth_multiple(self.stack.num_layers)
        self.self_attention = self.make_self_attention()
        self.self_attention_residual = Residual(config, *constants)
        if self.stack.cross_attention is not None:
            self.cross_attention = attention.MultiHeadAttention(self.stack.cross_attention, gain)
            self.cross_attention_residual = Residual(config, *constants)
        self.feed_forward = feed_forward.FeedForward(config, gain)
        self.feed_forward_residual = Residual(config, *constants)

    def make_self_attention(self) -> nn.Module:
        """Make the module for self-attention; subclasses may override it."""
        return attention.MultiHeadAttention(self.stack.self_attention, self.stack.initial_gain)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Compute the layer at all positions at once.

        Args:
          context: without a mask, positions attend as far as the stack and `attention_window`
            allow.
        """
        if context.mask is None:
            segments = jnp.ones(x.shape[:2], jnp.int32)
            reach: Any = {"causal": self.stack.is_causal, "window": self.config.attention_window}
            context = replace(context, mask=attention_mask(segments, segments, **reach))
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
        """Compute the sub-layers in their order, for any implementation of attention.

        Args:
          cross_attend: the second sub-layer, cross-attention, called only if the stack has it.
        """
        x = self.self_attention_residual(x, self_attend, context)
        if self.stack.attends_to_source:
            x = self.cross_attention_residual(x, cross_attend, context)
        return self.feed_forward_residual(x, lambda y: self.feed_forward(y, context), context)


class LayerStack(nn.Module):
    """A stack of N layers: an encoder, a decoder, or a decoder-only model.

    Attributes:
      stack: the depth and the attentions of this stack.
      remat: the part of a layer that the backward pass recomputes instead of keeping it in memory.
    """

    config: ModelConfig
    stack: model.Stack
    remat: sections.Remat = "none"

    def setup(self) -> None:
        """Create the layers, and the norm at their end if there is one."""
        self.layers = Layer(self.config, self.stack)
        self.norm = last_norm(self.config)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Pass embedded tokens through all layers."""

        def one_layer(layer: nn.Module, x: Array, _: None) -> tuple[Array, None]:
            return layer(x, context), None

        if self.remat != "none":
            products = jax.checkpoint_policies.save_only_these_names(PRODUCT)
            keep = products if self.remat == "dots" else None
            # Within a scan the compiler cannot undo it by common subexpressions.
            one_layer = nn.remat(one_layer, prevent_cse=False, policy=keep)
        # The check traces every layer a second time, and the random numbers in it depend on that.
        draws = (self.is_initializing() and uses_values()) or not context.deterministic
        depth = self.stack.num_layers
        scan = nn.scan(
            one_layer,
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            length=depth,
            unroll=depth if self.remat == "none" and _unrolls(x, context) else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
            check_constancy_invariants=draws,
        )
        x, _ = scan(self.layers, x, None)
        return self.norm(x) if self.norm else x


def last_norm(config: ModelConfig) -> normalization.Norm | None:
    """Make the norm at the end of a pre-norm stack; None for other stacks."""
    return normalization.Norm(config.normalization) if config.norm_order == "pre" else None


_LARGE = 1 << 17
"""Least size of a layer's input for which unrolling pays: compiling takes up to twice as long."""


def _unrolls(x: Float[Array, "b t d"], context: Context) -> bool:
    """Return whether layers of a stack are compiled one by one and not as a loop; see `Kernels`.

    In a loop, XLA on CPUs too reads a layer's saved activations out of arrays of all layers. This
    is slow: in bfloat16, it takes a seventh of a step. In float32 it takes a twentieth, which is
    not worth a change of roundings from earlier versions.
    """
    if context.deterministic:  # nothing has derivatives
        return False
    if context.kernels.layers == "unrolled":
        return True
    return has_form(x, context.kernels.products) and x.size >= _LARGE
