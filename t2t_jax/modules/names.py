"""The parameters of a model under the names of the paper.

Training scans over the layers of a stack, so one array holds a parameter of all layers. This module
uses a separate array for each layer:

    embedding                               the shared matrix of section 3.4: [vocab_size, d_model]
    encoder.layers.0.self_attention.W_Q     W_i^Q of section 3.2.2, heads side by side
    encoder.layers.0.self_attention.norm.scale      of the LayerNorm around that sub-layer
    decoder.layers.5.feed_forward.W_1       W_1 of equation 2: [d_model, d_ff]
    encoder.norm.scale                      of the norm at the end of a pre-norm stack

Matrices multiply as in the paper, x W: the first axis is the input.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float32, PyTree

from t2t_jax.errors import UserError

Arrays = Mapping[str, Float32[np.ndarray, "..."]]
"""The parameters of a model by name."""

_ATTENTION = {"query": "Q", "key": "K", "value": "V", "output": "O"}
_LETTERS = {"kernel": "W", "bias": "b"}
_LAST = {
    "kernel_1": "W_1",
    "kernel_2": "W_2",
    "bias_1": "b_1",
    "bias_2": "b_2",
    "gate_kernel": "W_gate",
    "vector": "v",
}


def named_arrays(params: Mapping[str, PyTree]) -> dict[str, Float32[np.ndarray, "..."]]:
    """Copy the parameters to the host, one array per name and layer.

    Args:
      params: the training parameters of one model.

    Raises:
      UserError: `params` are not a dictionary of parameters, or belong to an ensemble.
    """
    arrays = {}
    for path, param in _parameters(params):
        array = np.asarray(param, np.float32)
        for name, layer in _names(path, array.shape):
            arrays[name] = np.array(array if layer is None else array[layer])
    return arrays


def parameters_of(arrays: Arrays, like: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Build the training parameters from arrays by name.

    Args:
      arrays: an array for every parameter of the model, and no other.
      like: the training parameters, with a `jax.ShapeDtypeStruct` for every array.

    Returns:
      A tree of NumPy arrays.

    Raises:
      UserError: an array is missing, or has another shape, or belongs to no parameter.
    """
    params: dict[tuple[str, ...], np.ndarray] = {}
    unused_names = set(arrays)
    for path, expected in flatten_dict(like).items():
        names = list(_names(path, expected.shape))
        layer_arrays = [_find(arrays, name, expected.shape, layer) for name, layer in names]
        unused_names -= {name for name, _ in names}
        params[path] = layer_arrays[0] if names[0][1] is None else np.stack(layer_arrays)
    if unused_names:
        raise UserError(f"the model has no parameter {min(unused_names)}; remove its array")
    return unflatten_dict(params)


def parameter_table(params: Mapping[str, PyTree]) -> str:
    """Format names, shapes and parameter counts as a table.

    Equal parameters of the layers of a stack share a line, as in
    `encoder.layers.0-5.self_attention.W_Q  [512, 512]  6 x  1,572,864`. The last line has the sum.

    Args:
      params: the training parameters of one model, or their `jax.ShapeDtypeStruct`s from
        `jax.eval_shape(model.init, key, batch)["params"]`.

    Raises:
      UserError: see `named_arrays`.
    """
    rows = []
    for path, array in _parameters(params):
        (name, first_layer), *later_names = _names(path, array.shape)
        shape, times = array.shape, ""
        if first_layer is not None:
            shape, times = shape[1:], f"{len(later_names) + 1} x" if later_names else ""
            last_layer = f"-{len(later_names)}" if later_names else ""
            name = name.replace(".layers.0.", f".layers.0{last_layer}.", 1)
        rows.append((name, str(list(shape)), times, math.prod(array.shape)))
    rows.append(("in all", "", "", sum(row[-1] for row in rows)))
    cells = [(*row[:-1], f"{row[-1]:,}") for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        f"{name:{widths[0]}}  {shape:{widths[1]}}  {times:>{widths[2]}}  {count:>{widths[3]}}"
        for name, shape, times, count in cells
    )
    return "\n".join(lines)


def _parameters(params: Mapping[str, PyTree]) -> Iterator[tuple[tuple[str, ...], Array]]:
    if not isinstance(params, Mapping) or "params" in params:
        raise UserError(
            "params are not the parameters of a model; pass translator.params, or the entry "
            "'params' of the result of model.init"
        )
    if "0000" in params:
        raise UserError("the parameters belong to an ensemble; pass the parameters of one model")
    yield from flatten_dict(params).items()


def _find(arrays: Arrays, name: str, shape: tuple[int, ...], layer: int | None) -> np.ndarray:
    if name not in arrays:
        raise UserError(f"there is no array for the parameter {name} of the model")
    array, shape = arrays[name], shape if layer is None else shape[1:]
    if array.shape != shape:
        raise UserError(f"the array {name} has shape {array.shape}, but the model has {shape}")
    return np.asarray(array, np.float32)


def _names(path: tuple[str, ...], shape: tuple[int, ...]) -> Iterator[tuple[str, int | None]]:
    """Yield the array names of a training parameter, and the layer of each."""
    if path[1:2] != ("layers",):
        yield ".".join(_paper(path)), None
        return
    stack, layers_key, *modules = path
    for layer in range(shape[0]):
        yield ".".join([stack, layers_key, str(layer), *_paper(tuple(modules))]), layer


def _paper(path: tuple[str, ...]) -> list[str]:
    """Convert a parameter's path to the paper's names: [..., "query", "kernel"] to [..., "W_Q"]."""
    *modules, leaf = (name.removesuffix("_residual") for name in path if name != "scores")
    if modules and modules[-1] in _ATTENTION and leaf in _LETTERS:
        return [*modules[:-1], f"{_LETTERS[leaf]}_{_ATTENTION[modules[-1]]}"]
    if leaf == "embedding":
        return modules
    return [*modules, _LAST.get(leaf, leaf)]
