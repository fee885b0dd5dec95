"""How modules declare their parameters, and the forms that matrices have in decoding.

Within `declaring`, `init` wraps each parameter in a box that states its kind and its logical axes.
Elsewhere, `init` returns plain arrays.
"""

from collections.abc import Callable
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
    """Wrap the parameters that modules create within the context in boxes."""
    return with_value(_declares, True)


class MatrixBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a matrix.

    Attributes:
      summed_axis: the axis that matmuls sum over, counted from the end, because a stack of layers
        adds a leading axis.
      grows: whether both sizes grow with the width of the network: true of layers, false of
        embeddings. Learning rates depend on `grows` (`training.recipe`).
    """

    summed_axis: int = struct.field(default=-2, pytree_node=False)
    grows: bool = struct.field(default=True, pytree_node=False)


class SummandBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a bias, which is added in the dtype of the matmul."""


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
      module: the module, in its `setup` or its compact call.
      name: the name of the parameter.
      init: its initializer.
      shape: its shape.
      axes: its logical axes; see `parallel.axes`.
      box: a function that makes the box from a value and axes, such as its class.
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
      module: the module, in its `setup` or its compact call.
      name: the name of the parameter.
      shape: shape `[m, n]` of the matrix.
      axes: logical axes of the matrix; see `parallel.axes`.
      dtype: dtype of the matmuls; None keeps the stored dtype.
      init: the initializer; None means Glorot uniform (Glorot and Bengio 2010).
      gain: factor on the initial values of Glorot uniform; DeepNorm makes some matrices smaller.
      summed_axis: the axis that matmuls sum over; see `MatrixBox`.
      grows: whether both sizes grow with the width of the network; see `MatrixBox`.
    """
    stored: Any = module.get_variable("params", name)
    # Decoding stores other forms of a matrix. `Module.param` would compare their shapes with the
    # initializer's, so these forms bypass it.
    if not isinstance(stored, Transposed | Int8Matrix):
        if init is None:
            # The gain is squared because the initializer takes the variance, not the deviation.
            init = nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")
        box = partial(MatrixBox, summed_axis=summed_axis, grows=grows)
        stored = parameter(module, name, init, shape, axes, box)
    return stored if dtype is None else stored.astype(dtype)


def bias(module: nn.Module, name: str, axis: str, width: int, dtype: DTypeLike) -> Array:
    """Create or read a bias of a module, in the dtype of its matmuls.

    Args:
      module: the module, in its `setup` or its compact call.
      name: the name of the parameter.
      axis: logical axis of the bias; see `parallel.axes`.
      width: its length.
      dtype: dtype of the matmuls.
    """
    init = nn.initializers.zeros
    return parameter(module, name, init, (width,), (axis,), SummandBox).astype(dtype)


def function_parameters(
    module: nn.Module, entry: Entry, width: int, heads: int | None = None
) -> dict[str, Array]:
    """Create the learned parameters of a function that the config names.

    Args:
      module: the module, in its `setup` or its compact call.
      entry: the table row of the function; see `config.tables`.
      width: width of the vectors that the function takes.
      heads: number of heads with separate parameters; None means no heads.
    """
    parameters = {}
    for name, (init, shape) in _declarations(entry, width).items():
        # The parameters of heads follow the split of the heads; no other axis is split then.
        axes = tuple("vector" if size == width and heads is None else None for size in shape)
        if heads is not None:
            shape, axes = (heads, *shape), ("heads", *axes)
        parameters[name] = parameter(module, name, init, shape, axes)
    return parameters


@cache
def _declarations(entry: Entry, width: int) -> dict[str, tuple[Initializer, tuple[int, ...]]]:
    return {name: (initializer(x), x.shape) for name, x in entry.learned(width).items()}


def initializer(declared: Parameter) -> Initializer:
    """Return the initializer of a learned parameter of a function that the config names.

    Args:
      declared: the shape of the parameter, and the mean and deviation of its initial values.
    """
    if not declared.deviation:
        return nn.initializers.constant(declared.mean)
    normal = nn.initializers.normal(declared.deviation)
    if not declared.mean:
        return normal
    return lambda key, shape: declared.mean + normal(key, shape)


def is_stacked(declared: object) -> TypeGuard[nn.LogicallyPartitioned]:
    """Return whether the first axis of a parameter is the layer of a stack.

    Args:
      declared: the parameter in its box, from `init_parameters`.
    """
    return isinstance(declared, nn.LogicallyPartitioned) and declared.names[:1] == ("layers",)


def is_matrix(declared: object) -> TypeGuard[MatrixBox]:
    """Return whether a parameter is a matrix, or a stack of matrices.

    Args:
      declared: the parameter; see `is_stacked`.
    """
    return isinstance(declared, MatrixBox)


def is_matrix_of_layers(declared: object) -> bool:
    """Return whether a parameter is a stack of layers' matrices, not an embedding or projection."""
    return is_matrix(declared) and is_stacked(declared)


def of_each(function: Callable[..., Any], declared: Parameters, *others: Parameters) -> Parameters:
    """Map a function such as `is_matrix` over a tree of parameters in boxes.

    Args:
      function: takes a box, and a leaf of each of `others`.
      declared: the boxes, from `init_parameters`.
    """
    # A box is a pytree node itself, so `is_leaf` keeps JAX from descending into it.
    return jax.tree.map(
        function, declared, *others, is_leaf=lambda x: isinstance(x, meta.AxisMetadata)
    )


def quantized(params: Parameters, declared: Parameters) -> Parameters:
    """Quantize every matrix to 8-bit integers.

    Args:
      declared: the same tree from `init_parameters`, with a `MatrixBox` for every matrix.
    """
    return _with_boxes(
        MatrixBox, lambda box, x: Int8Matrix(*quantize(x, box.summed_axis)), params, declared
    )


def rounded(
    params: Parameters, declared: Parameters, dtype: DTypeLike, *, summands: bool
) -> Parameters:
    """Convert every matrix to the dtype of its matmuls, once for all steps.

    Args:
      params: the training parameters, or a part of them.
      declared: the same tree from `init_parameters`; see `quantized`.
      summands: whether to convert biases of matmuls too. XLA for GPUs fuses a bias into the
        matmul only if the bias needs no conversion.
    """
    kinds = (MatrixBox, SummandBox) if summands else MatrixBox
    return _with_boxes(kinds, lambda _, x: x.astype(dtype), params, declared)


def transposed(params: Parameters, declared: Parameters) -> Parameters:
    """Transpose every matrix in memory, so that each output has one contiguous matrix row.

    On CPUs, a matmul with one vector then takes 0.85 of the time, and one with several as long.

    Args:
      declared: the parameters of a stack of such layers from `init_parameters`; see `quantized`.
    """

    return _with_boxes(MatrixBox, lambda _, x: Transposed(transpose(x)), params, declared)


def _with_boxes(
    kinds: Any, convert: Callable[..., Matrix], params: Parameters, declared: Parameters
) -> Parameters:
    return of_each(
        lambda box, x: convert(box, x) if isinstance(box, kinds) else x, declared, params
    )
