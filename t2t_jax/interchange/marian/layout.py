"""The names of parameters in `MarianMTModel` of transformers, and constants of its code."""

from collections.abc import Iterator

EPSILON = 1e-5
"""The epsilon that the norms of `MarianMTModel` add to the variance."""

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "swish"}
"""The name in transformers of each of our activations."""

_SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_PROJECTIONS = {"Q": "q_proj", "K": "k_proj", "V": "v_proj", "O": "out_proj"}


def layer_names(stack: str, number: int) -> Iterator[tuple[str, str]]:
    """Yield our name and the name in transformers of each parameter of a layer.

    A matrix in transformers is the transpose of ours.

    Args:
      stack: "encoder" or "decoder".
      number: the layer's number, from 0.
    """
    ours, theirs = f"{stack}.layers.{number}", f"model.{stack}.layers.{number}"
    for sublayer, attention in _SUBLAYERS.items():
        if sublayer == "cross_attention" and stack == "encoder":
            continue
        for letter, name in _PROJECTIONS.items():
            yield f"{ours}.{sublayer}.W_{letter}", f"{theirs}.{attention}.{name}.weight"
            yield f"{ours}.{sublayer}.b_{letter}", f"{theirs}.{attention}.{name}.bias"
        yield f"{ours}.{sublayer}.norm.scale", f"{theirs}.{attention}_layer_norm.weight"
        yield f"{ours}.{sublayer}.norm.bias", f"{theirs}.{attention}_layer_norm.bias"
    for matrix in (1, 2):
        yield f"{ours}.feed_forward.W_{matrix}", f"{theirs}.fc{matrix}.weight"
        yield f"{ours}.feed_forward.b_{matrix}", f"{theirs}.fc{matrix}.bias"
    yield f"{ours}.feed_forward.norm.scale", f"{theirs}.final_layer_norm.weight"
    yield f"{ours}.feed_forward.norm.bias", f"{theirs}.final_layer_norm.bias"
