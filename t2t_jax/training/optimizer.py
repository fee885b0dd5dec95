"""Optimizers: Adam (section 5.3), Lion, Muon, and a wrapper for Optax."""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax.core import meta
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import KeyPath
from jaxtyping import Array, Float, Int, Int32, PyTree
from optax import OptState

from t2t_jax.config import TrainingConfig
from t2t_jax.errors import UserError
from t2t_jax.modules.parameters import (
    Parameters,
    is_matrix_of_layers,
    map_boxes,
)

_T = TypeVar("_T")

Keep: TypeAlias = Callable[[OptState, OptState], OptState]
"""A function `keep(new_state, old_state)` that returns the optimizer state to continue with:
the old state if the gradients are not finite."""
Updated: TypeAlias = tuple[Parameters, OptState]
"""The update directions of the parameters, and the optimizer state after a step."""


class Optimizer(NamedTuple):
    """An optimizer without a learning rate.

    Attributes:
      init: computes the initial state from the parameters. Boxed parameters give a boxed state,
        which declares its sharding on a mesh.
      update: `update(gradients, state, parameters, keep)` computes `(directions, new_state)`; the
        training step subtracts learning rate times directions. If the directions depend only on
        the result of `keep`, the new state can overwrite the old one in memory (`training.step`).
      has_rate: whether the directions include the learning rate.
    """

    init: Callable[[Parameters], OptState]
    update: Callable[[Parameters, OptState, Parameters, Keep], Updated]
    has_rate: bool = False


def from_optax(
    transformation: optax.GradientTransformation, declared: Parameters | None = None
) -> Optimizer:
    """Make an optimizer from a gradient transformation of Optax.

    Args:
      transformation: one without a learning rate, such as `optax.scale_by_lion()`, or with
        `declared` also a complete optimizer, such as `optax.sgd(0.1)`, whose updates have the
        opposite sign.
      declared: the boxed parameters of the model, to find the sign of the updates.
    """
    has_rate = declared is not None and _descends(transformation, declared)

    def init(params: Parameters) -> OptState:
        leaves, _ = jax.tree.flatten_with_path(params, lambda x: isinstance(x, meta.AxisMetadata))
        boxes = {path: x for path, x in leaves if isinstance(x, meta.AxisMetadata)}

        def box_like_parameter(path: KeyPath, x: Array) -> Array | meta.AxisMetadata[Array]:
            # The path of a moment ends with the path of its parameter. Arrays of other shapes, such
            # as factors of a moment, are replicated on every device.
            box = next((boxes[tail] for n in range(len(path)) if (tail := path[n:]) in boxes), None)
            return box.replace_boxed(x) if box and nn.unbox(box).shape == x.shape else x

        return jax.tree.map_with_path(box_like_parameter, transformation.init(nn.unbox(params)))

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        directions, new_state = transformation.update(gradients, state, params)
        if has_rate:
            directions = jax.tree.map(jnp.negative, directions)
        return directions, keep(new_state, state)

    return Optimizer(init, update, has_rate)


_MOST_PROBES = 64  # a warmup from 0 or `optax.MultiSteps` makes first updates 0


def _descends(transformation: optax.GradientTransformation, declared: Parameters) -> bool:
    """Return whether updates have the opposite sign of gradients, as those of `optax.sgd` have.

    Raises:
      UserError: the updates of many steps are 0.
    """
    rule = Optimizer(transformation.init, lambda *args: transformation.update(*args[:3]))
    for inner_product in islice(probe(rule, declared), _MOST_PROBES):
        if inner_product:
            return inner_product < 0
    raise UserError(
        f"the optimizer does not change parameters in {_MOST_PROBES} steps, so it is unknown "
        "whether its updates have a learning rate; give another transformation of Optax"
    )


def probe(optimizer: Optimizer, declared: Parameters) -> Iterator[float]:
    """Yield the inner product of directions and gradients for steps on small random arrays."""
    rng = np.random.default_rng(0)

    def draw(x: Array | jax.ShapeDtypeStruct) -> Array:
        return jnp.asarray(rng.normal(size=(2,) * x.ndim), jnp.float32)

    # Evaluated now, although a trace of the training step may call this.
    with jax.ensure_compile_time_eval():
        params = jax.tree.map(draw, nn.unbox(declared))
        state = optimizer.init(params)
    while True:
        with jax.ensure_compile_time_eval():
            gradients = jax.tree.map(draw, params)
            directions, state = optimizer.update(gradients, state, params, lambda new, old: new)
            inner_product = float(optax.tree.vdot(directions, gradients))
        yield inner_product


def bias_corrected(moments: PyTree, decay: float, num_updates: Int[Array, ""]) -> PyTree:
    """Divide moments by the sum of their weights, 1 - decay^num_updates."""
    # Moments start at 0, so their weights sum to 1 - decay^num_updates. `expm1` keeps the digits
    # that the difference loses to rounding. The minimum of 1e-30 replaces a decay of 0: the sum
    # is 1 in float32 either way.
    weights = -jnp.expm1(num_updates.astype(jnp.float32) * math.log(max(decay, 1e-30)))
    return jax.tree.map(lambda x: x / weights, moments)


def adam(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make Adam (Kingma and Ba 2015): m_hat / (sqrt(v_hat) + epsilon) (section 5.3)."""
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

    `adam_beta1` is the weight in the direction, `adam_beta2` the decay of the momentum.
    """
    return from_optax(optax.scale_by_lion(config.adam_beta1, config.adam_beta2))


def with_weight_decay(optimizer: Optimizer, weight_decay: float, decayed: Parameters) -> Optimizer:
    """Add decoupled weight decay for some parameters (Loshchilov and Hutter 2019).

    Args:
      weight_decay: each step subtracts learning rate times `weight_decay` times the parameter.
      decayed: True for every parameter to decay.
    """

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        directions, state = optimizer.update(gradients, state, params, keep)
        decay = optax.add_decayed_weights(weight_decay, decayed)
        return decay.update(directions, decay.init(params), params)[0], state

    return optimizer._replace(update=update)


def rescaled(
    optimizer: Optimizer, gradient_factors: Parameters, direction_factors: Parameters
) -> Optimizer:
    """Multiply the gradients and the directions of an optimizer by one factor per parameter.

    Args:
      gradient_factors: the factors on gradients, applied before the optimizer reads them.
      direction_factors: the factors on directions, which scale the learning rate.
    """

    def times(tree: Parameters, factors: Parameters) -> Parameters:
        return jax.tree.map(lambda x, factor: x if factor == 1 else x * factor, tree, factors)

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        scaled_gradients = times(gradients, gradient_factors)
        directions, state = optimizer.update(scaled_gradients, state, params, keep)
        return times(directions, direction_factors), state

    return optimizer._replace(update=update)


def partition(tree: Parameters, condition: Parameters) -> tuple[Parameters, Parameters]:
    """Split a tree of parameters in two: where the condition is True, and where it is False.

    Args:
      tree: the parameters, or one value for each; some parameters may be missing.
    """
    leaves, is_selected = flatten_dict(tree), flatten_dict(condition)
    selected = {path: x for path, x in leaves.items() if is_selected[path]}
    unselected = {path: x for path, x in leaves.items() if not is_selected[path]}
    return unflatten_dict(selected), unflatten_dict(unselected)


def join_parameters(selected: Parameters, unselected: Parameters) -> Parameters:
    """Join two trees that `partition` returned into one tree."""
    return unflatten_dict(flatten_dict(selected) | flatten_dict(unselected))


class ByKind(NamedTuple):
    """The states of two optimizers; checkpoints store the names of the fields."""

    matrices: PyTree
    others: PyTree


def by_kind(are_matrices: Parameters, if_true: Optimizer, if_false: Optimizer) -> Optimizer:
    """Combine an optimizer for matrices with one for all other parameters."""

    def split(tree: Parameters) -> ByKind:
        return ByKind(*partition(tree, are_matrices))

    rules = if_true, if_false

    def init(params: Parameters) -> ByKind:
        return ByKind(*(rule.init(x) for rule, x in zip(rules, split(params), strict=True)))

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        arguments = zip(split(gradients), state, split(params), strict=True)
        results = [rule.update(*args, keep) for rule, args in zip(rules, arguments, strict=True)]
        directions, states = zip(*results, strict=True)
        return join_parameters(*directions), ByKind(*states)

    return Optimizer(init, update)


_MOMENTUM = 0.95
# The root mean square of a typical Adam update, so that Muon and Adam share one learning rate (Liu
# et al. 2025, "Muon is Scalable for LLM Training", equation 4).
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
    """Make an optimizer that uses Muon for the matrices of layers, and Adam for all others.

    Muon (Jordan et al. 2024) orthogonalizes the momentum of each matrix. The direction of an m x n
    matrix is 0.2 sqrt(max(m, n)) O, where O is Nesterov momentum after five Newton-Schulz
    iterations (singular values from 0.7 to 1.2).
    """
    # Optax's Muon stores its momentum in another tree, so saved runs could not resume with it.
    of_layers = map_boxes(is_matrix_of_layers, declared)
    return by_kind(of_layers, _orthogonal_momentum(), adam(config, declared))


def _orthogonal_momentum() -> Optimizer:
    def init(params: Parameters) -> MomentumState:
        return MomentumState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        mean = optax.tree.update_moment(gradients, state.mean, _MOMENTUM, 1)
        state = keep(MomentumState(optax.safe_increment(state.updates), mean), state)
        nesterov = jax.tree.map(
            lambda m, g: _MOMENTUM * m + (1 - _MOMENTUM) * g,
            bias_corrected(state.mean, _MOMENTUM, state.updates + 1),
            bias_corrected(gradients, _MOMENTUM, state.updates),
        )
        directions = jax.tree.map(
            lambda x: _ROOT_MEAN_SQUARE * max(x.shape[-2:]) ** 0.5 * orthogonalized(x), nesterov
        )
        return directions, state

    return Optimizer(init, update)


def orthogonalized(x: Float[Array, "*layers m n"]) -> Float[Array, "*layers m n"]:
    """Return the matrices `x` with all singular values moved close to 1.

    Args:
      x: a matrix, or a stack of independent matrices.
    """
    # Without momentum, Optax's Muon only orthogonalizes.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
    muon_step = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=axes)
    return muon_step.update(x, muon_step.init(x))[0]
