"""Changes of parameters that keep the model's outputs, for formats that lack one of its options."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import Part
from t2t_jax.errors import UserError, quote
from t2t_jax.modules.gates import PLACES
from t2t_jax.modules.names import Arrays

Heads: TypeAlias = Float32[np.ndarray, "_ ..."]
"""One parameter of an attention, split by head: `[heads, ...]`."""

_STACKS = "encoder", "decoder"
_INWARD = ("W_Q", "W_K", "W_V", "W_1", "W_gate")
_OUTWARD = ("W_O", "b_O", "W_2", "b_2")
_INNER = ("b_Q", "b_K", "b_V", "b_1", "output_bias")
"""The parameters without an axis of the residual stream."""

_ATTENTIONS = {path: attention for attention, path in PLACES.items()}
_AXES = {"W_Q": -1, "W_K": -1, "W_V": -1, "b_Q": -1, "b_K": -1, "b_V": -1, "W_O": 0, "v": 0}
"""The axis along which a parameter concatenates its heads."""


def with_all_biases(arrays: Arrays, model: ModelConfig) -> Arrays:
    """Return the parameters, with zero biases added if attention has none."""
    if model.attention_bias:
        return arrays
    biases = {
        name.replace(".W_", ".b_"): np.zeros(array.shape[1], np.float32)
        for name, array in arrays.items()
        if name.endswith((".W_Q", ".W_K", ".W_V", ".W_O"))
    }
    return {**arrays, **biases}


def with_start_of_zeros(arrays: Arrays, model: ModelConfig, start_token: int) -> Arrays:
    """Return parameters of an equivalent post-norm model whose start token has a zero embedding.

    The start token's embedding s is subtracted from all embeddings. All logits fall by the same
    amount, so probabilities stay. The first layer reads x - s, so its projection biases grow by
    s W. Its output bias grows by s, so the input of the first norm stays.

    Attention must have biases, and the target embedding must be the output projection too.
    """
    embedding = model.embeddings["target"]
    shift = arrays[embedding][start_token]
    if not shift.any():
        return arrays
    new_arrays = {**arrays, embedding: arrays[embedding] - shift}
    scaled_shift = shift * np.float32(model.embedding_scale)
    for stack, name in zip(_STACKS, (model.embeddings["source"], embedding), strict=True):
        # The encoder reads x - s too if both stacks share the embedding matrix.
        if name == embedding:
            attention = f"{stack}.layers.0.self_attention"
            for letter in "QKV":
                bias, matrix = f"{attention}.b_{letter}", arrays[f"{attention}.W_{letter}"]
                new_arrays[bias] = arrays[bias] + scaled_shift @ matrix
            new_arrays[f"{attention}.b_O"] = arrays[f"{attention}.b_O"] + scaled_shift
    return new_arrays


def as_post_norm(arrays: Arrays, model: ModelConfig, epsilon: float) -> Arrays:
    """Rescale parameters for a post-norm model whose norms add `epsilon`, with equal outputs.

    DeepNorm (Wang et al. 2022) computes LayerNorm(alpha x + f(x)). LayerNorm(a x) with epsilon
    a^2 e equals LayerNorm(x) with epsilon e. With a = alpha sqrt(new / old), the function
    multiplies activations between norms by a, divides the matrices that read them by a, and
    multiplies sublayer outputs by sqrt(new / old). It cannot scale the input of a stack, which has
    fixed positions. So it divides the first sublayer by alpha, and only the first norm's epsilon
    really changes. Other models whose epsilon is the same stay unchanged.
    """
    new_arrays = dict(arrays)
    for stack_name, stack in zip(_STACKS, model.stacks, strict=True):
        ratio, scale = (epsilon / model.norm_epsilon) ** 0.5, stack.residual_scale
        cross = ["cross_attention"] * stack.attends_to_source
        kinds = ["self_attention", *cross, "feed_forward"]
        sublayers = [
            f"{stack_name}.layers.{layer}.{kind}"
            for layer in range(stack.num_layers)
            for kind in kinds
        ]
        for sublayer in sublayers:
            is_first, is_last = sublayer == sublayers[0], sublayer == sublayers[-1]
            # Keys and values of cross-attention read the encoder's output, which is not scaled.
            inputs = ("W_Q",) if sublayer.endswith("cross_attention") else _INWARD
            factors = dict.fromkeys(inputs, 1 if is_first else 1 / (ratio * scale))
            factors |= dict.fromkeys(_OUTWARD, 1 / scale if is_first else ratio)
            factors |= dict.fromkeys(("norm.scale", "norm.bias"), 1 if is_last else ratio * scale)
            for name, factor in factors.items():
                if (path := f"{sublayer}.{name}") in arrays:
                    new_arrays[path] = arrays[path] * np.float32(factor)
    return new_arrays


def permuted_channels(arrays: Arrays, old_channels: Int[np.ndarray, " d_model"]) -> Arrays:
    """Return the parameters with the channels of the residual stream in another order.

    Args:
      old_channels: for each new channel, the index of the old channel.
    """
    new_arrays = {}
    for name, array in arrays.items():
        leaf = name.rpartition(".")[2]
        if leaf in _INWARD:
            new_arrays[name] = array[old_channels]
        else:
            new_arrays[name] = array if leaf in _INNER else array[..., old_channels]
    return new_arrays


def with_all_heads(arrays: Arrays, model: ModelConfig) -> Arrays:
    """Return the parameters with `num_heads` heads in every attention.

    Added heads have zero matrices, so they do not change the output.
    """
    head_counts = {attention.num_heads for stack in model.stacks for attention in stack.attentions}
    if head_counts == {model.num_heads}:
        return arrays

    def pad_heads(attention: Part, layer: int, heads: Heads) -> Heads:
        zeros = np.zeros((model.num_heads - len(heads), *heads.shape[1:]), heads.dtype)
        return np.concatenate([heads, zeros])

    return with_changed_heads(arrays, model, pad_heads)


def with_changed_heads(
    arrays: Arrays, model: ModelConfig, change: Callable[[Part, int, Heads], Heads]
) -> Arrays:
    """Apply a function to the heads of every attention parameter.

    Args:
      change: a function of the attention, the layer index and one parameter, split by head. It
        returns the new parameter, split by head.

    Raises:
      UserError: the kind of attention combines its heads, for example with gates.
    """
    if model.attention.kind.combines:
        raise UserError(
            f"attention heads of the kind {quote(model.attention_kind)} cannot be changed alone, "
            "because it combines them by its own method; use a model with another attention_kind"
        )
    new_arrays = dict(arrays)
    for name, array in arrays.items():
        stack, *path = name.split(".")  # such as encoder.layers.0.self_attention.W_Q
        if len(path) == 4 and path[3] in _AXES:
            attention, axis = _ATTENTIONS[stack, path[2]], _AXES[path[3]]
            heads = np.stack(np.split(array, model.attention_of(attention).num_heads, axis))
            new_heads = list(change(attention, int(path[1]), heads))
            new_arrays[name] = np.ascontiguousarray(np.concatenate(new_heads, axis))
    return new_arrays
