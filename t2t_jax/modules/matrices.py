"""Parameters that are matrices to multiply with: each is declared as one where it is made."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax
from flax import struct
from flax.core import meta
from jaxtyping import Array, DTypeLike, Float

from t2t_jax.kernels.int8 import Int8Matrix, quantize
from t2t_jax.kernels.products import Transposed

Parameters: TypeAlias = dict[str, Any]
"""The parameters of a model: arrays by module and name."""

Quantize: TypeAlias = Literal["none", "int8"]
"""What becomes of matrices in decoding: nothing, or integers of 8 bits."""

HeldMatrix: TypeAlias = Float[Array, "m n"] | Transposed | Int8Matrix
"""A matrix as training has it, or in one of the forms that decoding holds it in."""


class MatrixBox(nn.LogicallyPartitioned):
    """What is declared of a parameter that is a matrix, in the tree that a module's `init` makes.

    Attributes:
      summed_axis: the axis that products with the matrix sum over, counted from the end: layers may
        be stacked on axes before it.
    """

    summed_axis: int = struct.field(default=-2, pytree_node=False)


def matrix(
    module: nn.Module,
    name: str,
    init: Callable[..., Any],
    shape: tuple[int, int],
    axes: tuple[str, str],
    dtype: DTypeLike,
    summed_axis: int = -2,
) -> HeldMatrix:
    """A module's matrix in the dtype of its products, as it was made or as decoding holds it.

    Args:
      module: whose parameter it is.
      name: of the parameter.
      init: what makes its first values, from a key and a shape.
      shape: of the matrix.
      axes: its logical axes; see `parallel.axes`.
      dtype: of the products.
      summed_axis: the axis that products sum over; see `MatrixBox`.
    """
    held: Any = module.get_variable("params", name)
    if isinstance(held, Transposed | Int8Matrix):
        return held.astype(dtype)

    def declared(key: Array, shape: tuple[int, int]) -> MatrixBox:
        return MatrixBox(init(key, shape), axes, summed_axis=summed_axis)

    made: Any = module.param(name, declared, shape)  # out of its box
    return made.astype(dtype)


def quantized(params: Parameters, declared: Parameters) -> Parameters:
    """The same parameters with every matrix in 8-bit integers.

    Args:
      params: arrays.
      declared: the same tree as a module's `init` makes it, with a `MatrixBox` for every matrix.
    """
    return _with_matrices(
        lambda box, x: Int8Matrix(*quantize(x, box.summed_axis)), params, declared
    )


def transposed(params: Parameters, declared: Parameters) -> Parameters:
    """The same parameters with one row for every output of a matrix.

    A single vector is multiplied with those in 0.85 of the time, on CPUs, and several as before.

    Args:
      params: of one layer.
      declared: the same of a stack; see `quantized`.
    """
    return _with_matrices(lambda _, x: Transposed(x.T), params, declared)


def _with_matrices(
    convert: Callable[[MatrixBox, Array], Any], params: Parameters, declared: Parameters
) -> Parameters:
    return jax.tree.map(
        lambda box, x: convert(box, x) if isinstance(box, MatrixBox) else x,
        declared,
        params,
        is_leaf=lambda x: isinstance(x, meta.AxisMetadata),
    )
