"""The training state, which every step updates, and its sharding on a mesh."""

from functools import cache, partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int32, Key

from t2t_jax.config import Config
from t2t_jax.modules import network
from t2t_jax.modules.network import Network
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.axes import abstract_arrays
from t2t_jax.parallel.jax_settings import random_key
from t2t_jax.training.recipe import make_optimizer


class TrainState(NamedTuple):
    """Everything that a training step updates.

    Attributes:
      step: number of completed steps, which is also the position in the data.
      params: the model's parameters, float32.
      optimizer: the optimizer state, such as Adam's moments.
      nonfinite_in_a_row: number of consecutive skipped steps up to now.
      nonfinite_total: number of skipped steps in the whole run.
      ema: the moving average of the parameters, or None without `training.ema_decay`.
    """

    step: Int32[Array, ""]
    params: Parameters
    optimizer: optax.OptState
    nonfinite_in_a_row: Int32[Array, ""]
    nonfinite_total: Int32[Array, ""]
    ema: Parameters | None = None

    @property
    def evaluated(self) -> Parameters:
        """Return the parameters to evaluate: the moving average, if the run keeps one."""
        return self.params if self.ema is None else self.ema


def _state_of(config: Config, declared: Parameters) -> TrainState:
    optimizer = make_optimizer(config, declared).init(declared)
    zero = jnp.zeros((), jnp.int32)
    ema = None if config.training.ema_decay is None else jax.tree.map(jnp.copy, declared)
    return TrainState(zero, declared, optimizer, zero, zero, ema)


def init_state(config: Config, model: Network, key: Key[Array, ""] | None = None) -> TrainState:
    """Make the initial training state.

    Args:
      key: PRNG key of the parameters; None uses `training.init_seed`, or else `training.seed`.
    """
    if key is None:
        key = random_key(config.training.effective_seed("init_seed"))
    return nn.unbox(_state_of(config, network.init_parameters(model, key)))


@cache
def abstract_state(config: Config, model: Network, mesh: Mesh) -> TrainState:
    """Return a `jax.ShapeDtypeStruct` with a sharding for every array of the state.

    Args:
      mesh: the devices, which may be a described topology.
    """
    # This call refuses an unsuitable mesh with an error that names parameters of the model.
    network.abstract_parameters(model, mesh)
    return abstract_arrays(
        mesh, jax.eval_shape(partial(_state_of, config), network.declared_parameters(model))
    )


def create_state(config: Config, model: Network, mesh: Mesh) -> TrainState:
    """Make the initial training state on a mesh; each device computes only its shard."""
    shards = state_shardings(config, model, mesh)
    return jax.jit(partial(init_state, config, model), out_shardings=shards)()


def state_shardings(config: Config, model: Network, mesh: Mesh) -> TrainState:
    """Return the sharding of every array of the state."""
    return jax.tree.map(lambda x: x.sharding, abstract_state(config, model, mesh))
