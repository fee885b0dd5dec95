"""Parametrisations by which settings of a small network hold for a large one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import t2t_jax
from t2t_jax import Config, UserError
from t2t_jax.modules.models import make_model
from t2t_jax.training.objective import LossSums, StepSums
from t2t_jax.training.recipe import make_optimizer
from t2t_jax.training.state import TrainState, create_state
from t2t_jax.training.step import compile_train_step, update


def _trained(tiny, batch, **changes):
    """The first parameters of a run, the state after two steps, and the loss of the second."""
    run = tiny.changed(model__d_k=64, model__norm_order="pre", **changes)
    state = create_state(run.config, run.model, run.mesh)
    first = jax.device_get(state.params)
    step = compile_train_step(run.config, run.model, run.mesh)
    for _ in range(2):
        state, metrics = step(state, run.put(batch))
    return first, jax.device_get(state), float(metrics.losses.smoothed)


@pytest.mark.thorough
def test_at_the_base_all_parametrisations_are_the_same_to_the_bit(tiny, batch):
    standard = _trained(tiny, batch)
    base = {"model__base_width": 8, "model__base_depth": 1}
    complete = _trained(tiny, batch, model__parametrisation="complete", **base)
    jax.tree.map(np.testing.assert_array_equal, complete, standard)


def test_first_values_and_rates_do_not_depend_on_the_width(tiny):
    """Only the matrices of layers get smaller, by the root of the width."""
    deviations = {}
    for width in (64, 256):
        changes = {
            "model.d_model": width,
            "model.d_ff": width,
            "model.position": "learned",
            "model.parametrisation": "mup",
            "model.base_width": 16,
        }
        model = make_model(tiny.config.replace(changes), 200, None)
        params = jax.jit(lambda model=model: model.init(jax.random.key(0), model.example()))()
        params = params["params"]
        deviations[width] = {
            "embedding": params["embedding"]["embedding"].std(),
            "position": params["source_position"]["embedding"].std(),
            "kernel": params["encoder"]["layers"]["feed_forward"]["kernel_1"].std(),
        }
    assert deviations[256]["embedding"] == pytest.approx(1 / 4, rel=0.05)
    assert deviations[256]["position"] == pytest.approx(1 / 4, rel=0.05)
    assert deviations[64]["embedding"] == pytest.approx(1 / 4, rel=0.05)
    assert deviations[64]["kernel"] / deviations[256]["kernel"] == pytest.approx(2, rel=0.05)


def test_equation_3_has_the_rate_of_the_base(tiny):
    config = tiny.changed(model__parametrisation="mup", model__base_width=2).config
    params, zero = {"bias": jnp.ones(2)}, jnp.zeros((), jnp.int32)
    optimizer = make_optimizer(config, params)
    state = TrainState(zero, params, optimizer.init(params), zero, zero)
    _, metrics = update(config, optimizer, state, params, StepSums(LossSums(*jnp.ones(3)), {}))
    assert float(metrics.learning_rate) == pytest.approx(2**-0.5 * 10**-1.5, rel=1e-6)


def test_an_optimiser_without_a_rule_is_refused(tables):
    t2t_jax.register("optimizer", "mine")(optax.sgd(1.0))
    with pytest.raises(UserError, match=r"has no rule for training\.optimizer='mine'; use"):
        Config().replace({"model.parametrisation": "mup", "training.optimizer": "mine"})
