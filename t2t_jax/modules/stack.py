"""The stack of layers of every network (section 3.1).

Read `modules.layers` before this file. The next file is `modules.embedding`, which computes the
input of a stack.

Training compiles a stack as one scan over layers. An array holds a parameter of all layers, with
the layer as first axis: `encoder/layers/self_attention/query/kernel` is `[layers, d_model,
h * d_k]`. Decoding uses separate arrays for each layer.
"""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.config import ModelConfig, model, sections
from t2t_jax.kernels.products import MATMUL_NAME
from t2t_jax.modules.attention import DEFAULT_CONTEXT, WEIGHTS, Context, Norm, join_projections
from t2t_jax.modules.cache import (
    SourceCache,
    SourceKeysValues,
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
      stack: the depth and the attention configs of this stack.
      remat: the part of a layer that the backward pass recomputes to save memory.
      is_cached: whether the stack is for decoding, with parameters from `unstack`.
    """

    config: ModelConfig
    stack: model.Stack
    remat: sections.Remat = "none"
    is_cached: bool = False

    def setup(self) -> None:
        """Create the layers and, for pre-norm layers, the final norm."""
        # Training scans one module over stacked parameters. Decoding has one module per layer.
        depth = self.stack.num_layers if self.is_cached else 1
        layers = [Layer(self.config, self.stack) for _ in range(depth)]
        self.layers: Any = layers if self.is_cached else layers[0]
        if self.config.norm_order == "pre":
            # The last pre-norm layer ends in a sum, which nothing has normalized.
            self.norm = Norm(self.config.normalization)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Pass embedded tokens through all layers."""
        depth, is_training = self.stack.num_layers, not context.deterministic
        # A loop stacks the activations that the backward pass reads. Unrolling avoids these copies,
        # so it pays only in training.
        unrolls = is_training and context.kernels.unrolls(x)

        def one_layer(layer: nn.Module, x: Array, index: Int[Array, ""]) -> tuple[Array, None]:
            return layer(x, replace(context, layer=index)), None

        if self.remat != "none":
            matmul_policy = jax.checkpoint_policies.save_only_these_names(MATMUL_NAME)
            # XLA's common-subexpression elimination (CSE) would undo rematerialization, except in a
            # loop, where preventing CSE only costs time.
            is_loop = depth > 1 and not unrolls
            one_layer = nn.remat(
                one_layer,
                prevent_cse=not is_loop,
                policy=matmul_policy if self.remat == "dots" else None,
            )
        # The check of `nn.scan` traces the layer a second time, which changes the random numbers of
        # the layer. Where a layer draws any, the check stays on, so that runs keep their results.
        draws_random = (self.is_initializing() and uses_values()) or is_training
        scan = nn.scan(
            one_layer,
            # Stack parameters, intermediates and attention weights along a new first axis.
            variable_axes={"params": 0, "intermediates": 0, WEIGHTS: 0},
            split_rngs={"params": True, "dropout": True},
            length=depth,
            unroll=depth if unrolls else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
            check_constancy_invariants=draws_random,
        )
        x, _ = scan(self.layers, x, jnp.arange(depth))
        return self.norm(x) if self.config.norm_order == "pre" else x

    def prefill(
        self, x: Float[Array, "b s d_model"], context: Context
    ) -> tuple[SourceKeysValues, ...]:
        """Compute the keys and values of the sources in each layer.

        Args:
          x: the encoder's output or, without cross-attention, the embedded sources.
          context: context of the stack.
        """
        keys_values_by_layer = []
        for index, layer in enumerate(self.layers):
            x, keys_values = layer.prefill(x, replace(context, layer=index))
            keys_values_by_layer.append(keys_values)
        return tuple(keys_values_by_layer)

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: TransformerCache,
        sources: tuple[SourceCache, ...],
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], TransformerCache]:
        """Compute all layers at one position of each hypothesis; see `Layer.step`."""
        new_caches = []
        caches = layer_caches(cache, self.stack.self_attention.d_k)
        layers = zip(self.layers, caches, sources, strict=True)
        for index, (layer, old_cache, source) in enumerate(layers):
            x, new_cache = layer.step(x, old_cache, source, write_at, replace(context, layer=index))
            new_caches.append(new_cache)
        x = self.norm(x) if self.config.norm_order == "pre" else x
        return x, join_layer_caches(cache, new_caches, write_at)


def unstack(params: Parameters, stack: model.Stack) -> dict[str, Parameters]:
    """Split the parameters of a `LayerStack` by layer: `layers_0`, `layers_1` and so on.

    Otherwise, decoding would slice each layer out of the stacked arrays for every token, which for
    one sentence takes as long as the computation.
    """
    layers: dict[str, Parameters] = {}
    for index in range(stack.num_layers):
        layer: Parameters = jax.tree.map(lambda p, index=index: p[index], params)
        layer["self_attention"] = join_projections(layer["self_attention"], stack.self_attention)
        layers[f"layers_{index}"] = layer
    return layers
