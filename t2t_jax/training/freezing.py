"""Frozen parameters (`training.freeze`), which have no gradient, no moments and no update."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_jax.errors import UserError, quote
from t2t_jax.modules.matrices import Parameters
from t2t_jax.training.optimizer import Optimizer, joined_parameters, parted


def are_frozen(patterns: Sequence[str], params: Parameters) -> Parameters:
    """Return for every parameter whether it is frozen.

    Args:
      patterns: paths of parameters or of modules, such as `encoder/layers/self_attention`, in which
        `*` matches anything.
      params: the parameters, or the boxes that declare them.

    Raises:
      UserError: a pattern matches no parameter, or no parameter is left to train.
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

    def init(params: Parameters) -> Any:
        return optimizer.init(parted(params, frozen)[1])

    def direction(gradients: Parameters, state: Any, params: Parameters) -> Parameters:
        fixed, trained = parted(params, frozen)
        still = jax.tree.map(jnp.zeros_like, fixed)
        return joined_parameters(still, optimizer.direction(gradients, state, trained))

    return optimizer._replace(init=init, direction=direction)
