"""The recipe of a run by its config: the optimiser, clipping and a moving average.

Frozen parameters (`training.freeze`) have no gradient, no moments and no update.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float, Int
from optax import OptState

from t2t_jax.config import Config, ModelConfig, TrainingConfig
from t2t_jax.config.registry import load_named
from t2t_jax.config.tables import OPTIMIZERS
from t2t_jax.errors import UserError, quote
from t2t_jax.modules.parameters import (
    Parameters,
    is_matrix,
    is_matrix_of_layers,
    is_stacked,
    of_each,
)
from t2t_jax.training import optimizer as optimizers
from t2t_jax.training.optimizer import Keep, Optimizer, Updated


def make_optimizer(config: Config, declared: Parameters) -> Optimizer:
    """Make the optimiser of a run, without its learning rate.

    The learning rate is separate because it follows the step of the run, which also counts skipped
    updates, and not the optimiser's count of updates.

    Args:
      declared: the parameters as a module's `init` returns them, each in the box that declares it.
    """
    if config.training.freeze:
        frozen = are_frozen(config.training.freeze, declared)
        _, trained = optimizers.parted(declared, frozen)
        return without_frozen(_optimizer(config, trained), frozen)
    return _optimizer(config, declared)


def _optimizer(config: Config, declared: Parameters) -> Optimizer:
    training = config.training
    facts = OPTIMIZERS[training.optimizer]
    optimizer: Optimizer = load_named(facts.make)(training, declared)
    if config.model.parametrisation != "standard":
        optimizer = _parametrised(optimizer, config.model, facts.width_exponent, declared)
    if not training.weight_decay:
        return optimizer
    decayed = of_each(is_matrix_of_layers, declared)
    return optimizers.with_weight_decay(optimizer, training.weight_decay, decayed)


def _parametrised(
    optimizer: Optimizer, model: ModelConfig, exponent: float | None, declared: Parameters
) -> Optimizer:
    """Make the updates of an optimiser independent of the width and the depth of the network.

    This is table 8 of Yang et al. 2021 and table 1 of Dey et al. 2025. Gradients are inversely
    proportional to the width, and in layers to the depth multiplier. They are rescaled to their
    size in the base model, so that the shared epsilon of Adam has the same weight.

    Args:
      exponent: the power of the width that scales the learning rate of layers' matrices.
    """
    assert exponent is not None  # a config without one is refused

    def rate(box: object) -> float:
        power = exponent if is_stacked(box) else -1
        return model.width_multiple**power if is_matrix(box) and box.grows else 1.0

    def enlargement(box: object) -> float:
        depth = model.depth_multiple(len(box.value)) if is_stacked(box) else 1.0
        return model.width_multiple * depth

    return optimizers.rescaled(optimizer, of_each(enlargement, declared), of_each(rate, declared))


def clipped(config: TrainingConfig, gradients: Parameters) -> Parameters:
    """Scale the gradients down to the largest allowed norm (Pascanu et al. 2013).

    Args:
      config: gives the largest norm, `clip_gradient_norm`; None leaves gradients unchanged.
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
    add up to 1, and the parameters before the first update have weight 0.

    Args:
      average: the average before the update; any values before the first update.
      updates: the number n of updates, including this one.
    """
    share: Float[Array, ""] = optimizers.bias_corrected(1 - decay, decay, updates)
    return jax.tree.map(lambda a, p: a + share * (p - a), average, params)


def are_frozen(patterns: Sequence[str], params: Parameters) -> Parameters:
    """Return for every parameter whether it is frozen.

    Args:
      patterns: paths of parameters or of modules, such as `encoder/layers/self_attention`, in which
        `*` matches anything.
      params: the parameters, or the boxes that declare them.
    """
    paths = flatten_dict(params, sep="/")
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in paths):
            raise UserError(
                f"training.freeze={quote(pattern)} is no parameter of this model; those are, for "
                f"example, {', '.join(list(paths)[:3])}"
            )
    frozen = {path: any(_matches(path, one) for one in patterns) for path in paths}
    if all(frozen.values()):
        raise UserError(f"training.freeze={list(patterns)} leaves no parameter to train")
    return unflatten_dict(frozen, sep="/")


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def without_frozen(optimizer: Optimizer, frozen: Parameters) -> Optimizer:
    """Extend an optimiser of the trained parameters to all; frozen ones never change.

    Args:
      frozen: the result of `are_frozen`.
    """

    def init(params: Parameters) -> OptState:
        return optimizer.init(optimizers.parted(params, frozen)[1])

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        fixed, trained = optimizers.parted(params, frozen)
        directions, state = optimizer.update(gradients, state, trained, keep)
        still = jax.tree.map(jnp.zeros_like, fixed)
        return optimizers.joined_parameters(still, directions), state

    return Optimizer(init, update)
