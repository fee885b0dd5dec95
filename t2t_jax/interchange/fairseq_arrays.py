"""Renaming of the parameters of a model of fairseq into the names and layout of this package.

Matrices of PyTorch are [output, input], and those of the paper's formulas [input, output].
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np
from jaxtyping import Float32, Int, Shaped

from t2t_jax.config import Config, ModelConfig
from t2t_jax.interchange.places import Place, fairseq_places, norm_places
from t2t_jax.interchange.tensors import Tensors

_Array = Float32[np.ndarray, "..."]
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
_NO_PARAMETERS = re.compile(r".*\.(version|embed_positions\.(_float_tensor|weights))")
_JOINED = re.compile(r"(.*)\.in_proj_(weight|bias)")
_NUMBERED_NORM = re.compile(r"(encoder|decoder)(\..*)\.layer_norms\.([012])\.(weight|bias)")
RESERVED_POSITIONS = 2
"""The rows of a learned table before the first position: fairseq counts from padding's id, 1."""


def renamed(
    arrays: Mapping[str, Shaped[np.ndarray, "..."]],
) -> Iterator[tuple[str, Shaped[np.ndarray, "..."]]]:
    """Yield the parameters of any version under the names that later versions of fairseq have.

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


def fairseq_model_places(model: ModelConfig, prefix: str = "") -> Iterator[Place]:
    """Yield the places of all parameters but embeddings, positions and a bias of the output.

    Args:
      model: the config of the model.
      prefix: what the names begin with in the other library.
    """
    for name, stack in zip(_NORMS, model.stacks, strict=True):
        side = "source" if name == "encoder" else "target"
        if model.embedding_norm:
            yield from norm_places(f"{side}_embedding_norm", f"{prefix}{name}.layernorm_embedding")
        for number in range(stack.num_layers):
            yield from fairseq_places(name, number, prefix)
        if model.norm_order == "pre":
            yield from norm_places(f"{name}.norm", f"{prefix}{name}.layer_norm")


def parameters_of_fairseq(
    taking: Tensors, model: ModelConfig, without: str = ""
) -> dict[str, Float32[np.ndarray, "..."]]:
    """Return the parameters by the names of `modules.names`, with entries in fairseq's order.

    Args:
      taking: the arrays, under the names that `renamed` gives.
      model: the config of the model; its `max_positions` is not read.
      without: a pattern of the names of arrays that are no parameters.

    Raises:
      UserError: an array is missing, or one is left that such a model does not have.
    """
    found = _embeddings(taking, model)
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        if model.position == "learned":
            table = taking.take(f"{stack}.embed_positions.weight", None, model.d_model)
            found[f"{side}_position"] = table[RESERVED_POSITIONS:]
    found |= {place.ours: place.array(taking) for place in fairseq_model_places(model)}
    taking.finish(without)
    if model.position == "learned":  # of tables of different lengths, the shorter one counts
        names = "source_position", "target_position"
        length = min(len(found[name]) for name in names)
        found |= {name: found[name][:length] for name in names}
    return found


def orders_of_rows(
    model: ModelConfig, source: Int[np.ndarray, " sources"], target: Int[np.ndarray, " targets"]
) -> dict[str, Int[np.ndarray, " _"]]:
    """Return the order of each matrix that has a row for each entry of a vocabulary.

    Args:
      model: the config of the model.
      source: the row in the file of each of our entries of sources; see `numbering.new_order`.
      target: that of each of our entries of targets.
    """
    return {name: source if side == "source" else target for side, name in model.embeddings.items()}


def with_position_table(config: Config, length: int) -> Config:
    """Return the config for a learned table of positions, with limits within its length."""
    half = length // 2
    limits = {
        "data.max_length": min(config.data.max_length, half),
        "decoding.max_extra_length": min(config.decoding.max_extra_length, half),
    }
    return config.replace({"model.max_positions": length, **limits})


def _embeddings(taking: Tensors, model: ModelConfig) -> dict[str, _Array]:
    """Return the matrices with a row for each entry of a vocabulary."""
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
    return taken
