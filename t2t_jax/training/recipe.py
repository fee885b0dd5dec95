"""The training recipe of a config: optimizer, gradient clipping and moving average.

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
from t2t_jax.config.tables import OPTIMIZERS
from t2t_jax.errors import UserError, quote, user_code
from t2t_jax.modules.parameters import (
    Parameters,
    is_matrix,
    is_matrix_of_layers,
    is_stacked,
    map_boxes,
)
from t2t_jax.plugins import load_named
from t2t_jax.training import optimizer as optimizers
from t2t_jax.training.optimizer import Keep, Optimizer, Updated


def make_optimizer(config: Config, declared: Parameters) -> Optimizer:
    """Make the optimizer of a run, without its learning rate.

    The learning rate is separate because it follows the step of the run, which also counts skipped
    updates. The optimizer counts only its own updates.

    Args:
      declared: the boxed parameters that a module's `init` returns.
    """
    if config.training.freeze:
        frozen = are_frozen(config.training.freeze, declared)
        _, trained = optimizers.partition(declared, frozen)
        return without_frozen(_optimizer(config, trained), frozen)
    return _optimizer(config, declared)


def _optimizer(config: Config, declared: Parameters) -> Optimizer:
    training = config.training
    facts = OPTIMIZERS[training.optimizer]
    make = load_named(facts.make)
    advice = "give a transformation of Optax whose update takes gradients, state and parameters"
    with user_code(f"training.optimizer={quote(training.optimizer)}", advice):
        optimizer = make(training, declared)
        if not isinstance(optimizer, Optimizer):
            optimizer = optimizers.from_optax(optimizer, declared)
    if optimizer.has_rate:
        _check_has_no_schedule(training)
    if config.model.parametrisation != "standard":
        optimizer = _parametrised(optimizer, config.model, facts.width_exponent, declared)
    if not training.weight_decay:
        return optimizer
    decayed = map_boxes(is_matrix_of_layers, declared)
    return optimizers.with_weight_decay(optimizer, training.weight_decay, decayed)


def _check_has_no_schedule(training: TrainingConfig) -> None:
    default = TrainingConfig()
    names = ("schedule", "weight_decay")
    changed = [name for name in names if getattr(training, name) != getattr(default, name)]
    if changed:
        raise UserError(
            f"training.{changed[0]}={quote(getattr(training, changed[0]))} is not for optimizer "
            f"{quote(training.optimizer)}, whose updates have their own learning rate; leave it "
            "out, or give a transformation without a rate, such as optax.scale_by_adam()"
        )


def _parametrised(
    optimizer: Optimizer, model: ModelConfig, exponent: float | None, declared: Parameters
) -> Optimizer:
    """Make the updates of an optimizer independent of the width and the depth of the network.

    Sources: table 8 of Yang et al. 2021 and table 1 of Dey et al. 2025.

    Args:
      exponent: the power of the width that scales the learning rate of the matrices of layers.
    """
    assert exponent is not None  # the config refuses an optimizer without an exponent

    def rate(box: object) -> float:
        power = exponent if is_stacked(box) else -1
        return model.width_multiple**power if is_matrix(box) and box.grows else 1.0

    # Gradients shrink with the width, and in layers with the depth multiplier. This factor restores
    # their size in the base model, so that Adam's epsilon has the same effect at any size.
    def scale(box: object) -> float:
        depth = model.depth_multiple(len(box.value)) if is_stacked(box) else 1.0
        return model.width_multiple * depth

    return optimizers.rescaled(optimizer, map_boxes(scale, declared), map_boxes(rate, declared))


def clipped(config: TrainingConfig, gradients: Parameters) -> Parameters:
    """Clip the gradients to a maximal global norm (Pascanu et al. 2013).

    The maximal norm is `clip_gradient_norm`; None leaves gradients unchanged.
    """
    if config.clip_gradient_norm is None:
        return gradients
    rule = optax.clip_by_global_norm(config.clip_gradient_norm)
    return rule.update(gradients, optax.EmptyState())[0]


def moving_average(
    decay: float, average: Parameters, params: Parameters, updates: Int[Array, ""]
) -> Parameters:
    """Update the bias-corrected exponential moving average of the parameters.

    With decay d, the parameters after update i of n have the weight (1 - d) d^(n - i) / (1 - d^n).

    Args:
      average: the average before the update; any values before the first update.
      updates: the number n of updates, including this one.
    """
    # The share is 1 at the first update, so the initial average has weight 0.
    share: Float[Array, ""] = optimizers.bias_corrected(1 - decay, decay, updates)
    return jax.tree.map(lambda a, p: a + share * (p - a), average, params)


def are_frozen(patterns: Sequence[str], params: Parameters) -> Parameters:
    """Return True for every parameter that a pattern freezes, and False for the others.

    Args:
      patterns: paths of parameters or modules, such as `encoder/layers/self_attention`; `*` matches
        any text.
      params: the parameters, or the boxes that declare them.
    """
    paths = flatten_dict(params, sep="/")
    for pattern in patterns:
        if not any(_matches(path, pattern) for path in paths):
            raise UserError(
                f"training.freeze={quote(pattern)} matches no parameter of this model; its "
                f"parameters are, for example, {', '.join(list(paths)[:3])}"
            )
    frozen = {path: any(_matches(path, pattern) for pattern in patterns) for path in paths}
    if all(frozen.values()):
        raise UserError(f"training.freeze={list(patterns)} leaves no parameter to train")
    return unflatten_dict(frozen, sep="/")


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def without_frozen(optimizer: Optimizer, frozen: Parameters) -> Optimizer:
    """Extend an optimizer of the trained parameters to all parameters; frozen ones never change.

    Args:
      frozen: the result of `are_frozen`.
    """

    def init(params: Parameters) -> OptState:
        return optimizer.init(optimizers.partition(params, frozen)[1])

    def update(gradients: Parameters, state: OptState, params: Parameters, keep: Keep) -> Updated:
        fixed, trained = optimizers.partition(params, frozen)
        directions, state = optimizer.update(gradients, state, trained, keep)
        zero_directions = jax.tree.map(jnp.zeros_like, fixed)
        return optimizers.join_parameters(zero_directions, directions), state

    return optimizer._replace(init=init, update=update)
