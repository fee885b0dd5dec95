"""The interface of an optimizer; Adam of section 5.3, Lion, Muon, Adafactor and combinations."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax.core import meta
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import KeyPath
from jaxtyping import Array, Float, Int, Int32, PyTree
from optax import OptState

from t2t_jax.config import TrainingConfig
from t2t_jax.modules.parameters import (
    Parameters,
    is_matrix,
    is_matrix_of_layers,
    is_stacked,
    of_each,
)

_T = TypeVar("_T")

Keep: TypeAlias = Callable[[OptState, OptState], OptState]
"""A function of the new and the old state of an optimizer that gives the state to go on with."""
Updated: TypeAlias = tuple[Parameters, OptState]
"""The directions of parameters, and the state of an optimizer after a step."""


class Optimizer(NamedTuple):
    """An optimizer without its learning rate.

    Attributes:
      init: computes the state before the first step from the parameters. Boxed parameters give a
        boxed state, which declares its layout on a mesh.
      update: computes the step's decrease of the parameters, divided by the learning rate, and the
        state after the step, from the gradients, the state, the parameters and a `Keep`. If the
        decrease is computed from what `Keep` returns and not from the state before, the new state
        can overwrite the old one in memory (`training.step`).
    """

    init: Callable[[Parameters], OptState]
    update: Callable[[Parameters, OptState, Parameters, Keep], Updated]


def from_optax(transformation: optax.GradientTransformation) -> Optimizer:
    """Make an optimizer of any gradient transformation of optax.

    Args:
      transformation: one without a learning rate, such as `optax.scale_by_lion()`. One that is an
        optimizer by itself subtracts: give `optax.chain(optax.sgd(1.0), optax.scale(-1))`.
    """

    def init(params: Parameters) -> OptState:
        leaves, _ = jax.tree.flatten_with_path(params, lambda x: isinstance(x, meta.AxisMetadata))
        boxes = {path: x for path, x in leaves if isinstance(x, meta.AxisMetadata)}

        def box_like_parameter(path: KeyPath, x: Array) -> Array | meta.AxisMetadata[Array]:
            # The path of a moment ends with the path of its parameter. Arrays of other shapes, such
            # as factors of a moment, stay whole on every device.
            box = next((boxes[tail] for n in range(len(path)) if (tail := path[n:]) in boxes), None)
            return box.replace_boxed(x) if box and nn.unbox(box).shape == x.shape else x

        return jax.tree.map_with_path(box_like_parameter, transformation.init(nn.unbox(params)))

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        directions, new = transformation.update(gradients, state, params)
        return directions, keep(new, state)

    return Optimizer(init, update)


def bias_corrected(moments: PyTree, decay: float, updates: Int[Array, ""]) -> PyTree:
    """Divide moments by their weights, 1 - decay^updates."""
    # Moments start at 0, so their weights do not add up to 1. A power that is rounded before it is
    # subtracted would lose most of its digits. At a decay of 0 the sum is 1, as it is in float32 at
    # any decay that small.
    weights = -jnp.expm1(updates.astype(jnp.float32) * math.log(max(decay, 1e-30)))
    return jax.tree.map(lambda x: x / weights, moments)


def adam(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make Adam (Kingma and Ba 2015): m_hat / (sqrt(v_hat) + epsilon) (section 5.3).

    Args:
      config: gives the decay `adam_beta1` of the mean of the gradients, the decay `adam_beta2` of
        the mean of their squares, and epsilon.
    """
    beta1, beta2, epsilon = config.adam_beta1, config.adam_beta2, config.adam_epsilon
    moments = optax.scale_by_adam(beta1, beta2, epsilon)

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        state = keep(moments.update(gradients, state)[1], state)
        mean = bias_corrected(state.mu, beta1, state.count)
        square = bias_corrected(state.nu, beta2, state.count)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, square), state

    return Optimizer(moments.init, update)


def lion(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make Lion (Chen et al. 2023): the sign of beta1 m + (1 - beta1) g, for the momentum m.

    Args:
      config: gives the weight `adam_beta1` of the momentum in the direction, and the decay
        `adam_beta2` of the momentum.
    """
    return from_optax(optax.scale_by_lion(config.adam_beta1, config.adam_beta2))


def with_weight_decay(optimizer: Optimizer, weight_decay: float, decayed: Parameters) -> Optimizer:
    """Add weight decay for some parameters (Loshchilov and Hutter 2019).

    Args:
      weight_decay: the share of a parameter to subtract, times the learning rate.
    """

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        directions, state = optimizer.update(gradients, state, params, keep)
        decay = optax.add_decayed_weights(weight_decay, decayed)
        return decay.update(directions, decay.init(params), params)[0], state

    return optimizer._replace(update=update)


def rescaled(
    optimizer: Optimizer, of_gradients: Parameters, of_directions: Parameters
) -> Optimizer:
    """Multiply the gradients and the directions of an optimiser by one factor per parameter.

    Args:
      of_gradients: the factors on gradients, before anything is computed of them.
      of_directions: the factors on directions, and so on the learning rate.
    """

    def times(tree: Parameters, factors: Parameters) -> Parameters:
        return jax.tree.map(lambda x, factor: x if factor == 1 else x * factor, tree, factors)

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        enlarged = times(gradients, of_gradients)
        directions, state = optimizer.update(enlarged, state, params, keep)
        return times(directions, of_directions), state

    return optimizer._replace(update=update)


def parted(tree: Parameters, condition: Parameters) -> tuple[Parameters, Parameters]:
    """Split the parameters into those for which a condition holds, and the others.

    Args:
      tree: the parameters, or any values by parameter; some may be missing.
    """
    leaves, holds = flatten_dict(tree), flatten_dict(condition)
    some = {path: x for path, x in leaves.items() if holds[path]}
    others = {path: x for path, x in leaves.items() if not holds[path]}
    return unflatten_dict(some), unflatten_dict(others)


def joined_parameters(some: Parameters, others: Parameters) -> Parameters:
    """Join the two parts that `parted` returns into one tree."""
    return unflatten_dict(flatten_dict(some) | flatten_dict(others))


class ByKind(NamedTuple):
    """The states of two optimisers, each for its own parameters."""

    matrices: PyTree
    others: PyTree


def by_kind(are_matrices: Parameters, of_matrices: Optimizer, of_others: Optimizer) -> Optimizer:
    """Combine an optimiser for matrices with one for all other parameters."""

    def split(tree: Parameters) -> ByKind:
        return ByKind(*parted(tree, are_matrices))

    both = of_matrices, of_others

    def init(params: Parameters) -> ByKind:
        return ByKind(*(one.init(x) for one, x in zip(both, split(params), strict=True)))

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        arguments = zip(split(gradients), state, split(params), strict=True)
        updated = [one.update(*each, keep) for one, each in zip(both, arguments, strict=True)]
        directions, states = zip(*updated, strict=True)
        return joined_parameters(*directions), ByKind(*states)

    return Optimizer(init, update)


_MOMENTUM = 0.95
# The root mean square of an update of Adam's, so that both go with one learning rate (Liu et al.
# 2025, "Muon is Scalable for LLM Training", equation 4).
_ROOT_MEAN_SQUARE = 0.2


class MomentumState(NamedTuple):
    """The momentum of matrices.

    Attributes:
      updates: number of steps that the momentum covers.
      mean: a moving average of the gradients.
    """

    updates: Int32[Array, ""]
    mean: Parameters


def muon(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make an optimiser that uses Muon for the matrices of layers, and Adam for all others.

    Muon (Jordan et al. 2024) is momentum whose matrices are orthogonalized one by one.

    The direction of a matrix is 0.2 sqrt(max(m, n)) O, where O is Nesterov's momentum with all
    singular values brought near 1 (from 0.7 to 1.2) by five Newton-Schulz iterations.

    Optax's Muon keeps the momentum in another tree, from which stored runs could not resume.
    """
    of_layers = of_each(is_matrix_of_layers, declared)
    return by_kind(of_layers, _orthogonal_momentum(), adam(config, declared))


def _orthogonal_momentum() -> Optimizer:
    def init(params: Parameters) -> MomentumState:
        return MomentumState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        mean = optax.tree.update_moment(gradients, state.mean, _MOMENTUM, 1)
        state = keep(MomentumState(optax.safe_increment(state.updates), mean), state)
        ahead = jax.tree.map(
            lambda m, g: _MOMENTUM * m + (1 - _MOMENTUM) * g,
            bias_corrected(state.mean, _MOMENTUM, state.updates + 1),
            bias_corrected(gradients, _MOMENTUM, state.updates),
        )
        directions = jax.tree.map(
            lambda x: _ROOT_MEAN_SQUARE * max(x.shape[-2:]) ** 0.5 * orthogonalized(x), ahead
        )
        return directions, state

    return Optimizer(init, update)


def orthogonalized(x: Float[Array, "*layers m n"]) -> Float[Array, "*layers m n"]:
    """Return matrices with the singular vectors of `x`, and singular values near 1.

    Args:
      x: a matrix, or a stack of independent matrices.
    """
    # Optax's Muon without its momentum does nothing else.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
    alone = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=axes)
    return alone.update(x, alone.init(x))[0]


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

    Adafactor (Shazeer and Stern 2018) keeps second moments as one row and one column per matrix.

    Optax's Adafactor factors the two largest axes of an array. In a stack of more layers than a
    matrix has columns, these are not the axes of a matrix. Its state is another tree, from which
    stored runs could not resume.
    """
    are_stacked = of_each(is_stacked, declared)
    factored = _by_mean_squares(FactoredState, [(-1,), (-2,)], _over_root)
    unfactored = _by_mean_squares(SquaresState, [()], lambda g, v: g * v**-0.5)
    scaled = by_kind(of_each(is_matrix, declared), factored, unfactored)

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        directions, state = scaled.update(gradients, state, params, keep)
        return jax.tree.map(_clipped, directions, are_stacked), state

    return scaled._replace(update=update)


def _by_mean_squares(
    kind: Callable[..., OptState], axes: Sequence[tuple[int, ...]], divided: Callable[..., Array]
) -> Optimizer:
    """Divide gradients by the roots of moving averages of their squares.

    Args:
      kind: the class of the state: `updates`, and then an average for each of `axes`.
      axes: the axes over which each average takes the mean.
      divided: the function of a gradient and its averages.
    """

    def init(params: Parameters) -> OptState:
        averages = (_zeros_without(each, params) for each in axes)
        return kind(jnp.zeros((), jnp.int32), *averages)

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        updates = optax.safe_increment(state.updates)
        share = updates.astype(jnp.float32) ** -_EXPONENT  # 1 - decay

        def averaged(kept: Parameters, each: tuple[int, ...]) -> Parameters:
            def one(v: Array, g: Array) -> Array:
                return v + share * ((g**2 + _EPSILON).mean(each) - v)

            return jax.tree.map(one, kept, gradients)

        state = keep(kind(updates, *map(averaged, state[1:], axes)), state)
        return jax.tree.map(divided, gradients, *state[1:]), state

    return Optimizer(init, update)


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


def _zeros_without(axes: tuple[int, ...], params: Parameters) -> Parameters:
    """Return zeros of each parameter's shape without some axes, in boxes that name the others."""

    def make(x: Array | nn.LogicallyPartitioned) -> Array | nn.LogicallyPartitioned:
        if isinstance(x, nn.LogicallyPartitioned):
            return nn.LogicallyPartitioned(make(x.value), _without(axes, x.names))
        return jnp.zeros(_without(axes, x.shape), x.dtype)

    return jax.tree.map(make, params, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned))


def _without(axes: tuple[int, ...], sizes: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(size for place, size in enumerate(sizes, -len(sizes)) if place not in axes)
