"""How modules declare their parameters, and the forms that matrices have in decoding.

Within `declaring`, a new parameter comes in a box that declares what it is. Elsewhere, a module's
`init` returns plain arrays.
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
"""A function of a key and a shape that makes the initial values of a parameter."""

_declares: ContextVar[bool] = ContextVar("declares", default=False)


def declaring() -> AbstractContextManager[None]:
    """Put the parameters made within the context into boxes."""
    return with_value(_declares, True)


class MatrixBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a matrix.

    Attributes:
      summed_axis: the axis that matmuls sum over, counted from the end: layers may be stacked on
        axes before it.
      grows: whether both sizes grow with the width of the network, as for matrices of layers, but
        not of embeddings. Learning rates depend on it (`training.recipe`).
    """

    summed_axis: int = struct.field(default=-2, pytree_node=False)
    grows: bool = struct.field(default=True, pytree_node=False)


class SummandBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a bias, added to matmuls in their dtype."""


def parameter(
    module: nn.Module,
    name: str,
    init: Initializer,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    box: Callable[..., nn.LogicallyPartitioned] = nn.LogicallyPartitioned,
) -> Array:
    """Return a parameter of a module, out of its box.

    Args:
      module: the module, in its `setup` or its compact call.
      name: the name of the parameter.
      init: its initialiser.
      shape: its shape.
      axes: its logical axes; see `parallel.axes`.
      box: the class of the box, or a function of the value and the axes that makes one.
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
    """Return a matrix of a module in the dtype of its matmuls, in its stored form.

    Args:
      module: the module, in its `setup` or its compact call.
      name: the name of the parameter.
      shape: shape `[m, n]` of the matrix.
      axes: logical axes of the matrix; see `parallel.axes`.
      dtype: dtype of the matmuls; None keeps the stored dtype.
      init: the initialiser; None is that of Glorot and Bengio 2010, uniform, by both sizes.
      gain: factor on the initial values of that one; DeepNorm makes some matrices smaller.
      summed_axis: the axis that matmuls sum over; see `MatrixBox`.
      grows: whether both sizes grow with the width of the network; see `MatrixBox`.
    """
    held: Any = module.get_variable("params", name)
    if not isinstance(held, Transposed | Int8Matrix):
        if init is None:
            init = nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")
        box = partial(MatrixBox, summed_axis=summed_axis, grows=grows)
        held = parameter(module, name, init, shape, axes, box)
    return held if dtype is None else held.astype(dtype)


def bias(module: nn.Module, name: str, axis: str, width: int, dtype: DTypeLike) -> Array:
    """Return a bias of a module, in the dtype of its matmuls.

    Args:
      module: the module, in its `setup` or its compact call.
      name: the name of the parameter.
      axis: logical axis of the bias; see `parallel.axes`.
      width: its length.
      dtype: dtype of the matmuls.
    """
    init = nn.initializers.zeros
    return parameter(module, name, init, (width,), (axis,), SummandBox).astype(dtype)


def learned(
    module: nn.Module, entry: Entry, width: int, heads: int | None = None
) -> dict[str, Array]:
    """Make the learned parameters of a named function, as parameters of a module.

    Args:
      module: the module, in its `setup` or its compact call.
      entry: the function, in the tables of `config.tables`.
      width: width of the vectors that the function takes.
      heads: the number of heads, each of which learns these parameters; None is no heads.
    """
    parameters = {}
    for name, (init, shape) in _declarations(entry, width).items():
        axes = tuple("vector" if size == width and heads is None else None for size in shape)
        if heads is not None:
            shape, axes = (heads, *shape), ("heads", *axes)
        parameters[name] = parameter(module, name, init, shape, axes)
    return parameters


@cache
def _declarations(entry: Entry, width: int) -> dict[str, tuple[Initializer, tuple[int, ...]]]:
    return {name: (initializer(x), x.shape) for name, x in entry.learned(width).items()}


def initializer(declared: Parameter) -> Initializer:
    """Return the initialiser of a learned parameter of a named function.

    Args:
      declared: the shape of the parameter, and mean and deviation of its initial values.
    """
    if not declared.deviation:
        return nn.initializers.constant(declared.mean)
    normal = nn.initializers.normal(declared.deviation)
    if not declared.mean:
        return normal
    return lambda key, shape: declared.mean + normal(key, shape)


def is_stacked(declared: object) -> TypeGuard[nn.LogicallyPartitioned]:
    """Return whether a parameter belongs to all layers of a stack: its first axis is the layer.

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
    """Map a function of a declared parameter, such as `is_matrix`, over a tree.

    Args:
      function: it also takes a leaf of each of `others`.
      declared: the parameters, from `init_parameters`.
    """
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
      summands: whether to convert biases of matmuls too. XLA for GPUs adds a bias within the
        matmul, unless it has to convert the bias.
    """
    kinds = (MatrixBox, SummandBox) if summands else MatrixBox
    return _with_boxes(kinds, lambda _, x: x.astype(dtype), params, declared)


def transposed(params: Parameters, declared: Parameters) -> Parameters:
    """Transpose every matrix in memory: one row for every output.

    On CPUs, a product of such a matrix with a single vector takes 0.85 of the time, and one with
    several vectors as long as before.

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
