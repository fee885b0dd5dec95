"""Tiny networks: the fields that make a config describe one, and its first parameters."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax

from t2t_jax.modules.network import init_parameters


def tiny_fields(d_model: int, layers: tuple[int, int], num_heads: int = 2) -> dict[str, Any]:
    """Return the fields of a model with a `d_ff` of twice the width."""
    return {
        "d_model": d_model,
        "num_heads": num_heads,
        "d_ff": 2 * d_model,
        "num_encoder_layers": layers[0],
        "num_decoder_layers": layers[1],
    }


def tiny_sizes(d_model: int, layers: tuple[int, int], num_heads: int = 2) -> dict[str, Any]:
    """Return the same fields by their paths in a config."""
    return {f"model.{k}": size for k, size in tiny_fields(d_model, layers, num_heads).items()}


def first_parameters(network: nn.Module, seed: int = 0) -> Any:
    """Return the parameters with which the training of a network starts, out of their boxes."""
    return nn.unbox(jax.jit(partial(init_parameters, network))(jax.random.key(seed)))
