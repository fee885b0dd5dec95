"""The stack of equal layers of every network (section 3.1).

Read `modules.layers` before this file. `modules.embedding` comes next: a network embeds tokens,
passes them through stacks, and projects the output to logits.

In training, the layers of a stack are compiled as one scan: a parameter of all layers is one array
with the layer as leading axis (`encoder/layers/self_attention/query/kernel`: `[layers, d_model, h *
d_k]`). In decoding, layers have separate arrays.
"""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.config import ModelConfig, model, sections
from t2t_jax.kernels.products import PRODUCT
from t2t_jax.modules.attention import DEFAULT_CONTEXT, WEIGHTS, Context, Norm, join_projections
from t2t_jax.modules.cache import (
    Remembered,
    RememberedKeysValues,
    TransformerCache,
    join_layer_caches,
    layer_caches,
)
from t2t_jax.modules.layers import Layer
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.axes import uses_values


class LayerStack(nn.Module):
    """A stack of N layers: an encoder, a decoder, or a decoder-only model.

    Attributes:
      config: sizes and options of the network.
      stack: the depth and the attentions of this stack.
      remat: the part of a layer that the backward pass recomputes instead of keeping it in memory.
      is_cached: whether the stack decodes, by `prefill` and `step`: its layers have separate
        arrays, from `unstacked`.
    """

    config: ModelConfig
    stack: model.Stack
    remat: sections.Remat = "none"
    is_cached: bool = False

    def setup(self) -> None:
        """Create the layers, and the norm at their end if they are pre-norm."""
        # Training scans one layer over stacked parameters; decoding has a module for each layer.
        depth = self.stack.num_layers if self.is_cached else 1
        layers = [Layer(self.config, self.stack) for _ in range(depth)]
        self.layers: Any = layers if self.is_cached else layers[0]
        if self.config.norm_order == "pre":
            self.norm = Norm(self.config.normalization)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Pass embedded tokens through all layers."""
        depth, is_training = self.stack.num_layers, not context.deterministic
        # Only a derivative reads what a loop stacked, so unrolling pays only in training.
        unrolls = is_training and context.kernels.unrolls(x)

        def one_layer(layer: nn.Module, x: Array, index: Int[Array, ""]) -> tuple[Array, None]:
            return layer(x, replace(context, layer=index)), None

        if self.remat != "none":
            products = jax.checkpoint_policies.save_only_these_names(PRODUCT)
            # The compiler undoes rematerialisation by common subexpressions, except within a loop.
            is_loop = depth > 1 and not unrolls
            one_layer = nn.remat(
                one_layer,
                prevent_cse=not is_loop,
                policy=products if self.remat == "dots" else None,
            )
        # The check traces the layer a second time, which changes the random numbers that it draws.
        # It stays wherever there are any, so that runs keep their numbers.
        draws = (self.is_initializing() and uses_values()) or is_training
        scan = nn.scan(
            one_layer,
            variable_axes={"params": 0, "intermediates": 0, WEIGHTS: 0},
            split_rngs={"params": True, "dropout": True},
            length=depth,
            unroll=depth if unrolls else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
            check_constancy_invariants=draws,
        )
        x, _ = scan(self.layers, x, jnp.arange(depth))
        return self.norm(x) if self.config.norm_order == "pre" else x

    def prefill(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> tuple[RememberedKeysValues, ...]:
        """Compute the keys and values that each layer keeps of sources.

        Args:
          x: the encoder's output; of a stack without cross-attention, the embedded sources.
          context: context of the stack.
        """
        kept = []
        for index, layer in enumerate(self.layers):
            x, keys_values = layer.prefill(x, replace(context, layer=index))
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
        """Compute all layers at one position; `Layer.step` explains the arguments."""
        kept = []
        caches = layer_caches(cache, self.stack.self_attention.d_k)
        layers = zip(self.layers, caches, sources, strict=True)
        for index, (layer, old, source) in enumerate(layers):
            x, new = layer.step(x, old, source, write_at, replace(context, layer=index))
            kept.append(new)
        x = self.norm(x) if self.config.norm_order == "pre" else x
        return x, join_layer_caches(cache, kept, write_at)


def unstacked(params: Parameters, stack: model.Stack) -> dict[str, Parameters]:
    """Return the parameters of each layer of a stack, under its name in decoding.

    An unrolled decoding loop copies no cache, but it would slice the layers out of the stacked
    arrays for every token: for one sentence, that takes as long as the token.

    Args:
      params: the parameters of all layers, from a `LayerStack`.
      stack: the depth and the attentions of the stack.
    """
    layers: dict[str, Parameters] = {}
    for number in range(stack.num_layers):
        layer: Parameters = jax.tree.map(lambda p, number=number: p[number], params)
        layer["self_attention"] = join_projections(layer["self_attention"], stack.self_attention)
        layers[f"layers_{number}"] = layer
    return layers
