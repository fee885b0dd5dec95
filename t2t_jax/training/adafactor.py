"""Adafactor (Shazeer and Stern 2018): second moments kept as one row and one column per matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int32

from t2t_jax.config import TrainingConfig
from t2t_jax.modules.matrices import Parameters, is_matrix, is_stacked, of_each
from t2t_jax.training.optimizer import Optimizer, by_kind

_EPSILON = 1e-30  # epsilon_1 of the paper, added to squares
_EXPONENT = 0.8  # of the decay 1 - t^-0.8 (section 7.2)


class FactoredState(NamedTuple):
    """The factored second moments of matrices.

    Attributes:
      updates: number of steps that the moments cover.
      rows: for each row of every matrix, a moving average of the mean square of its gradients.
      columns: the same for each column.
    """

    updates: Int32[Array, ""]
    rows: Parameters
    columns: Parameters


class SquaresState(NamedTuple):
    """The second moments of parameters that are not matrices.

    Attributes:
      updates: number of steps that the moments cover.
      squares: moving averages of the squares of the gradients.
    """

    updates: Int32[Array, ""]
    squares: Parameters


def adafactor(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make Adafactor without momentum, and with the learning rate of the schedule.

    Optax's Adafactor factors the two largest axes of an array. In a stack of more layers than a
    matrix has columns, these are not the axes of a matrix.
    """
    are_stacked = of_each(is_stacked, declared)
    scaled = by_kind(of_each(is_matrix, declared), _factored(), _unfactored())

    def direction(gradients: Parameters, state: Any, params: Parameters) -> Parameters:
        directions = scaled.direction(gradients, state, params)
        return jax.tree.map(_clipped, directions, are_stacked)

    return scaled._replace(direction=direction)


def _factored() -> Optimizer:
    def init(params: Parameters) -> FactoredState:
        rows, columns = (_zeros_without(axis, params) for axis in (-1, -2))
        return FactoredState(jnp.zeros((), jnp.int32), rows, columns)

    def direction(gradients: Parameters, state: FactoredState, params: Parameters) -> Parameters:
        return jax.tree.map(_over_root, gradients, state.rows, state.columns)

    means = (partial(jnp.mean, axis=axis) for axis in (-1, -2))
    return Optimizer(init, partial(_accumulated, tuple(means)), direction)


def _unfactored() -> Optimizer:
    def init(params: Parameters) -> SquaresState:
        return SquaresState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def direction(gradients: Parameters, state: SquaresState, params: Parameters) -> Parameters:
        return jax.tree.map(lambda g, v: g * v**-0.5, gradients, state.squares)

    return Optimizer(init, partial(_accumulated, (lambda square: square,)), direction)


def _accumulated(
    reductions: tuple[Callable[[Array], Array], ...], gradients: Parameters, state: Any
) -> Any:
    """Return a state with moving averages of the squares of the gradients, each reduced."""
    updates = optax.safe_increment(state.updates)
    decay = 1 - updates.astype(jnp.float32) ** -_EXPONENT

    def averaged(kept: Parameters, reduce: Callable[[Array], Array]) -> Parameters:
        return jax.tree.map(
            lambda v, g: decay * v + (1 - decay) * reduce(g**2 + _EPSILON), kept, gradients
        )

    return type(state)(updates, *map(averaged, state[1:], reductions))


def _over_root(
    gradient: Float[Array, "*layers m n"],
    rows: Float[Array, "*layers m"],
    columns: Float[Array, "*layers n"],
) -> Float[Array, "*layers m n"]:
    """Divide the gradient by the root of its second moment, rows x columns / mean(rows)."""
    relative = rows / rows.mean(-1, keepdims=True)
    # One after the other: the product of two small numbers would be 0.
    return gradient * relative[..., :, None] ** -0.5 * columns[..., None, :] ** -0.5


def _clipped(direction: Float[Array, "..."], is_stacked: bool) -> Float[Array, "..."]:
    """Scale the direction of each layer so that its root mean square is at most 1 (section 6)."""
    axes = tuple(range(int(is_stacked), direction.ndim))
    square = (direction**2).mean(axes, keepdims=True)
    return direction / jnp.maximum(1, square**0.5)


def _zeros_without(axis: int, params: Parameters) -> Parameters:
    """Return zeros of each matrix's shape without one axis, in boxes that name the other axes."""

    def make(x: Any) -> Any:
        if isinstance(x, nn.LogicallyPartitioned):
            return nn.LogicallyPartitioned(make(x.value), _without(axis, x.names))
        return jnp.zeros(_without(axis, x.shape), x.dtype)

    return jax.tree.map(make, params, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))


def _without(axis: int, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    place = axis % len(sizes)
    return (*sizes[:place], *sizes[place + 1 :])
