"""Renaming of the parameters of a model of fairseq into the names and layout of this package.

Matrices of PyTorch are [output, input], and those of the paper's formulas [input, output].
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float32, Shaped

from t2t_jax.config import ModelConfig
from t2t_jax.interchange.tensors import Tensors

_Array = Float32[np.ndarray, "..."]
_SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_PROJECTIONS = {"Q": "q_proj", "K": "k_proj", "V": "v_proj", "O": "out_proj"}
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_NO_PARAMETERS = re.compile(r".*\.(version|embed_positions\.(_float_tensor|weights))")
_JOINED = re.compile(r"(.*)\.in_proj_(weight|bias)")
_NUMBERED_NORM = re.compile(r"(encoder|decoder)(\..*)\.layer_norms\.([012])\.(weight|bias)")
_RESERVED_POSITIONS = 2
"""The rows of a learned table before the first position: fairseq counts from padding's id, 1."""


def renamed(
    arrays: Mapping[str, Shaped[np.ndarray, "..."]],
) -> Iterator[tuple[str, Shaped[np.ndarray, "..."]]]:
    """Yield the parameters under the names that later versions of fairseq have given them.

    Args:
      arrays: the arrays of a checkpoint of any version.
    """
    for name, array in arrays.items():
        if _NO_PARAMETERS.fullmatch(name):
            continue
        if (found := _JOINED.fullmatch(name)) and array.ndim:
            for letter, part in zip("qkv", np.array_split(array, 3), strict=True):
                yield f"{found[1]}.{letter}_proj.{found[2]}", part
        elif found := _NUMBERED_NORM.fullmatch(name):
            norm = _NORMS[found[1]][min(int(found[3]), len(_NORMS[found[1]]) - 1)]
            yield f"{found[1]}{found[2]}.{norm}.{found[4]}", array
        elif name == "decoder.embed_out":
            yield "decoder.output_projection.weight", array
        else:
            yield name, array


def parameters_of_fairseq(
    taking: Tensors, model: ModelConfig
) -> dict[str, Float32[np.ndarray, "..."]]:
    """Return the parameters by the names of `interchange.names`, with entries in fairseq's order.

    Args:
      taking: the arrays, under the names that `renamed` gives.
      model: the config of the model; its `max_positions` is not read.

    Raises:
      UserError: an array is missing, or one is left that such a model does not have.
    """
    found = dict(_embeddings(taking, model))
    for name, stack in zip(_NORMS, model.stacks, strict=True):
        side = "source" if name == "encoder" else "target"
        if model.position == "learned":
            table = taking.take(f"{name}.embed_positions.weight", None, model.d_model)
            found[f"{side}_position"] = table[_RESERVED_POSITIONS:]
        if model.embedding_norm:
            found |= _norm(taking, f"{name}.layernorm_embedding", f"{side}_embedding_norm")
        for number in range(stack.num_layers):
            found |= _layer(taking, f"{name}.layers.{number}.", stack.attends_to_source)
        if model.norm_order == "pre":
            found |= _norm(taking, f"{name}.layer_norm", f"{name}.norm")
    taking.finish()
    return _with_equal_tables(found)


def _with_equal_tables(found: dict[str, _Array]) -> dict[str, _Array]:
    """Return the parameters with learned tables of positions cut to the length of the shortest."""
    tables = [name for name in ("source_position", "target_position") if name in found]
    shortest = min((len(found[name]) for name in tables), default=0)
    return {**found, **{name: found[name][:shortest] for name in tables}}


def _embeddings(taking: Tensors, model: ModelConfig) -> Iterator[tuple[str, _Array]]:
    """Yield the matrices with a row for each entry of a vocabulary."""
    theirs = {
        "source": "encoder.embed_tokens.weight",
        "target": "decoder.embed_tokens.weight",
        "output": "decoder.output_projection.weight",
    }
    taken: dict[str, _Array] = {}
    for use, ours in model.embeddings.items():
        if ours in taken:
            taking.take_copy(theirs[use], taken[ours])
        else:
            taken[ours] = taking.take(theirs[use], None, model.d_model)
    yield from taken.items()


def _layer(taking: Tensors, place: str, attends_to_source: bool) -> dict[str, _Array]:
    found: dict[str, _Array] = {}
    sublayers = _SUBLAYERS if attends_to_source else {"self_attention": "self_attn"}
    for ours, theirs in sublayers.items():
        for letter, name in _PROJECTIONS.items():
            found |= _linear(taking, f"{place}{theirs}.{name}", f"{place}{ours}", letter)
        found |= _norm(taking, f"{place}{theirs}_layer_norm", f"{place}{ours}.norm")
    for number in ("1", "2"):
        found |= _linear(taking, f"{place}fc{number}", f"{place}feed_forward", number)
    return found | _norm(taking, f"{place}final_layer_norm", f"{place}feed_forward.norm")


def _linear(taking: Tensors, theirs: str, ours: str, letter: str) -> dict[str, _Array]:
    matrix, bias = taking.take(f"{theirs}.weight"), taking.take(f"{theirs}.bias")
    return {f"{ours}.W_{letter}": matrix.T, f"{ours}.b_{letter}": bias}


def _norm(taking: Tensors, theirs: str, ours: str) -> dict[str, _Array]:
    scale, bias = taking.take(f"{theirs}.weight"), taking.take(f"{theirs}.bias")
    return {f"{ours}.scale": scale, f"{ours}.bias": bias}
