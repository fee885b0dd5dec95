"""The initial state of a run: its newest checkpoint, another run's parameters, or random values."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.system.opening import resolve_run
from t2t_jax.training.averaging import saved_steps
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.parameters import described_parameters, load_parameters
from t2t_jax.training.state import TrainState, abstract_state, create_state
from t2t_jax.workdir import StoredRun, read_run

if TYPE_CHECKING:
    from t2t_jax.run.preparing import Plan

_HEAD = "output_projection", "output_bias"
_OF_HEAD = "share_embeddings", "share_target_embedding", "source_vocab_size", "output_bias"
_FREE = "dropout_rate", "attention_dropout_rate", "activation_dropout_rate", "compute_dtype"


def initial_run(config: Config) -> StoredRun | None:
    """Open the run of `training.init_from`; None without `init_from`.

    Raises:
      UserError: the path is not a run, or the run lacks the checkpoint or has another model.
    """
    if config.training.init_from is None:
        return None
    workdir, step = resolve_run(config.training.init_from), config.training.init_step
    run, steps = read_run(workdir), saved_steps(workdir)
    if not steps or step not in (None, *steps):
        lack = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise UserError(f"training.init_from={workdir} has {lack}; it has {steps}")
    free_fields = [f"model.{name}" for name in _FREE]
    if config.data.facts.predicts_labels:
        free_fields += [f"model.{name}" for name in _OF_HEAD]
    if not config.model.positions.has_table:
        free_fields.append("model.max_positions")
    conflicts = {
        path: values
        for path, values in differences(run.config, config).items()
        if path.startswith("model.") and path not in free_fields
    }
    if (source_size := run.vocabulary.source_size) and config.data.vocab_size != source_size:
        conflicts["data.vocab_size"] = source_size, config.data.vocab_size
    if conflicts:
        raise UserError(
            f"training.init_from={workdir} has another model ({format_differences(conflicts)}); "
            "give these fields as that run has them"
        )
    return run


def initial_vocabulary(config: Config, run: StoredRun | None) -> Vocabulary | None:
    """Return the vocabulary of `run`, the run in `training.init_from`; None without one.

    A vocabulary with language tags is restricted to the languages of the config.

    Raises:
      UserError: the vocabulary lacks a protected token of the config.
    """
    if run is None:
        return None
    vocabulary, data = run.vocabulary, config.data
    if vocabulary.marked_languages and data.facts.writes_text:
        vocabulary = vocabulary.between(data.source_language, data.target_language)
    existing = vocabulary.protected_tokens
    missing = [token for token in data.protected_tokens if token not in existing]
    if missing:
        raise UserError(
            f"data.protected_tokens={' '.join(missing)} cannot be added to the vocabulary of "
            f"{run.workdir}, which training.init_from takes over; leave them out, or train that "
            "run with them"
        )
    return vocabulary


def initial_state(plan: "Plan", checkpoints: Checkpoints) -> TrainState:
    """Return the state of the newest checkpoint, or a new state.

    A new state takes the parameters of the run `training.init_from`, if set.
    """
    config, model, mesh = plan.config, plan.model, plan.mesh
    if restored := checkpoints.restore(abstract_state(config, model, mesh)):
        return restored
    state, init_run = create_state(config, model, mesh), plan.load_initial_run()
    if init_run is None:
        return state
    abstract_params = described_parameters(init_run, mesh)
    params, _ = load_parameters(init_run, abstract_params, step=config.training.init_step)
    if config.data.facts.predicts_labels:  # the labels, and so the head, may differ
        fresh_items = state.params.items()
        params = {name: x if name in _HEAD else params.get(name, x) for name, x in fresh_items}
    # The step donates both buffers, so they must differ.
    ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
    return state._replace(params=params, ema=ema)
