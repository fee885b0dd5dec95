"""The stack of a decoder at one position, whose layers cache earlier positions."""

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import Stack
from t2t_jax.kernels.attention import Kept
from t2t_jax.modules.attention import CachedSelfAttention, join_projections
from t2t_jax.modules.cache import (
    LayerCache,
    Remembered,
    RememberedKeysValues,
    TransformerCache,
    joined_layers,
    layers_of,
)
from t2t_jax.modules.context import Context
from t2t_jax.modules.layers import Layer, last_norm
from t2t_jax.modules.matrices import Parameters


class CachedLayer(Layer):
    """A layer that computes one position of `k` hypotheses per sentence."""

    def make_self_attention(self) -> nn.Module:
        """Make the module for self-attention with a cache; its parameters come from training."""
        return CachedSelfAttention(self.stack.self_attention)

    def remember(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> tuple[Float[Array, "b s d_model"], RememberedKeysValues]:
        """Compute the keys and values that the layer stores of sources.

        Args:
          x: the encoder's output, to which the layer's cross-attention attends. A layer without
            cross-attention reads the sources itself, and the generated tokens attend to them.

        Returns:
          The input of the next layer, which is `x` itself or the layer's output, and the keys and
          values.
        """
        if self.stack.attends_to_source:
            return x, self.cross_attention.remember(x, context)
        kept: list[RememberedKeysValues] = []

        def attend(y: Float[Array, "b s d_model"]) -> Float[Array, "b s d_model"]:
            y, keys_values = self.self_attention.read(y, context)
            kept.append(keys_values)
            return y

        return self.sublayers(x, attend, attend, context), kept[0]

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: LayerCache,
        source: Remembered,
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], LayerCache]:
        """Compute the layer at one position.

        Args:
          source: keys and values of the sources, one copy per sentence: cross-attention attends to
            them or, in a layer that has none, self-attention does.
          write_at: slot of the first of the `k` new entries.
          context: context of the stack; its mask says to which slots each hypothesis attends.

        Returns:
          The layer's output, and its cache with the new entries; see `CachedSelfAttention`.
        """
        keys_values, mask, bias = source
        goes_on = not self.stack.attends_to_source
        before = Kept(keys_values[0], keys_values[1], mask, bias) if goes_on else None

        def attend_to_cache(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            nonlocal cache
            y, cache = self.self_attention(y, cache, write_at, context, before)
            return y

        def attend_to_source(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            return self.cross_attention.recall(y, keys_values, mask, context)

        return self.sublayers(x, attend_to_cache, attend_to_source, context), cache


class CachedStack(nn.Module):
    """A decoder's stack at one position, whose layers have separate arrays, from `unstacked`."""

    config: ModelConfig
    stack: Stack

    def setup(self) -> None:
        """Create the layers, and the norm at their end if there is one."""
        self.layers = [CachedLayer(self.config, self.stack) for _ in range(self.stack.num_layers)]
        self.norm = last_norm(self.config)

    def remember(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> tuple[RememberedKeysValues, ...]:
        """Compute the keys and values that each layer stores of sources.

        Args:
          x: the encoder's output; of a stack without cross-attention, the embedded sources.
        """
        kept = []
        for layer in self.layers:
            x, keys_values = layer.remember(x, context)
            kept.append(keys_values)
        return tuple(kept)

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: TransformerCache,
        sources: tuple[Remembered, ...],
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], TransformerCache]:
        """Compute all layers at one position; `CachedLayer.step` explains the arguments."""
        kept = []
        caches = layers_of(cache, self.stack.self_attention.d_k)
        for layer, old, source in zip(self.layers, caches, sources, strict=True):
            x, new = layer.step(x, old, source, write_at, context)
            kept.append(new)
        return self.norm(x) if self.norm else x, joined_layers(cache, kept, write_at)


def unstacked(params: Parameters, stack: Stack) -> dict[str, Parameters]:
    """Return the parameters of each layer of a stack, under its name in a `CachedStack`.

    An unrolled decoding loop copies no cache, but it would slice the layers out of the stacked
    arrays for every token: for one sentence, that takes as long as the token.

    Args:
      params: the parameters of all layers, from a `LayerStack`.
    """
    layers: dict[str, Parameters] = {}
    for number in range(stack.num_layers):
        layer: Parameters = jax.tree.map(lambda p, number=number: p[number], params)
        layer["self_attention"] = join_projections(layer["self_attention"], stack.self_attention)
        layers[f"layers_{number}"] = layer
    return layers
