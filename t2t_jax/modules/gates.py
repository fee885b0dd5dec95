"""Mask attention heads of a trained model with gates (Michel et al. 2019).

The output of multi-head attention is the sum of head_i W_i^O over the heads, where W_i^O are the
rows of W^O for head i (section 3.2.2). Multiplying these rows by a gate changes the parameters, but
not the network.
"""

from typing import NamedTuple

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import PARTS, Part
from t2t_jax.modules.parameters import Parameters


class HeadGates(NamedTuple):
    """Factors for all heads: 1 keeps a head unchanged, and 0 masks it."""

    encoder: Float[Array, "n h"]
    """Factors for self-attention of the encoder's layers."""
    decoder: Float[Array, "n h"]
    """Factors for self-attention of the decoder's layers."""
    cross: Float[Array, "n h"]
    """Factors for attention of the decoder's layers to the encoder's output."""


PLACES: dict[Part, tuple[str, str]] = {
    "encoder": ("encoder", "self_attention"),
    "decoder": ("decoder", "self_attention"),
    "cross": ("decoder", "cross_attention"),
}
"""The stack and the name of each kind of attention in the parameters."""


def open_gates(model: ModelConfig) -> HeadGates:
    """Make gates of 1, which keep every head unchanged.

    Args:
      model: a config with an encoder and a decoder.
    """
    depths = [stack.num_layers for stack in model.stacks]  # of the encoder and the decoder
    head_counts = (model.attention_of(part).num_heads for part in PARTS)
    return HeadGates(*map(jnp.ones, zip((*depths, depths[1]), head_counts, strict=True)))


def apply_gates(params: Parameters, gates: HeadGates) -> Parameters:
    """Multiply the rows of W^O for every head by the gate of the head.

    Args:
      params: the training parameters, with stacked layers.
    """
    leaves = flatten_dict(params)
    for part, (stack, attention) in PLACES.items():
        path = stack, "layers", attention, "output", "kernel"
        kernel, factors = leaves[path], getattr(gates, part)  # W^O: [n, h d_v, d_model]
        # [n, h, d_v, d_model]
        heads = kernel.reshape(*factors.shape, -1, kernel.shape[-1]) * factors[:, :, None, None]
        leaves[path] = heads.reshape(kernel.shape).astype(kernel.dtype)
    return unflatten_dict(leaves)
