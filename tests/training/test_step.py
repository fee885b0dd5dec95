"""The training step against its definition."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.parallel.mesh import put_batch
from t2t_jax.training.optimizer import learning_rate
from t2t_jax.training.step import compile_train_step, eval_step, init_state, loss_sums, train_step


@cache
def _compiled(config, model, mesh):
    initialise = jax.jit(partial(init_state, config, model))
    return initialise, compile_train_step(config, model, mesh)


def _state(run):
    return _compiled(*run)[0]()


def _train(run, batch, steps=1, tokens_per_device=None, state=None):
    state = _state(run) if state is None else state
    for _ in range(steps):
        placed = put_batch(batch, run.mesh, tokens_per_device)
        state, metrics = _compiled(*run)[1](state, placed)
    return jax.device_get((state, metrics))


def _leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def _assert_equal(one, other):
    for a, b in zip(_leaves(one), _leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_loss_sums_equal_the_definition_token_by_token(tiny, batch):
    params = _state(tiny).params
    sums = jax.jit(partial(loss_sums, tiny.model, 0.1))(params, batch)
    apply = jax.jit(partial(tiny.model.apply, deterministic=True))
    logits = np.asarray(apply({"params": params}, *batch), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = smoothed = tokens = 0.0
    for row, column in np.argwhere(batch.targets_segments):
        right = log_p[row, column, batch.targets[row, column]]
        nll -= right
        smoothed -= 0.9 * right + 0.1 * log_p[row, column].mean()
        tokens += 1
    np.testing.assert_allclose(sums, (smoothed, nll, tokens), rtol=1e-5)


def test_first_step_moves_each_parameter_by_the_learning_rate_against_its_gradient(tiny, batch):
    # Adam's first direction is g / (|g| + epsilon): the sign of the gradient.
    before = jax.device_get(_state(tiny).params)

    def mean_loss(params, batch):
        sums = loss_sums(tiny.model, 0.1, params, batch)
        return sums.smoothed / sums.tokens

    gradients = jax.jit(jax.grad(mean_loss))(before, batch)
    after, metrics = _train(tiny, batch)
    rate = float(learning_rate(1, 8, 10))
    for old, new, gradient in zip(
        _leaves(before), _leaves(after.params), _leaves(gradients), strict=True
    ):
        large = np.abs(gradient) > 1e-5  # far above epsilon and rounding
        moved = np.where(large, -rate * np.sign(gradient), new - old)
        np.testing.assert_allclose(new - old, moved, atol=2e-3 * rate)
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in _leaves(gradients)))
    assert float(metrics.gradient_norm) == pytest.approx(norm, rel=1e-4)
    assert float(metrics.learning_rate) == pytest.approx(rate)
    assert int(after.step) == 1


def test_loss_falls_when_one_batch_is_repeated(tiny, batch):
    _, first = _train(tiny, batch, 1)
    _, last = _train(tiny, batch, 60)
    assert last.losses.smoothed < 0.8 * first.losses.smoothed


@pytest.mark.parametrize("tokens_per_device", [6, 12, 18, 1000])
def test_passes_add_up_to_the_full_batch(tiny, batch, tokens_per_device):
    whole, whole_metrics = _train(tiny, batch, 3)
    parts, parts_metrics = _train(tiny, batch, 3, tokens_per_device)
    np.testing.assert_allclose(parts_metrics.losses, whole_metrics.losses, rtol=1e-5)
    for a, b in zip(_leaves(whole.params), _leaves(parts.params), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)


def test_eval_step_is_the_same_in_any_number_of_passes(tiny, batch):
    params = _state(tiny).params
    expected = jax.jit(partial(loss_sums, tiny.model, 0.1))(params, batch)
    for tokens in (None, 6, 20):
        got = eval_step(tiny.model, 0.1, params, put_batch(batch, tiny.mesh, tokens))
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_dropout_depends_on_seed_and_step_alone(tiny, batch):
    run = tiny.changed(model__dropout_rate=0.3)
    once, again = _train(run, batch, 2), _train(run, batch, 2)
    _assert_equal(once, again)
    other = _train(run.changed(training__seed=1), batch, 2, state=_state(run))
    assert other[1].losses.smoothed != once[1].losses.smoothed
    # The same parameters at another step are dropped differently.
    later = _state(run)._replace(step=jnp.int32(7))
    then = _train(run, batch, state=later)[1].losses.smoothed
    assert then != _train(run, batch)[1].losses.smoothed


def test_a_step_with_a_nonfinite_loss_is_skipped_and_counted(tiny, batch):
    state = _state(tiny)
    broken = jax.tree.map(lambda x: x * jnp.nan, state.params)
    after, metrics = _train(tiny, batch, 2, state=state._replace(params=broken))
    _assert_equal(after.optimizer, _state(tiny).optimizer)
    assert (int(after.step), int(after.nonfinite_in_a_row), int(after.nonfinite_total)) == (2, 2, 2)
    assert int(metrics.nonfinite_in_a_row) == 2
    healed, _ = _train(tiny, batch, 1, state=after._replace(params=_state(tiny).params))
    assert (int(healed.nonfinite_in_a_row), int(healed.nonfinite_total)) == (0, 2)
    assert all(np.isfinite(x).all() for x in _leaves(healed.params))


def test_a_nonfinite_gradient_with_a_finite_loss_is_skipped_too(tiny, batch):
    # Rows of 1e30 leave layer norm's loss finite and overflow the norm of some gradient.
    state = _state(tiny)
    huge = state.params | {
        "embedding": {"embedding": state.params["embedding"]["embedding"] * 1e30}
    }
    after, metrics = _train(tiny, batch, state=state._replace(params=huge))
    skipped = not (np.isfinite(metrics.losses.smoothed) and np.isfinite(metrics.gradient_norm))
    assert int(after.nonfinite_total) == skipped
    assert all(np.isfinite(x).all() for x in _leaves(after.optimizer))


def test_initialisation_is_a_function_of_the_seed(tiny):
    _assert_equal(_state(tiny), _state(tiny))
    one, other = _state(tiny).params, _state(tiny.changed(training__seed=1)).params
    assert not np.array_equal(one["embedding"]["embedding"], other["embedding"]["embedding"])


def test_bfloat16_trains_float32_parameters(tiny, batch):
    half = tiny.changed(model__compute_dtype="bfloat16")
    state, metrics = _train(half, batch)
    assert {x.dtype for x in _leaves(state.params)} == {np.dtype(np.float32)}
    _, full = _train(tiny, batch)
    assert float(metrics.losses.smoothed) == pytest.approx(float(full.losses.smoothed), rel=0.01)
    assert float(metrics.gradient_norm) == pytest.approx(float(full.gradient_norm), rel=0.03)
    _, later = _train(half, batch, 60)
    assert later.losses.smoothed < 0.8 * metrics.losses.smoothed


def test_train_step_runs_outside_jit_as_the_pure_function_it_is(tiny, batch):
    state = _state(tiny)
    plain, _ = train_step(
        tiny.config, tiny.model, state, jax.tree.map(lambda x: jnp.asarray(x[None]), batch)
    )
    compiled, _ = _train(tiny, batch)
    for a, b in zip(_leaves(plain), _leaves(compiled), strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)
