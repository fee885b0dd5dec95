"""The recipe of a run by its config: the optimiser, clipping and a moving average."""

import math

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from t2t_jax.config import TrainingConfig
from t2t_jax.config.registry import load_named
from t2t_jax.config.tables import OPTIMIZERS
from t2t_jax.modules.matrices import Parameters, is_matrix_of_layers, whether_each
from t2t_jax.training.freezing import are_frozen, without_frozen
from t2t_jax.training.optimizer import Optimizer, parted, with_weight_decay


def make_optimizer(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make the optimiser of a run, without its learning rate.

    The learning rate is kept apart because it follows the step of the run, which goes on where an
    update is skipped, and not the optimiser's own count of updates.

    Args:
      declared: the parameters as a module's `init` returns them, each in the box that declares it.
    """
    if config.freeze:
        frozen = are_frozen(config.freeze, declared)
        _, trained = parted(declared, frozen)
        return without_frozen(_optimizer(config, trained), frozen)
    return _optimizer(config, declared)


def _optimizer(config: TrainingConfig, declared: Parameters) -> Optimizer:
    """Make the optimiser of the parameters that are trained."""
    optimizer: Optimizer = load_named(OPTIMIZERS[config.optimizer].make)(config, declared)
    if not config.weight_decay:
        return optimizer
    decayed = whether_each(is_matrix_of_layers, declared)
    return with_weight_decay(optimizer, config.weight_decay, decayed)


def clipped(config: TrainingConfig, gradients: Parameters) -> Parameters:
    """Scale the gradients down to the largest norm that is allowed (Pascanu et al. 2013).

    Args:
      config: gives the largest norm, `clip_gradient_norm`; None leaves gradients as they are.
      gradients: the gradients of the mean loss.
    """
    if config.clip_gradient_norm is None:
        return gradients
    rule = optax.clip_by_global_norm(config.clip_gradient_norm)
    return rule.update(gradients, optax.EmptyState())[0]


def moving_average(
    decay: float, average: Parameters, params: Parameters, updates: Int[Array, ""]
) -> Parameters:
    """Update the moving average of the parameters, corrected for its start.

    The parameters after update i of n have the weight (1 - d) d^(n - i) / (1 - d^n). The weights
    add up to 1, and the parameters before the first update have none.

    Args:
      decay: the decay d.
      average: the average before the update; any values before the first update.
      params: the parameters after the update.
      updates: the number n of updates, this one included.
    """
    # 1 - d^n: a power that is rounded before it is subtracted would lose most of its digits.
    weights = -jnp.expm1(updates.astype(jnp.float32) * math.log(decay))
    share: Float[Array, ""] = (1 - decay) / weights
    return jax.tree.map(lambda a, p: a + share * (p - a), average, params)
