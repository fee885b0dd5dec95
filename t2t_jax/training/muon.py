"""Muon (Jordan et al. 2024): momentum whose matrices are orthogonalized one by one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float, Int32

from t2t_jax.config import TrainingConfig
from t2t_jax.modules.matrices import Parameters, is_matrix_of_layers, of_each
from t2t_jax.training.optimizer import Optimizer, adam, by_kind

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

    The direction of a matrix is 0.2 sqrt(max(m, n)) O, where O is Nesterov's momentum with all
    singular values brought near 1 (from 0.7 to 1.2) by five Newton-Schulz iterations.
    """
    of_layers = of_each(is_matrix_of_layers, declared)
    return by_kind(of_layers, _orthogonal_momentum(), adam(config, declared))


def _orthogonal_momentum() -> Optimizer:
    def init(params: Parameters) -> MomentumState:
        return MomentumState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def accumulate(gradients: Parameters, state: MomentumState) -> MomentumState:
        mean = optax.tree.update_moment(gradients, state.mean, _MOMENTUM, 1)
        return MomentumState(optax.safe_increment(state.updates), mean)

    def direction(gradients: Parameters, state: MomentumState, params: Parameters) -> Parameters:
        ahead = jax.tree.map(
            lambda m, g: _MOMENTUM * m + (1 - _MOMENTUM) * g,
            optax.tree.bias_correction(state.mean, _MOMENTUM, state.updates + 1),
            optax.tree.bias_correction(gradients, _MOMENTUM, state.updates),
        )
        return jax.tree.map(
            lambda x: _ROOT_MEAN_SQUARE * max(x.shape[-2:]) ** 0.5 * orthogonalized(x), ahead
        )

    return Optimizer(init, accumulate, direction)


def orthogonalized(x: Float[Array, "*layers m n"]) -> Float[Array, "*layers m n"]:
    """Return matrices with the singular vectors of `x`, and singular values near 1.

    Args:
      x: a matrix, or a stack of independent matrices.
    """
    # Optax's Muon without its momentum does nothing else.
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
    alone = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=axes)
    return alone.update(x, alone.init(x))[0]
