"""A layer: attention and the feed-forward network, with residual connections (section 3.1).

Read `modules.attention` and `modules.feed_forward`, the sub-layers, before this file. The next
file is `modules.stack`, which repeats the layer.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig, model
from t2t_jax.errors import UserError
from t2t_jax.functional.masks import attention_mask
from t2t_jax.kernels.cached_attention import CachedEntries
from t2t_jax.modules.attention import DEFAULT_CONTEXT, Context, MultiHeadAttention, Norm
from t2t_jax.modules.cache import LayerCache, SourceCache, SourceKeysValues
from t2t_jax.modules.feed_forward import FeedForward
from t2t_jax.parallel.axes import constrain

Sublayer: TypeAlias = Callable[[Float[Array, "b t d_model"]], Float[Array, "b t d_model"]]
"""A sub-layer inside a residual connection."""


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
        """Set random elements of `x` to zero and scale up the others, unless dropout is off."""
        return context.kernels.dropout(x, self.rate, context.dropout_key(self))


class Residual(nn.Module):
    """A residual connection, LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

    With `norm_order="pre"`: x + Dropout(Sublayer(LayerNorm(x))) / depth.
    With "deep" (DeepNorm, Wang et al. 2022): LayerNorm(alpha x + Dropout(Sublayer(x))).

    Attributes:
      config: sizes and options of the network.
      scale: alpha; 1 unless `norm_order` is "deep".
      depth: depth of the stack / base depth; 1 unless `parametrisation` is "complete".
    """

    config: ModelConfig
    scale: float = 1.0
    depth: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], sublayer: Sublayer, context: Context
    ) -> Float[Array, "b t d_model"]:
        """Apply `sublayer`, dropout, the residual connection and the norm."""
        norm = Norm(self.config.normalization, name="norm")
        drop = Dropout(self.config.dropout_rate)
        if self.config.norm_order == "pre":
            # No norm lies on the residual path x, so gradients reach every layer unscaled.
            branch = drop(sublayer(norm(x, context)), context)
            # Skip a division by 1, so that the default program stays the same.
            y = x + (branch if self.depth == 1 else branch / self.depth)
        else:
            scaled = x if self.scale == 1 else self.scale * x
            y = norm(scaled + drop(sublayer(x), context), context)
        return constrain(y, "batch", "length", "channels")


class Layer(nn.Module):
    """A layer: self-attention, cross-attention in a decoder, and a feed-forward network.

    Each sub-layer has a residual connection. The stack's `initial_gain` scales the initial W^V,
    W^O and feed-forward matrices (DeepNorm, Wang et al. 2022, figure 2).

    Attributes:
      config: sizes and options of the network.
      stack: the attention configs of the layer, and the constants of its residual connections.
    """

    config: ModelConfig
    stack: model.Stack

    def setup(self) -> None:
        """Create the sub-layers."""
        config, stack, gain = self.config, self.stack, self.stack.initial_gain
        residual_constants = stack.residual_scale, stack.depth_multiple
        self.self_attention = MultiHeadAttention(stack.self_attention, gain)
        self.self_attention_residual = Residual(config, *residual_constants)
        if stack.cross_attention is not None:
            self.cross_attention = MultiHeadAttention(stack.cross_attention, gain)
            self.cross_attention_residual = Residual(config, *residual_constants)
        self.feed_forward = FeedForward(config, gain)
        self.feed_forward_residual = Residual(config, *residual_constants)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Compute the layer at all positions at once.

        Args:
          x: the output of the previous layer.
          context: if it has no mask, the stack and `attention_window` determine the mask.
        """
        window, is_causal = self.config.attention_window, self.stack.is_causal
        if context.mask is None and (is_causal or window is not None):
            # One segment id for all tokens: each batch row is one sentence without padding.
            segments = jnp.ones(x.shape[:2], jnp.int32)
            mask = attention_mask(segments, segments, causal=is_causal, window=window)
            context = replace(context, mask=mask)
        cross_attend = None
        if self.stack.cross_attention is not None:
            if context.encoded is None:
                raise UserError(
                    "cross-attention needs the encoder's output; pass Context(encoded=...), with "
                    "an array [batch, time, d_model]"
                )
            cross_attend = partial(self.cross_attention, context=context, encoded=context.encoded)
        self_attend = partial(self.self_attention, context=context)
        return self._sublayers(x, self_attend, cross_attend, context)

    def prefill(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> tuple[Float[Array, "b s d_model"], SourceKeysValues]:
        """Compute the keys and values of the sources, once for all decoding steps.

        Args:
          x: the encoder's output; without cross-attention, the layer's input at the source tokens.
          context: context of the stack.

        Returns:
          The input of the next layer (`x`, or without cross-attention the layer's output), and the
          keys and values.
        """
        if self.stack.cross_attention is not None:
            return x, self.cross_attention.prefill_encoded(x, context)
        # `attend` has the type of a sub-layer, so it returns the keys and values by this list.
        caches: list[SourceKeysValues] = []

        def attend(y: Float[Array, "b s d_model"]) -> Float[Array, "b s d_model"]:
            y, keys_values = self.self_attention.prefill(y, context)
            caches.append(keys_values)
            return y

        return self._sublayers(x, attend, None, context), caches[0]

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: LayerCache,
        source: SourceCache,
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], LayerCache]:
        """Compute the layer at one position of `k` hypotheses per sentence.

        Args:
          x: the output of the previous layer.
          cache: keys and values of earlier positions.
          source: keys and values of the sources, one copy per sentence, for cross-attention or,
            in a layer without cross-attention, for self-attention.
          write_at: first slot of the `k` new entries.
          context: its mask selects the slots that each hypothesis attends to.

        Returns:
          The layer's output, and its cache with the new entries; see `MultiHeadAttention.step`.
        """
        prefix, cross_attend = None, None
        if self.stack.cross_attention is None:
            keys, values = source.keys_values
            prefix = CachedEntries(keys, values, source.mask, source.bias)
        else:
            attention = self.cross_attention
            cross_attend = partial(attention.step_to_encoded, source=source, context=context)

        def attend_to_cache(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            nonlocal cache
            y, cache = self.self_attention.step(y, cache, write_at, context, prefix)
            return y

        return self._sublayers(x, attend_to_cache, cross_attend, context), cache

    def _sublayers(
        self,
        x: Float[Array, "b t d_model"],
        self_attend: Sublayer,
        cross_attend: Sublayer | None,
        context: Context,
    ) -> Float[Array, "b t d_model"]:
        """Compute the sub-layers in the order of figure 1, for training and for decoding."""
        x = self.self_attention_residual(x, self_attend, context)
        if cross_attend is not None:
            x = self.cross_attention_residual(x, cross_attend, context)
        return self.feed_forward_residual(x, partial(self.feed_forward, context=context), context)
