"""Widen a small trained model to a larger one with the same outputs.

    python -m servers.widened RUN OUT D_MODEL NUM_HEADS D_FF NUM_LAYERS

The speed of a search depends on the lengths of its outputs, and those of a random large model are
unlike those of a real model. So the small model is made larger, but computes the same function:

    channels        a vector of the small model is repeated k times side by side, [x, x]. Its layer
                    norm is that of x, k times. Matrices that read vectors have their rows k times,
                    divided by k; matrices that write them have their columns k times.
    heads           more heads, with the matrices of the real ones, but W_O is zero for them
    d_ff            more units, with the W_1 of the real ones, but W_2 is zero for them
    layers          more layers, whose sub-layers give zeros, as W_O, W_2 and b_2 are zero. Each is
                    followed by a norm with the gain 1 and the bias 0. So is the last real layer:
                    its gain and bias are those of the last norm of the stack.
    embeddings      divided by sqrt(k), as they are multiplied by sqrt(d_model). The logits are then
                    sqrt(k) times as large, by which the last norm of the decoder is divided.
    positions       a learned table with the sinusoids of the small model, k times

The epsilon of the norms that are added makes a relative difference of about 1e-6 each. All matrices
are stored densely, so a product with a zero takes as long as any other. Only the vocabulary stays
as small as it was.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import ModelConfig, network_config
from t2t_jax.errors import UserError
from t2t_jax.interchange.portable import PortableModel, portable_model
from t2t_jax.interchange.rewriting import position_table
from t2t_jax.interchange.runs import write_run
from t2t_jax.modules.names import Arrays
from t2t_jax.system.program import run

_Array = Float32[np.ndarray, "..."]

_MAX_POSITIONS = 1024
_LAST_NORM = "feed_forward.norm.scale", "feed_forward.norm.bias"
_WRITTEN = "W_O", "W_2", "b_2"


class Sizes(NamedTuple):
    """The sizes of the larger model."""

    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    """The number of layers of the encoder, and of the decoder."""


BASE = Sizes(512, 8, 2048, 6)
"""The sizes of the paper's base model."""


def widened(model: PortableModel, sizes: Sizes) -> PortableModel:
    """Return the model with larger sizes.

    Args:
      model: the small model.
      sizes: sizes that are no smaller; d_model is a multiple of the small model's.

    Raises:
      UserError: the model has options that are not supported, or is larger than `sizes`.
    """
    small = model.config.model
    large = replace(
        small,
        d_model=sizes.d_model,
        num_heads=sizes.num_heads,
        d_ff=sizes.d_ff,
        num_encoder_layers=sizes.num_layers,
        num_decoder_layers=sizes.num_layers,
        d_k=None,
        d_v=None,
        position="learned",
        max_positions=_MAX_POSITIONS,
    )
    _check(small, large)
    table = position_table(small, _MAX_POSITIONS)
    assert table is not None
    copies = large.d_model // small.d_model
    root = np.float32(copies**0.5)
    arrays = {"embedding": _tiled(model.arrays["embedding"], copies) / root}
    arrays |= {f"{side}_position": _tiled(table, copies) for side in ("source", "target")}
    for stack in small.stacks:
        name = "decoder" if stack.attends_to_source else "encoder"
        layers = [_layer(model.arrays, f"{name}.layers.{n}.") for n in range(stack.num_layers)]
        wide = [{part: _wide(part, x, small, large) for part, x in one.items()} for one in layers]
        _deepen(wide, sizes.num_layers)
        if name == "decoder":
            for part in _LAST_NORM:
                wide[-1][part] = wide[-1][part] / root
        for number, layer in enumerate(wide):
            arrays |= {f"{name}.layers.{number}.{part}": array for part, array in layer.items()}
    return replace(model, config=replace(model.config, model=large), arrays=arrays)


def _check(small: ModelConfig, large: ModelConfig) -> None:
    """Refuse a model that has other options than the paper's, or is larger."""
    sizes = ("d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers")
    free = {*sizes, "max_positions", *(name for name in vars(small) if name.endswith("_rate"))}
    paper = network_config(compute_dtype="float32")
    others = [
        name
        for name, value in vars(small).items()
        if name not in free and value != getattr(paper, name)
    ]
    if others:
        raise UserError(
            f"a model with other options than the paper's, {', '.join(others)}, is "
            "not made larger here; name a run of configs/quickstart.py"
        )
    fits = large.d_model % small.d_model == 0 and small.key_size <= large.key_size
    if not fits or any(getattr(small, name) > getattr(large, name) for name in sizes):
        raise UserError(
            f"the model is not made larger: some of {', '.join(sizes)} are larger "
            "already, or d_model is no multiple; name a run of a smaller model"
        )


def _layer(arrays: Arrays, prefix: str) -> dict[str, _Array]:
    """Return the parameters of a layer, by their names within it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def _tiled(array: _Array, copies: int) -> _Array:
    """Repeat the last axis of an array, that of channels, `copies` times side by side."""
    return np.concatenate([array] * copies, axis=-1)


def _wide(name: str, array: _Array, small: ModelConfig, large: ModelConfig) -> _Array:
    """Return a parameter of a layer of the small model in the shape of the large model."""
    copies, last = large.d_model // small.d_model, name.rpartition(".")[2]
    if last in ("W_Q", "W_K", "W_V"):
        reads = np.concatenate([array / np.float32(copies)] * copies)
        heads = _as_heads(reads.T, small, large)
        every = [heads[n % small.num_heads] for n in range(large.num_heads)]
        scale = (large.key_size / small.key_size) ** 0.5 if last == "W_Q" else 1.0
        return np.ascontiguousarray(np.concatenate(every).T) * np.float32(scale)
    if last == "W_O":
        heads = _as_heads(_tiled(array, copies), small, large)
        more = np.zeros((large.num_heads - small.num_heads, *heads.shape[1:]), np.float32)
        return np.concatenate([*heads, *more])
    units = [n % small.d_ff for n in range(large.d_ff)]
    if last == "W_1":
        return np.concatenate([array / np.float32(copies)] * copies)[:, units]
    if last == "b_1":
        return array[units]
    if last == "W_2":
        more = np.zeros((large.d_ff - small.d_ff, large.d_model), np.float32)
        return np.concatenate([_tiled(array, copies), more])
    return _tiled(array, copies)  # b_2, and the gains and biases of norms


def _as_heads(
    array: Float32[np.ndarray, "rows n"], small: ModelConfig, large: ModelConfig
) -> Float32[np.ndarray, "heads d_k n"]:
    """Return the rows of each head, with rows of zeros added as far as heads are wider."""
    heads = array.reshape(small.num_heads, small.key_size, -1)
    return np.pad(heads, ((0, 0), (0, large.key_size - small.key_size), (0, 0)))


def _deepen(layers: list[dict[str, _Array]], number: int) -> None:
    """Add layers that change nothing, until there are `number` layers."""
    if len(layers) == number:
        return
    real = layers[-1]
    layers[-1] = real | {name: _neutral(name, real[name]) for name in _LAST_NORM}
    plain = {name: _neutral(name, array) for name, array in real.items()}
    layers += [dict(plain) for _ in range(number - len(layers))]
    layers[-1] |= {name: real[name] for name in _LAST_NORM}


def _neutral(name: str, array: _Array) -> _Array:
    """Return a parameter of a layer that changes nothing, in the shape of a real layer's."""
    if name.endswith("norm.scale"):
        return np.ones_like(array)
    return np.zeros_like(array) if name.endswith(("norm.bias", *_WRITTEN)) else array


def main(arguments: Sequence[str]) -> int:
    """Write the larger model as a run, and return the exit code."""
    workdir, out, *sizes = arguments
    model = widened(portable_model(Path(workdir)), Sizes(*map(int, sizes)))
    write_run(model, Path(out), {"format": "widened", "from": workdir})
    return 0


if __name__ == "__main__":
    run(main)
