"""The training step against its definition."""

from functools import cache, partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import ParallelConfig
from t2t_jax.errors import UserError
from t2t_jax.kernels.cpu import CPU, CPU_BFLOAT16
from t2t_jax.kernels.gpu import GPU
from t2t_jax.kernels.reference import REFERENCE
from t2t_jax.kernels.tpu import TPU_BFLOAT16
from t2t_jax.modules.cached_decoding import TransformerDecoding
from t2t_jax.parallel.mesh import batch_layout, replicated
from t2t_jax.training import step as step_module
from t2t_jax.training.objective import loss_sums
from t2t_jax.training.schedule import learning_rate
from t2t_jax.training.state import abstract_state, create_state, init_state
from t2t_jax.training.step import (
    abstract_batch,
    compile_train_step,
    eval_step,
    train_step,
    training_mesh,
)
from tests.selection import thorough_after


@cache
def _compiled(config, model, mesh):
    return compile_train_step(config, model, mesh)


@cache
def _initial(config, model, mesh):
    return jax.device_get(create_state(config, model, mesh))


def _state(run):
    return jax.device_put(_initial(*run), replicated(run.mesh))


def _train(run, batch, steps=1, tokens_per_device=None, state=None):
    state = _state(run) if state is None else state
    for _ in range(steps):
        state, metrics = _compiled(*run)(state, run.put(batch, tokens_per_device))
    return jax.device_get((state, metrics))


def _leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def _assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def _assert_near(one, other, atol=1e-5):
    jax.tree.map(partial(np.testing.assert_allclose, atol=atol), one, other)


def _loss_sums(model, params, batch):
    options = {"label_smoothing": 0.1, "method": "losses"}
    return loss_sums(model.apply({"params": params}, batch, **options), batch)


def test_loss_sums_equal_the_definition_token_by_token(tiny, batch):
    params = _state(tiny).params
    sums = jax.jit(partial(_loss_sums, tiny.model))(params, batch)
    apply = jax.jit(partial(tiny.model.apply, deterministic=True))
    logits = np.asarray(apply({"params": params}, batch), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = smoothed = tokens = 0.0
    for row, column in np.argwhere(batch.targets.segments):
        right = log_p[row, column, batch.targets.tokens[row, column]]
        nll -= right
        smoothed -= 0.9 * right + 0.1 * log_p[row, column].mean()
        tokens += 1
    np.testing.assert_allclose(sums, (smoothed, nll, tokens), rtol=1e-5)


def test_first_step_moves_each_parameter_by_the_learning_rate_against_its_gradient(tiny, batch):
    # Adam's first direction is g / (|g| + epsilon): the sign of the gradient.
    before = jax.device_get(_state(tiny).params)

    def mean_loss(params, batch):
        sums = _loss_sums(tiny.model, params, batch)
        return sums.smoothed / sums.tokens

    gradients = jax.jit(jax.grad(mean_loss))(before, batch)
    after, metrics = _train(tiny, batch)
    rate = float(learning_rate(1, 8, 10))
    arrays = map(_leaves, (before, after.params, gradients))
    for old, new, gradient in zip(*arrays, strict=True):
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


# Options that change the order of the work and no more: passes of 1 and 3 rows; layers again.
_SAME_WORK = [
    {"parallel__remat": "layer", "tokens_per_device": 18},
    {"tokens_per_device": 6},
    {"tokens_per_device": 18},
    {"parallel__remat": "dots"},
    {"model__architecture": "decoder_only", "parallel__remat": "dots", "tokens_per_device": 18},
]


@pytest.mark.parametrize("options", thorough_after(1, _SAME_WORK))
def test_passes_and_recomputation_change_no_loss_and_no_parameter_dropout_included(
    tiny, batch, options
):
    # At full speed Adam's first steps are signs, which turn tiny differences into large ones.
    rates = {"attention_dropout_rate": 0.2, "activation_dropout_rate": 0.2, "dropout_rate": 0.3}
    options = dict(options)
    calm = tiny.changed(
        training__learning_rate_factor=0.1,
        training__adam_epsilon=1e-6,
        model__architecture=options.pop("model__architecture", "encoder_decoder"),
        **{f"model__{name}": rate for name, rate in rates.items()},
    )
    whole, whole_metrics = _train(calm, batch, 3)
    limit = options.pop("tokens_per_device", None)
    parts, parts_metrics = _train(calm.changed(**options), batch, 3, limit, _state(calm))
    np.testing.assert_allclose(parts_metrics.losses, whole_metrics.losses, rtol=1e-5)
    _assert_near(parts.params, whole.params)


@pytest.mark.thorough
@pytest.mark.parametrize("kernels", [GPU, TPU_BFLOAT16], ids=["gpu", "tpu"])
def test_a_step_in_the_forms_for_accelerators_moves_parameters_alike(
    tiny, batch, monkeypatch, kernels
):
    calm = tiny.changed(training__learning_rate_factor=0.1, training__adam_epsilon=1e-6)
    expected, expected_metrics = _train(calm, batch, 2)
    monkeypatch.setattr(step_module, "kernels_of", lambda *_: kernels)
    step = compile_train_step(calm.config, calm.model.clone(kernels=kernels), calm.mesh)
    for tokens in (None, 6):  # in one pass and in several
        state = _state(calm)
        for _ in range(2):
            state, metrics = step(state, calm.put(batch, tokens))
        np.testing.assert_allclose(metrics.losses, expected_metrics.losses, rtol=1e-5)
        _assert_near(state.params, expected.params)


@pytest.mark.thorough
@pytest.mark.parametrize("kernels", [CPU, REFERENCE, CPU_BFLOAT16])
def test_dots_keeps_the_products_with_matrices_and_layer_computes_them_again(tiny, batch, kernels):
    run = tiny.changed(model__compute_dtype="bfloat16")
    counts = {}
    for remat in ("none", "dots", "layer"):
        model = run.model.clone(remat=remat, kernels=kernels)
        step = compile_train_step(run.config, model, run.mesh)
        state = abstract_state(run.config, model, run.mesh)
        counts[remat] = step.lower(state, run.put(batch)).as_text().count("dot_general")
    # The scores and the weighted sums of the three attentions are no products with matrices.
    assert counts["dots"] == counts["none"] + 3 * 2
    assert counts["layer"] > counts["dots"]


def test_a_row_is_dropped_differently_from_its_copies_in_the_batch_and_between_passes(tiny, batch):
    # All rows are alike: were their elements dropped alike too, each would have the same loss.
    run = tiny.changed(model__dropout_rate=0.3)
    same = jax.tree.map(lambda x: jnp.repeat(x[:1], 8, axis=0), batch)
    params = _state(run).params
    losses = partial(run.model.apply, label_smoothing=0.0, method="losses")
    options = {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}}
    by_row = jax.jit(lambda first: losses({"params": params}, same, first_row=first, **options)[1])
    first, second = by_row(0).sum(1), by_row(8).sum(1)
    assert len(np.unique([first, second])) == 16
    np.testing.assert_array_equal(by_row(4).sum(1)[:4], first[4:])


def test_eval_step_is_the_same_in_any_number_of_passes(tiny, batch):
    params = _state(tiny).params
    expected = jax.jit(partial(_loss_sums, tiny.model))(params, batch)
    for tokens in (None, 20):
        placed = tiny.put(batch, tokens)
        got, nll = eval_step(TransformerDecoding(tiny.model), 0.1, params, placed)
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        is_target = np.asarray(placed.targets.segments) != 0
        assert nll.shape == is_target.shape
        np.testing.assert_allclose(np.sum(nll, where=is_target), expected.nll, rtol=1e-5)


@pytest.mark.thorough
def test_dropout_depends_on_seed_and_step_alone(tiny, batch):
    run = tiny.changed(model__dropout_rate=0.3)
    once, again = _train(run, batch, 2), _train(run, batch, 2)
    _assert_equal(once, again)
    other = _train(run.changed(training__seed=1), batch, 2, state=_state(run))
    assert other[1].losses.smoothed != once[1].losses.smoothed
    only_dropout = run.changed(training__dropout_seed=1)
    _assert_equal(_train(only_dropout, batch, 2, state=_state(run)), other)
    others = run.changed(training__init_seed=1, training__order_seed=1)
    _assert_equal(_train(others, batch, 2, state=_state(run)), once)
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


@pytest.mark.thorough
def test_a_recipe_with_everything_is_the_same_under_pmap(tiny, batch):
    training = {
        "optimizer": "muon",
        "weight_decay": 0.1,
        "schedule": "constant",
        "peak_learning_rate": 0.1,
        "clip_gradient_norm": 0.5,
        "ema_decay": 0.5,
    }
    run = tiny.changed(**{f"training__{name}": value for name, value in training.items()})
    before = _initial(*run)
    first, _ = _train(run, batch, 1)
    _assert_equal(first.ema, first.params)  # before the first update it has no weight
    after, metrics = _train(run, batch, 2)
    mean = jax.tree.map(lambda one, two: (one + 2 * two) / 3, first.params, after.params)
    _assert_near(after.ema, mean, atol=1e-6)
    assert metrics.gradient_norm > 0.5  # before it is clipped
    assert float(metrics.learning_rate) == pytest.approx(0.1 * 2 / 10)
    mapped, _ = _train(run.changed(parallel__backend="pmap"), batch, 2, state=before)
    _assert_near(mapped, after)


@pytest.mark.thorough
def test_initialisation_is_a_function_of_the_seed(tiny):
    _assert_equal(_state(tiny), create_state(*tiny))
    _assert_equal(_state(tiny), jax.jit(partial(init_state, tiny.config, tiny.model))())
    one, other = _state(tiny).params, _state(tiny.changed(training__seed=1)).params
    assert not np.array_equal(one["embedding"]["embedding"], other["embedding"]["embedding"])


@pytest.mark.thorough
def test_bfloat16_trains_float32_parameters(tiny, batch):
    half = tiny.changed(model__compute_dtype="bfloat16")
    state, metrics = _train(half, batch)
    assert {x.dtype for x in _leaves(state.params)} == {np.dtype(np.float32)}
    _, full = _train(tiny, batch)
    assert float(metrics.losses.smoothed) == pytest.approx(float(full.losses.smoothed), rel=0.01)
    assert float(metrics.gradient_norm) == pytest.approx(float(full.gradient_norm), rel=0.03)
    _, later = _train(half, batch, 60)
    assert later.losses.smoothed < 0.8 * metrics.losses.smoothed


@pytest.mark.thorough
def test_train_step_runs_outside_jit_as_the_pure_function_it_is(tiny, batch):
    state = _state(tiny)
    plain, _ = train_step(
        tiny.config, tiny.model, state, jax.tree.map(lambda x: jnp.asarray(x[None]), batch)
    )
    compiled, _ = _train(tiny, batch)
    _assert_near(compiled, plain)


def test_abstract_state_and_batch_are_those_that_the_step_takes(tiny, batch):
    state, placed = _state(tiny), tiny.put(batch, 18)
    layout = batch_layout(tiny.mesh, 8, 6, 18)
    pairs = (
        (abstract_state(tiny.config, tiny.model, tiny.mesh), state),
        (abstract_batch(layout, tiny.model.example(), 6, 5), placed),
    )
    for abstract, real in pairs:
        assert jax.tree.structure(abstract) == jax.tree.structure(real)
        for one, other in zip(jax.tree.leaves(abstract), jax.tree.leaves(real), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert one.sharding.is_equivalent_to(other.sharding, other.ndim)


@pytest.mark.parametrize("backend", ["jit", "pmap"])
def test_the_step_is_traced_and_compiled_once_for_a_shape(tiny, batch, backend):
    run = tiny.changed(parallel__backend=backend)
    state = create_state(*run)
    with mock.patch("t2t_jax.training.objective.loss_sums", wraps=loss_sums) as traced:
        step = compile_train_step(*run)
        counts = []
        for _ in range(3):
            layout = batch_layout(run.mesh, *batch.inputs.tokens.shape)
            state, _ = step(state, layout.put(batch))
            counts.append(traced.call_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * 3


def test_pmap_is_refused_where_several_processes_have_met(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"pmap.*one process, but 2.*backend='jit'"):
        training_mesh(ParallelConfig(backend="pmap"))
