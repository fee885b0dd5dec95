"""The places of our parameters among the arrays of a model of another library."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import ModelConfig
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.modules.names import Arrays


class Place(NamedTuple):
    """The place of one of our parameters in a model of another library."""

    ours: str
    """The name of the parameter in this package."""
    theirs: str
    """The name of the array in the other library."""
    transposed: bool = False
    """Whether the array of the other library is the transpose of ours."""

    def array(self, tensors: Tensors) -> Float32[np.ndarray, "..."]:
        """Return our parameter, taken from the tensors of the other library."""
        found = tensors.take(self.theirs)
        return np.ascontiguousarray(found.T) if self.transposed else found

    def theirs_of(self, arrays: Arrays) -> Float32[np.ndarray, "..."]:
        """Return the array of the other library, made from our parameters."""
        found = arrays[self.ours]
        return found.T if self.transposed else found


def norm_places(ours: str, theirs: str) -> Iterator[Place]:
    """Yield the places of the scale and the bias of a norm."""
    yield Place(f"{ours}.scale", f"{theirs}.weight")
    yield Place(f"{ours}.bias", f"{theirs}.bias")


def linear_places(ours: str, letter: str, theirs: str, transposed: bool = True) -> Iterator[Place]:
    """Yield the places of a projection's matrix and bias: W_Q and b_Q for the letter "Q"."""
    yield Place(f"{ours}.W_{letter}", f"{theirs}.weight", transposed)
    yield Place(f"{ours}.b_{letter}", f"{theirs}.bias")


def encoder_decoder_places(model: ModelConfig, prefix: str = "") -> Iterator[Place]:
    """Yield the places of all parameters but embeddings, positions and a bias of the output.

    Marian, M2M100, mBART and BART of transformers share these names.

    Args:
      prefix: what the names begin with in the other library.
    """
    names = ("encoder", "source"), ("decoder", "target")
    for (name, side), stack in zip(names, model.stacks, strict=True):
        if model.embedding_norm:
            yield from norm_places(f"{side}_embedding_norm", f"{prefix}{name}.layernorm_embedding")
        for number in range(stack.num_layers):
            yield from _layer_places(name, number, prefix)
        if model.norm_order == "pre":
            yield from norm_places(f"{name}.norm", f"{prefix}{name}.layer_norm")


def _layer_places(stack: str, number: int, prefix: str) -> Iterator[Place]:
    """Yield the places of a layer's parameters in Marian, M2M100, mBART and BART.

    Args:
      stack: "encoder" or "decoder".
      prefix: what the names begin with before the name of the stack.
    """
    ours, theirs = f"{stack}.layers.{number}", f"{prefix}{stack}.layers.{number}"
    attentions = {"self_attention": "self_attn"}
    if stack == "decoder":
        attentions["cross_attention"] = "encoder_attn"
    for sublayer, attention in attentions.items():
        for letter, name in (("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")):
            yield from linear_places(f"{ours}.{sublayer}", letter, f"{theirs}.{attention}.{name}")
        yield from norm_places(f"{ours}.{sublayer}.norm", f"{theirs}.{attention}_layer_norm")
    for matrix in ("1", "2"):
        yield from linear_places(f"{ours}.feed_forward", matrix, f"{theirs}.fc{matrix}")
    yield from norm_places(f"{ours}.feed_forward.norm", f"{theirs}.final_layer_norm")
