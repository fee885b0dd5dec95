"""Losses and metrics of the user, in the step."""

import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config.registered import with_parts
from t2t_jax.errors import UserError
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import batch_layout, make_mesh
from t2t_jax.training.state import abstract_state, create_state, init_state
from t2t_jax.training.step import abstract_batch, check_functions, compile_train_step
from tests.parallel.test_meshes import make_batch, make_config, on_eight_devices

pytestmark = pytest.mark.usefixtures("forgotten_parts")


def _mask(batch):
    return (batch.targets.segments != 0).astype(jnp.float32)


def by_hand(apply, batch, key):
    """Compute the loss of the paper from the logits."""
    log_p = jax.nn.log_softmax(apply(batch, key))
    right = jnp.take_along_axis(log_p, batch.targets.tokens[..., None], -1)[..., 0]
    return -((0.9 * right + 0.1 * log_p.mean(-1)) * _mask(batch)).sum(), _mask(batch).sum()


def r_drop(apply, batch, key):
    """Give sentences equal weights, and add the divergence between two calls with dropout."""
    weights = _mask(batch) / jnp.maximum(_mask(batch).sum(1, keepdims=True), 1)
    p, q = (jax.nn.log_softmax(apply(batch, jax.random.fold_in(key, i))) for i in (0, 1))
    smoothed, _ = apply.losses(batch, key, label_smoothing=0.2)
    divergence = (jnp.exp(p) * (p - q)).sum(-1)
    return ((smoothed + divergence) * weights).sum(), weights.sum() / 3


def accuracy(outputs, batch):
    correct = outputs.logits.argmax(-1) == batch.targets.tokens
    nats = (outputs.losses[1] * _mask(batch)).sum()
    return {
        "accuracy": ((correct * _mask(batch)).sum(), _mask(batch).sum()),
        "nats": (nats, _mask(batch).sum()),
    }


def _trained(step, state, batch, count=3):
    for _ in range(count):
        state, metrics = step(state, batch)
    return jax.device_get((state.params, metrics))


def _assert_near(result, expected, **tolerance):
    near = partial(np.testing.assert_allclose, **({"rtol": 1e-5, "atol": 1e-5} | tolerance))
    jax.tree.map(near, result, expected)


@pytest.fixture(scope="module")
def calm(tiny):
    fields = {"training__learning_rate_factor": 0.1, "training__adam_epsilon": 1e-6}
    return tiny.changed(model__dropout_rate=0.3, **fields)


def _compiled(run, loss=None, metrics=None):
    run = run._replace(config=with_parts(run.config, {"training.loss": loss}))
    return compile_train_step(*run, metrics)


def _losses(run, batch, *functions, tokens=None, **options):
    step = _compiled(run, *functions)
    return _trained(step, create_state(*run), run.put(batch, tokens), **options)


def test_the_loss_of_the_paper_by_hand_trains_as_the_paper(calm, batch):
    expected, paper = _losses(calm, batch)
    params, metrics = _losses(calm, batch, by_hand, accuracy)
    _assert_near(params, expected)
    _assert_near(metrics.pairs["loss"], (paper.losses.smoothed, paper.losses.tokens))
    _assert_near(metrics.pairs["nats"][0], paper.losses.nll)
    assert metrics.losses == (0, 0, paper.losses.tokens)
    assert metrics.gradient_norm == pytest.approx(paper.gradient_norm, rel=1e-5)
    own_metrics = {name: metrics.pairs[name] for name in ("accuracy", "nats")}
    with_metrics = expected, paper._replace(pairs=own_metrics)
    _assert_near(_losses(calm, batch, None, accuracy), with_metrics)


def test_a_loss_and_metrics_equal_numpy(tiny, batch):
    params = create_state(*tiny).params

    @jax.jit
    def expected(params, batch):
        options = {"label_smoothing": 0.2, "method": "losses"}
        weights = _mask(batch) / _mask(batch).sum(1, keepdims=True)
        smoothed, _ = tiny.model.apply({"params": params}, batch, **options)
        return (smoothed * weights).sum() / (weights.sum() / 3)

    logits = np.asarray(jax.jit(tiny.model.apply)({"params": params}, batch), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real, targets = batch.targets.segments != 0, batch.targets.tokens
    right = np.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    sentences = (-(0.8 * right + 0.2 * log_p.mean(-1)) * real).sum(1) / real.sum(1)
    correct = (log_p.argmax(-1) == targets) & real
    _, metrics = _losses(tiny, batch, r_drop, accuracy, count=1)
    _assert_near(metrics.pairs["loss"], (sentences.sum(), len(sentences) / 3))
    _assert_near(metrics.pairs["accuracy"], (correct.sum(), real.sum()))
    gradient = jax.grad(expected)(params, batch)
    norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(gradient)))
    assert metrics.gradient_norm == pytest.approx(norm, rel=1e-4)


def test_passes_change_no_loss_metric_and_parameter_dropout_included(calm, batch):
    whole = _losses(calm, batch, r_drop, accuracy)
    _assert_near(_losses(calm, batch, r_drop, accuracy, tokens=18), whole)


def on_meshes():
    """Compare meshes of 8 devices with one device."""
    config = make_config(24)
    model = make_model(config, 24, None)
    start = jax.device_get(jax.jit(partial(init_state, config, model))())
    results = []
    for parallel in (
        {"data": 1},
        {"data": 4, "tensor": 2, "tokens_per_device": 16},
        {"data": 2, "fsdp": 4},
        {"data": 8, "backend": "pmap", "tokens_per_device": 8},
    ):
        config = make_config(24, **{f"parallel__{name}": n for name, n in parallel.items()})
        config = with_parts(config, {"training.loss": r_drop})
        mesh = make_mesh(config.parallel, jax.devices()[: 8 if results else 1])
        model = make_model(config, 24, mesh)
        shards = jax.tree.map(lambda x: x.sharding, abstract_state(config, model, mesh))
        layout = batch_layout(mesh, 13, 8, config.parallel.tokens_per_device)
        step = compile_train_step(config, model, mesh, accuracy)
        results.append(_trained(step, jax.device_put(start, shards), layout.put(make_batch(24))))
    for result in results[1:]:
        _assert_near(result, results[0])


@pytest.mark.thorough
def test_devices_change_no_loss_metric_and_parameter_dropout_included():
    on_eight_devices("on_meshes", file=__file__)


def test_the_decoder_runs_once_for_metrics_and_logits_only_if_they_are_read(tiny, batch):
    def matmuls(*functions):
        step = _compiled(tiny, *functions)
        text = step.lower(abstract_state(*tiny), tiny.put(batch)).as_text()
        return len(re.findall("dot_general", text))

    paper = matmuls()
    assert matmuls(None, lambda outputs, batch: {"nats": (outputs.losses[1].sum(), 1)}) == paper
    assert matmuls(None, accuracy) == paper + 1


def _returning(value):
    return lambda *_: value


def _failing(*_):
    raise KeyError("absent")


_PAIR = jnp.ones(()), 2.0


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ((_returning(_PAIR[0]),), r"^loss _returning.* returns .*; return \(sum, weight\), two sc"),
        ((_returning((jnp.ones(3), 1)),), r"return \(sum, weight\), two scalars"),
        ((_failing,), r"^a training step with loss 'own_loss' fails: KeyError: 'absent'; fix"),
        ((None, _returning(_PAIR)), r"^metrics .* return a dict of \(sum, count\) by name"),
        ((None, _returning({"a": 1})), r"for a returns 1; return \(sum, count\), two scalars"),
        ((None, _returning({"a b": _PAIR})), r"{'a b': .* by name, of letters, digits"),
        ((None, _returning({"perplexity": _PAIR})), "the name perplexity, as the log itself; use"),
        ((None, lambda outputs, batch: outputs.scores), "with metrics .* fails: Attribute"),
    ],
)
def test_a_function_of_another_form_is_refused(tiny, functions, message):
    shapes = abstract_batch(batch_layout(tiny.mesh, 8, 6), tiny.model.example(), 6, 5)
    loss, metrics = (*functions, None)[:2]
    run = tiny._replace(config=with_parts(tiny.config, {"training.loss": loss}))
    with pytest.raises(UserError, match=message):
        check_functions(*run, shapes, metrics)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
