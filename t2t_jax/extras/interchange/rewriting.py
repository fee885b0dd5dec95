"""Rewriting of parameters to the same function, for formats that lack an option of the model."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import Part
from t2t_jax.modules.gates import PLACES
from t2t_jax.modules.names import Arrays

Heads: TypeAlias = Float32[np.ndarray, "_ ..."]
"""A part of a parameter for each head of an attention."""

_STACKS = "encoder", "decoder"
_INWARD = ("W_Q", "W_K", "W_V", "W_1", "W_gate")
_OUTWARD = ("W_O", "b_O", "W_2", "b_2")
_INNER = ("b_Q", "b_K", "b_V", "b_1", "output_bias")
"""The parameters that have no axis of the residual stream."""

_ATTENTIONS = {place: attention for attention, place in PLACES.items()}
_AXES = {"W_Q": -1, "W_K": -1, "W_V": -1, "b_Q": -1, "b_K": -1, "b_V": -1, "W_O": 0, "v": 0}
"""The axis of a parameter along which its heads lie side by side."""


def with_all_biases(arrays: Arrays, model: ModelConfig) -> Arrays:
    """Return the parameters with biases of zeros in attention, if the model has no such biases."""
    if model.attention_bias:
        return arrays
    biases = {
        name.replace(".W_", ".b_"): np.zeros(array.shape[1], np.float32)
        for name, array in arrays.items()
        if name.endswith((".W_Q", ".W_K", ".W_V", ".W_O"))
    }
    return {**arrays, **biases}


def with_start_of_zeros(arrays: Arrays, model: ModelConfig, start: int) -> Arrays:
    """Return the parameters of an equal post-norm model with a start embedding of zeros.

    The embedding s of the start is subtracted from that of every token. All logits fall by the same
    amount, so probabilities stay. The first layer reads x - s, so the biases of its projections
    grow by s W, and its output bias by s: the input of the first norm stays the same.

    Args:
      arrays: the parameters; attention has biases, and the target embedding is the output
        projection too.
      start: the id that a target begins with.
    """
    embedding = model.embeddings["target"]
    shift = arrays[embedding][start]
    if not shift.any():
        return arrays
    changed = {**arrays, embedding: arrays[embedding] - shift}
    inner = shift * np.float32(model.embedding_scale)
    names = model.embeddings["source"], embedding
    for stack, name in zip(_STACKS, names, strict=True):
        if name == embedding:
            place = f"{stack}.layers.0.self_attention"
            for letter in "QKV":
                more = inner @ arrays[f"{place}.W_{letter}"]
                changed[f"{place}.b_{letter}"] = arrays[f"{place}.b_{letter}"] + more
            changed[f"{place}.b_O"] = arrays[f"{place}.b_O"] + inner
    return changed


def as_post_norm(arrays: Arrays, model: ModelConfig, epsilon: float) -> Arrays:
    """Return the parameters of an equal model in post-norm whose norms have a given epsilon.

    DeepNorm (Wang et al. 2022) has norms LayerNorm(alpha x + f(x)). LayerNorm(a x) with the epsilon
    a^2 e is LayerNorm(x) with the epsilon e. So with a = alpha sqrt(new / old) all values between
    two norms are multiplied by a, the matrices that read them are divided by a, and what a
    sub-layer adds is multiplied by sqrt(new / old). The input of a stack cannot be scaled, as it
    has fixed positions. So the first sub-layer of a stack is divided by alpha, and the first norm
    is the only one that really has another epsilon.

    With another norm order than "post" and "deep", and the epsilon of the model, nothing changes.
    """
    changed = dict(arrays)
    for stack_name, stack in zip(_STACKS, model.stacks, strict=True):
        ratio, scale = (epsilon / model.norm_epsilon) ** 0.5, stack.residual_scale
        cross = ["cross_attention"] * stack.attends_to_source
        sublayers = ["self_attention", *cross, "feed_forward"]
        places = [
            f"{stack_name}.layers.{layer}.{sublayer}"
            for layer in range(stack.num_layers)
            for sublayer in sublayers
        ]
        for place in places:
            is_first, is_last = place == places[0], place == places[-1]
            reading = ("W_Q",) if place.endswith("cross_attention") else _INWARD
            factors = dict.fromkeys(reading, 1 if is_first else 1 / (ratio * scale))
            factors |= dict.fromkeys(_OUTWARD, 1 / scale if is_first else ratio)
            factors |= dict.fromkeys(("norm.scale", "norm.bias"), 1 if is_last else ratio * scale)
            for name, factor in factors.items():
                if (own := f"{place}.{name}") in arrays:
                    changed[own] = arrays[own] * np.float32(factor)
    return changed


def permuted_channels(arrays: Arrays, order: Int[np.ndarray, " d_model"]) -> Arrays:
    """Return the parameters with the channels of the residual stream in another order.

    Args:
      order: the old channel in each place of the new order.
    """
    changed = {}
    for name, array in arrays.items():
        last = name.rpartition(".")[2]
        if last in _INWARD:
            changed[name] = array[order]
        else:
            changed[name] = array if last in _INNER else array[..., order]
    return changed


def with_all_heads(arrays: Arrays, model: ModelConfig) -> Arrays:
    """Return the parameters with num_heads heads in every attention, for formats that need that.

    Heads that are missing get matrices of zeros, and so add nothing.
    """
    if all(one.num_heads == model.num_heads for stack in model.stacks for one in stack.attentions):
        return arrays

    def filled(attention: Part, layer: int, heads: Heads) -> Heads:
        zeros = np.zeros((model.num_heads - len(heads), *heads.shape[1:]), heads.dtype)
        return np.concatenate([heads, zeros])

    return with_changed_heads(arrays, model, filled)


def with_changed_heads(
    arrays: Arrays, model: ModelConfig, change: Callable[[Part, int, Heads], Heads]
) -> Arrays:
    """Return the parameters after a change of the heads that an attention has.

    Args:
      change: takes an attention, the number of a layer, and the parts of a parameter that belong to
        each head; returns the parts that belong to each head after the change.
    """
    changed = dict(arrays)
    for name, array in arrays.items():
        stack, *rest = name.split(".")
        if len(rest) == 4 and rest[3] in _AXES:
            attention, axis = _ATTENTIONS[stack, rest[2]], _AXES[rest[3]]
            heads = np.stack(np.split(array, model.attention_of(attention).num_heads, axis))
            parts = list(change(attention, int(rest[1]), heads))
            changed[name] = np.ascontiguousarray(np.concatenate(parts, axis))
    return changed
