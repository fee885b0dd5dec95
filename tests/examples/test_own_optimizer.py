"""Optimizers in a file of a user: against NumPy, with a rate of their own, and on resume."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import meta

import t2t_jax
from t2t_jax.config import Config
from t2t_jax.training.optimizer import from_optax
from t2t_jax.training.recipe import make_optimizer
from tests.examples.loading import load_example
from tests.refusals import refused
from tests.trained import checksums

DECLARED = {"w": meta.Partitioned(jnp.ones((2, 3)), ("embed", "mlp"))}


def test_the_directions_are_nesterov_momentum(tables):
    load_example("own_optimizer")
    config = Config().replace({"training.optimizer": "sgd(momentum=0.5)"})
    optimizer = make_optimizer(config, DECLARED)
    params = {"w": jnp.ones((2, 3))}
    state, momentum = optimizer.init(params), np.zeros((2, 3))
    for gradient in np.arange(12, dtype=np.float32).reshape(2, 2, 3):
        momentum = gradient + 0.5 * momentum
        directions, state = optimizer.update({"w": gradient}, state, params, lambda new, old: new)
        np.testing.assert_allclose(directions["w"], gradient + 0.5 * momentum, rtol=1e-6)


@pytest.mark.parametrize(
    ("transformation", "has_rate"),
    [
        (optax.scale_by_adam(), False),
        (optax.trace(0.9), False),
        (optax.sgd(0.1), True),
        (optax.adamw(1e-3, weight_decay=0.1), True),
        (optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)), True),
        (optax.chain(optax.clip(1.0), optax.lion(1e-4)), True),
        (optax.chain(optax.centralize(), optax.scale_by_adam()), False),
        (optax.MultiSteps(optax.scale_by_adam(), 4).gradient_transformation(), False),
        (
            optax.masked(optax.adamw(1e-3), lambda tree: jax.tree.map(lambda x: x.size > 1, tree)),
            True,
        ),
    ],
)
def test_an_optimizer_with_a_rate_is_known_by_the_sign_of_its_updates(transformation, has_rate):
    optimizer = from_optax(transformation, DECLARED)
    assert optimizer.has_rate == has_rate
    params, gradients = {"w": jnp.ones((2, 3))}, {"w": jnp.arange(6.0).reshape(2, 3)}
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        directions, state = optimizer.update(gradients, state, params, lambda new, old: new)
        return optax.tree.sub(params, directions), state

    for _ in range(4):
        params, state = step(params, state)
    assert float(params["w"][1, 2]) < 1  # where the gradient is largest


def test_a_complete_optimizer_trains_and_resumes_and_refuses_a_schedule(tables, tiny_run, tmp_path):
    adam = optax.inject_hyperparams(optax.adam)(learning_rate=0.003)
    whole = t2t_jax.train(tiny_run.config, tmp_path / "whole", optimizer=adam)
    t2t_jax.train(tiny_run.config, tmp_path / "paused", optimizer=adam, until=5)
    other_rate = optax.inject_hyperparams(optax.adam)(learning_rate=0.03)
    for other, difference in (optax.sgd(0.1), "another tree"), (other_rate, "other updates"):
        with refused(f"is not the one that the run was started with, which has {difference}"):
            t2t_jax.train(tiny_run.config, tmp_path / "paused", optimizer=other)
    t2t_jax.train(tiny_run.config, tmp_path / "paused", optimizer=adam)
    assert checksums(tmp_path / "paused") == checksums(tmp_path / "whole")
    assert whole.history.training[-1]["learning_rate"] == pytest.approx(0.003)
    plain = t2t_jax.train(tiny_run.config, tmp_path / "plain", optimizer=optax.sgd(0.1), until=1)
    assert "learning_rate" not in plain.history.training[0]
    with refused("training.schedule='cosine' is not for optimizer 'own_optimizer'"):
        own = tiny_run.config.replace({"training.warmup_steps": 2, "training.schedule": "cosine"})
        t2t_jax.train(own, tmp_path / "refused", optimizer=optax.sgd(0.1))
    assert not (tmp_path / "refused").exists()
