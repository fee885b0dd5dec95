"""Parameters that are matrices of matmuls: their declaration in modules, and their other forms."""

from collections.abc import Callable
from typing import Any, TypeAlias

import flax.linen as nn
import jax
from flax import struct
from flax.core import meta
from jaxtyping import Array, DTypeLike, Float

from t2t_jax.kernels.bfloat16 import transpose
from t2t_jax.kernels.int8 import Int8Matrix, quantize
from t2t_jax.kernels.products import Transposed
from t2t_jax.parallel.axes import boxed

Parameters: TypeAlias = dict[str, Any]
"""The parameters of a model: arrays by module and name."""

HeldMatrix: TypeAlias = Float[Array, "m n"] | Transposed | Int8Matrix
"""A matrix as training has it, or in one of the forms that decoding holds it in."""


def glorot_uniform(gain: float = 1.0) -> Callable[..., Any]:
    """Return the initialiser of Glorot and Bengio 2010: uniform, by both sizes of a matrix.

    Args:
      gain: factor on the values; DeepNorm makes some matrices smaller by their depth.
    """
    return nn.initializers.variance_scaling(gain**2, "fan_avg", "uniform")


class MatrixBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a matrix, in what `init_parameters` returns.

    Attributes:
      summed_axis: the axis that matmuls sum over, counted from the end: layers may be stacked on
        axes before it.
      grows: whether both sizes grow with the width of the network, as for matrices of layers, but
        not of embeddings. Learning rates depend on it (`training.recipe`).
    """

    summed_axis: int = struct.field(default=-2, pytree_node=False)
    grows: bool = struct.field(default=True, pytree_node=False)


def matrix(
    module: nn.Module,
    name: str,
    init: Callable[..., Any],
    shape: tuple[int, int],
    axes: tuple[str | None, str],
    dtype: DTypeLike | None,
    summed_axis: int = -2,
    grows: bool = True,
) -> HeldMatrix:
    """Return a matrix of a module in the dtype of its matmuls, in its stored form.

    Args:
      init: the initialiser, a function of a key and a shape.
      shape: shape `[m, n]` of the matrix.
      axes: logical axes of the matrix; see `parallel.axes`.
      dtype: dtype of the matmuls; None keeps the stored dtype.
      summed_axis: the axis that matmuls sum over; see `MatrixBox`.
      grows: whether both sizes grow with the width of the network; see `MatrixBox`.
    """
    held: Any = module.get_variable("params", name)
    if isinstance(held, Transposed | Int8Matrix):
        return held if dtype is None else held.astype(dtype)

    def declared(key: Array, shape: tuple[int, int]) -> Any:
        return boxed(MatrixBox, init(key, shape), axes, summed_axis=summed_axis, grows=grows)

    made: Any = module.param(name, declared, shape)  # out of its box
    return made if dtype is None else made.astype(dtype)


class SummandBox(nn.LogicallyPartitioned):
    """A box that declares a parameter to be a bias, added to matmuls in their dtype."""


def summand(module: nn.Module, name: str, axis: str, width: int, dtype: DTypeLike) -> Array:
    """Return a bias of a module, in the dtype of its matmuls.

    Args:
      axis: logical axis of the bias; see `parallel.axes`.
    """

    def declared(key: Array, shape: tuple[int]) -> Any:
        return boxed(SummandBox, nn.initializers.zeros(key, shape), (axis,))

    made: Any = module.param(name, declared, (width,))  # out of its box
    return made.astype(dtype)


def is_stacked(declared: Any) -> bool:
    """Return whether a parameter belongs to all layers of a stack: its first axis is the layer.

    Args:
      declared: the parameter in its box, from `init_parameters`.
    """
    return isinstance(declared, nn.LogicallyPartitioned) and declared.names[:1] == ("layers",)


def is_matrix(declared: Any) -> bool:
    """Return whether a parameter is a matrix, or a stack of matrices.

    Args:
      declared: the parameter; see `is_stacked`.
    """
    return isinstance(declared, MatrixBox)


def is_matrix_of_layers(declared: Any) -> bool:
    """Return whether a parameter is a stack of layers' matrices, not an embedding or projection."""
    return is_matrix(declared) and is_stacked(declared)


def of_each(function: Callable[[Any], Any], declared: Parameters) -> Parameters:
    """Map a function of a declared parameter, such as `is_matrix`, over a tree.

    Args:
      declared: the parameters, from `init_parameters`.
    """
    return jax.tree.map(function, declared, is_leaf=lambda x: isinstance(x, meta.AxisMetadata))


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

    def turn(_: Any, x: Float[Array, "*stack m n"]) -> Transposed:
        each = transpose
        for _ in x.shape[2:]:
            each = jax.vmap(each)
        return Transposed(each(x))

    return _with_boxes(MatrixBox, turn, params, declared)


def _with_boxes(
    kinds: Any, convert: Callable[[Any, Array], Any], params: Parameters, declared: Parameters
) -> Parameters:
    return jax.tree.map(
        lambda box, x: convert(box, x) if isinstance(box, kinds) else x,
        declared,
        params,
        is_leaf=lambda x: isinstance(x, meta.AxisMetadata),
    )
