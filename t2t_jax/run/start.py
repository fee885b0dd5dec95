"""The start of a run: from its newest checkpoint, another run's parameters, or random numbers."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.errors import UserError
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import Network, abstract_parameters
from t2t_jax.system.opening import opened
from t2t_jax.training.averaging import saved_steps
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.parameters import load_parameters
from t2t_jax.training.state import TrainState, abstract_state, create_state
from t2t_jax.workdir import is_run, read_config, read_vocabulary

_HEAD = "output_projection", "output_bias"
_OF_HEAD = (
    "share_embeddings",
    "share_target_embedding",
    "source_vocab_size",
    "output_bias",
)
_FREE = "dropout_rate", "attention_dropout_rate", "activation_dropout_rate", "compute_dtype"


def check_start(config: Config) -> None:
    """Refuse a new run that starts from the parameters of a run with a different model."""
    if config.training.init_from is None:
        return
    workdir, step = opened(config.training.init_from), config.training.init_step
    there = saved_steps(workdir) if is_run(workdir) else []
    if is_run(workdir) and (not there or step not in (None, *there)):
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise UserError(f"training.init_from={workdir} has {which}; it has {there}")
    size = read_vocabulary(workdir).source_size
    free = [f"model.{name}" for name in _FREE]
    if config.data.facts.predicts_labels:
        free += [f"model.{name}" for name in _OF_HEAD]
    if not config.model.positions.has_table:
        free.append("model.max_positions")
    other = differences(read_config(workdir), config)
    changed = {
        path: values
        for path, values in other.items()
        if path.startswith("model.") and path not in free
    }
    if size and config.data.vocab_size != size:
        changed["data.vocab_size"] = size, config.data.vocab_size
    if changed:
        raise UserError(
            f"training.init_from={workdir} has another model ({format_differences(changed)}); "
            "give these fields as that run has them"
        )


def initial_state(
    config: Config, model: Network, mesh: Mesh, checkpoints: Checkpoints
) -> TrainState:
    """Return the state to continue from: the newest checkpoint, or the one before step 1."""
    like = abstract_state(config, model, mesh)
    if restored := checkpoints.restore(like):
        return restored
    state, start = create_state(config, model, mesh), config.training
    if start.init_from is None:
        return state
    workdir = opened(start.init_from)
    other = read_config(workdir).replace({"parallel.remat": config.parallel.remat})
    like_other = abstract_parameters(make_model(other, len(read_vocabulary(workdir)), mesh), mesh)
    params, _ = load_parameters(workdir, like_other, step=start.init_step)
    if config.data.facts.predicts_labels:  # the labels may differ, and with them the head
        own = state.params.items()
        params = {name: x if name in _HEAD else params.get(name, x) for name, x in own}
    # A copy, as a step overwrites both.
    ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
    return state._replace(params=params, ema=ema)
