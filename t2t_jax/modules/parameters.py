"""Declare the parameters of modules, and convert matrices for decoding.

Within `declaring`, `init` wraps each parameter in a box with its kind and logical axes. Elsewhere,
`init` returns plain arrays.
"""

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, TypeAlias, TypeGuard

import flax.linen as nn
import jax
from flax import struct
from flax.core import meta
from jaxtyping import Array, DTypeLike

from t2t_jax.config.registry import Entry, Parameter
from t2t_jax.errors import UserError
from t2t_jax.kernels.bfloat16 import transpose
from t2t_jax.kernels.int8 import Int8Matrix, quantize
from t2t_jax.kernels.products import Matrix, Transposed
from t2t_jax.system.context import with_value

Parameters: TypeAlias = dict[str, Any]
"""The parameters of a model: arrays by module and name."""

Initializer: TypeAlias = Callable[..., Array]
"""A function that maps a random key and a shape to the initial values of a parameter."""

_declares: ContextVar[bool] = ContextVar("declares", default=False)


def declaring() -> AbstractContextManager[None]:
    """Make modules wrap new parameters in boxes within the context."""
    return with_value(_declares, True)


class MatrixBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a matrix.

    Attributes:
      summed_axis: the axis that matmuls sum over, counted from the end.
      grows: whether both sizes grow with the width of the network, as in layers but not embeddings.
        Learning rates depend on `grows` (`training.recipe`).
    """

    summed_axis: int = struct.field(default=-2, pytree_node=False)
    grows: bool = struct.field(default=True, pytree_node=False)


class SummandBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a bias, added in the dtype of the matmul."""


def parameter(
    module: nn.Module,
    name: str,
    init: Initializer,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    box: Callable[..., nn.LogicallyPartitioned] = nn.LogicallyPartitioned,
) -> Array:
    """Create or read a parameter of a module, without its box.

    Args:
      module: the module, in its `setup` or compact call.
      axes: logical axes; see `parallel.axes`.
      box: the class of the box, or a function that makes a box from a value and axes.
    """

    def declared(key: Array, shape: tuple[int, ...]) -> Any:
        value = init(key, shape)
        return box(value, axes) if _declares.get() else value

    return module.param(name, declared, shape)


def matrix(
    module: nn.Module,
    name: str,
    shape: tuple[int, int],
    axes: tuple[str | None, str],
    dtype: DTypeLike | None,
    *,
    init: Initializer | None = None,
    gain: float = 1.0,
    summed_axis: int = -2,
    grows: bool = True,
) -> Matrix:
    """Create or read a matrix of a module, in the dtype of its matmuls.

    Args:
      dtype: dtype of the matmuls; None keeps the stored dtype.
      init: the initializer; None means Glorot uniform (Glorot and Bengio 2010).
      gain: factor on the initial values of Glorot uniform, for DeepNorm.
      summed_axis: see `MatrixBox`.
      grows: see `MatrixBox`.
    """
    value: Any = module.get_variable("params", name)
    # Decoding stores other forms of a matrix. `Module.param` would compare their shapes with the
    # initializer's, so these forms bypass it.
    if not isinstance(value, Transposed | Int8Matrix):
        if init is None:
            # The gain is squared because the initializer takes the variance, not the deviation.
            init = nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")
        box = partial(MatrixBox, summed_axis=summed_axis, grows=grows)
        value = parameter(module, name, init, shape, axes, box)
    return value if dtype is None else value.astype(dtype)


def bias(module: nn.Module, name: str, axis: str, width: int, dtype: DTypeLike) -> Array:
    """Create or read a bias of a module with this logical axis, in the dtype of its matmuls."""
    init = nn.initializers.zeros
    return parameter(module, name, init, (width,), (axis,), SummandBox).astype(dtype)


def function_parameters(
    module: nn.Module, entry: Entry, width: Hashable, num_heads: int | None = None
) -> dict[str, Array]:
    """Create the learned parameters of a function that the config names.

    Args:
      width: width of the function's input vectors, or the `AttentionConfig` of `combine`.
      num_heads: number of heads with separate parameters; None means no heads.
    """
    parameters = {}
    for name, (init, shape) in _declarations(entry, width).items():
        # The parameters of heads follow the split of the heads; no other axis is split then.
        axes = tuple("vector" if size == width and num_heads is None else None for size in shape)
        if num_heads is not None:
            shape, axes = (num_heads, *shape), ("heads", *axes)
        parameters[name] = parameter(module, name, init, shape, axes)
    return parameters


@cache
def _declarations(entry: Entry, width: Hashable) -> dict[str, tuple[Initializer, tuple[int, ...]]]:
    return {name: (initializer(x), x.shape) for name, x in entry.learned(width).items()}


def initializer(declared: Parameter) -> Initializer:
    """Return a normal or constant initializer from the declared mean and deviation."""
    if not declared.deviation:
        return nn.initializers.constant(declared.mean)
    normal = nn.initializers.normal(declared.deviation)
    if not declared.mean:
        return normal
    return lambda key, shape: declared.mean + normal(key, shape)


def is_stacked(declared: object) -> TypeGuard[nn.LogicallyPartitioned]:
    """Return whether the first axis of a parameter in its box is the layer."""
    return isinstance(declared, nn.LogicallyPartitioned) and declared.names[:1] == ("layers",)


def is_matrix(declared: object) -> TypeGuard[MatrixBox]:
    """Return whether a parameter in its box is a matrix, or a stack of matrices."""
    return isinstance(declared, MatrixBox)


def is_matrix_of_layers(declared: object) -> bool:
    """Return whether a parameter in its box is a stack of matrices, one per layer."""
    return is_matrix(declared) and is_stacked(declared)


def map_boxes(function: Callable[..., Any], boxes: Parameters, *trees: Parameters) -> Parameters:
    """Map a function such as `is_matrix` over a tree of boxes.

    Args:
      function: takes a box, and a leaf of each of `trees`.
      boxes: the parameters in boxes, from `init_parameters`.
    """
    # A box is a pytree node itself, so `is_leaf` keeps JAX from descending into it.
    return jax.tree.map(function, boxes, *trees, is_leaf=lambda x: isinstance(x, meta.AxisMetadata))


def quantize_matrices(params: Parameters, boxes: Parameters) -> Parameters:
    """Return the parameters with every matrix quantized to an `Int8Matrix`.

    Args:
      boxes: parameters from `init_parameters`, in boxes that say which ones are matrices.
    """
    return _convert_boxed(
        MatrixBox, lambda box, x: Int8Matrix(*quantize(x, box.summed_axis)), params, boxes
    )


def convert_matrices(
    params: Parameters, boxes: Parameters, dtype: DTypeLike, *, with_biases: bool
) -> Parameters:
    """Convert every matrix to the dtype of its matmuls, once for all steps.

    Args:
      boxes: the same parameters in boxes, from `init_parameters`.
      with_biases: whether to convert biases of matmuls too. XLA for GPUs fuses a bias into the
        matmul only if the bias needs no conversion.
    """
    kinds = (MatrixBox, SummandBox) if with_biases else MatrixBox
    return _convert_boxed(kinds, lambda _, x: x.astype(dtype), params, boxes)


def transpose_matrices(params: Parameters, boxes: Parameters) -> Parameters:
    """Transpose every matrix in memory, so that the weights of each output are contiguous.

    On CPUs, this reduces the time of a matmul with one vector to 85%.

    Args:
      boxes: the parameters of a stack of such layers in boxes, from `init_parameters`.
    """

    return _convert_boxed(MatrixBox, lambda _, x: Transposed(transpose(x)), params, boxes)


def _convert_boxed(
    kinds: Any, convert: Callable[..., Matrix], params: Parameters, boxes: Parameters
) -> Parameters:
    return map_boxes(lambda box, x: convert(box, x) if isinstance(box, kinds) else x, boxes, params)


def arrays_by_path(params: Parameters) -> dict[str, Any]:
    """Return the arrays of parameters by path, such as `encoder/norm/scale`."""
    path_string = partial(jax.tree_util.keystr, simple=True, separator="/")
    return {path_string(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def check_alike(params: Parameters, like: Parameters, owner: str, example: str) -> None:
    """Refuse parameters whose paths, shapes or dtypes differ from those of a model.

    Args:
      like: arrays, or `jax.ShapeDtypeStruct`s.
      owner: a phrase for the model, for the error.
      example: the code of parameters of the right form, for the error.
    """
    arrays, expected = arrays_by_path(params), arrays_by_path(like)
    for path in expected | arrays:
        types = [_array_type(by_path.get(path)) for by_path in (arrays, expected)]
        if types[0] != types[1]:
            raise UserError(
                f"params has {types[0]} at {path}, and {owner} {types[1]}; give arrays in "
                f"dictionaries like those of {example}"
            )


def _array_type(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else "no array"
