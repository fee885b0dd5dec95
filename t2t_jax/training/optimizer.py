"""The interface of an optimiser; Adam of section 5.3, Lion, and combinations of optimisers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_jax.config import TrainingConfig
from t2t_jax.modules.matrices import Parameters


class Optimizer(NamedTuple):
    """An optimiser without its learning rate, in two functions that a step calls in turn.

    The direction is computed from the state after the step, never from the state before, so that
    the new state can overwrite the old one in memory (`training.step`).

    Attributes:
      init: computes the state before the first step from the parameters. Boxed parameters give a
        boxed state, which declares its layout on a mesh.
      accumulate: computes the state after a step from the gradients and the state.
      direction: computes the step's decrease of the parameters, divided by the learning rate, from
        the gradients, the state after the step and the parameters before it.
    """

    init: Callable[[Parameters], Any]
    accumulate: Callable[[Parameters, Any], Any]
    direction: Callable[[Parameters, Any, Parameters], Parameters]


def adam(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make Adam (Kingma and Ba 2015): m_hat / (sqrt(v_hat) + epsilon) (section 5.3).

    Args:
      config: gives the decay `adam_beta1` of the mean of the gradients, the decay `adam_beta2` of
        the mean of their squares, and epsilon.
    """
    beta1, beta2, epsilon = config.adam_beta1, config.adam_beta2, config.adam_epsilon
    moments = optax.scale_by_adam(beta1, beta2, epsilon)

    def accumulate(gradients: Parameters, state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        return moments.update(gradients, state)[1]

    def direction(
        gradients: Parameters, state: optax.ScaleByAdamState, params: Parameters
    ) -> Parameters:
        mean = optax.tree.bias_correction(state.mu, beta1, state.count)
        square = optax.tree.bias_correction(state.nu, beta2, state.count)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mean, square)

    return Optimizer(moments.init, accumulate, direction)


def lion(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make Lion (Chen et al. 2023): the sign of beta1 m + (1 - beta1) g.

    Here m is the momentum before the step. After it, the momentum is m' = beta2 m + (1 - beta2) g,
    so the same sum is (beta1 / beta2) m' + (1 - beta1 / beta2) g.

    Args:
      config: gives the weight `adam_beta1` of the momentum in the direction, and the decay
        `adam_beta2` of the momentum, which is above 0.
    """
    beta1, beta2 = config.adam_beta1, config.adam_beta2
    momentum = optax.scale_by_lion(beta1, beta2)
    share = beta1 / beta2

    def accumulate(gradients: Parameters, state: optax.ScaleByLionState) -> optax.ScaleByLionState:
        return momentum.update(gradients, state)[1]

    def direction(
        gradients: Parameters, state: optax.ScaleByLionState, params: Parameters
    ) -> Parameters:
        return jax.tree.map(lambda m, g: jnp.sign(share * m + (1 - share) * g), state.mu, gradients)

    return Optimizer(momentum.init, accumulate, direction)


def with_weight_decay(optimizer: Optimizer, weight_decay: float, decayed: Parameters) -> Optimizer:
    """Add weight decay for some parameters (Loshchilov and Hutter 2019).

    Args:
      weight_decay: the share of a parameter to subtract, times the learning rate.
    """

    def direction(gradients: Parameters, state: Any, params: Parameters) -> Parameters:
        return jax.tree.map(
            lambda d, p, decays: d + weight_decay * p if decays else d,
            optimizer.direction(gradients, state, params),
            params,
            decayed,
        )

    return optimizer._replace(direction=direction)


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

    def accumulate(gradients: Parameters, state: Any) -> Any:
        return optimizer.accumulate(times(gradients, of_gradients), state)

    def direction(gradients: Parameters, state: Any, params: Parameters) -> Parameters:
        enlarged = times(gradients, of_gradients)
        return times(optimizer.direction(enlarged, state, params), of_directions)

    return Optimizer(optimizer.init, accumulate, direction)


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

    matrices: Any
    others: Any


def by_kind(are_matrices: Parameters, of_matrices: Optimizer, of_others: Optimizer) -> Optimizer:
    """Combine an optimiser for matrices with one for all other parameters."""

    def split(tree: Parameters) -> ByKind:
        return ByKind(*parted(tree, are_matrices))

    both = of_matrices, of_others

    def init(params: Parameters) -> ByKind:
        return ByKind(*(one.init(x) for one, x in zip(both, split(params), strict=True)))

    def accumulate(gradients: Parameters, state: ByKind) -> ByKind:
        parts = zip(both, split(gradients), state, strict=True)
        return ByKind(*(one.accumulate(x, its_state) for one, x, its_state in parts))

    def direction(gradients: Parameters, state: ByKind, params: Parameters) -> Parameters:
        parts = zip(both, split(gradients), state, split(params), strict=True)
        return joined_parameters(*(one.direction(*arguments) for one, *arguments in parts))

    return Optimizer(init, accumulate, direction)
