"""Losses in a file of a user: against NumPy, and in a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Batch, train
from t2t_jax.workdir import read_config
from tests.examples.loading import load_example
from tests.trained import records_of

BATCH = Batch.of([[5, 1], [6, 1]], [[4, 3, 1], [2, 1]])
LOGITS = np.random.default_rng(0).normal(size=(2, 2, 3, 7))


@pytest.fixture
def example(tables):
    return load_example("own_loss")


def _log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _cross_entropy(log_p):
    rows = [(0, 0, 4), (0, 1, 3), (0, 2, 1), (1, 0, 2), (1, 1, 1)]
    return sum(-0.9 * log_p[b, t, token] - 0.1 * log_p[b, t].mean() for b, t, token in rows)


def test_r_drop_equals_numpy(example):
    key = jax.random.key(3)
    first, second = map(jax.random.key_data, jax.random.split(key))

    def apply(batch, key):
        is_first = (jax.random.key_data(key) == first).all()
        return jnp.asarray(LOGITS[0] if is_first else LOGITS[1], jnp.float32)

    assert (first != second).any()
    log_p, log_q = map(_log_softmax, LOGITS)
    p, q = np.exp(log_p), np.exp(log_q)
    kl = (p * (log_p - log_q)).sum(-1) + (q * (log_q - log_p)).sum(-1)
    expected = (_cross_entropy(log_p) + _cross_entropy(log_q)) / 2
    expected += 3.0 / 4 * (kl.sum() - kl[1, 2])  # which is padding
    total, weight = example.RDrop(alpha=3.0)(apply, BATCH, key)
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert weight == 5


def test_z_loss_equals_numpy(example):
    log_z = np.log(np.exp(LOGITS[0]).sum(-1))
    squares = 1e-4 * ((log_z**2).sum() - log_z[1, 2] ** 2)
    total, weight = example.z_loss(lambda *_: jnp.asarray(LOGITS[0], jnp.float32), BATCH, None)
    assert float(total) == pytest.approx(
        _cross_entropy(_log_softmax(LOGITS[0])) + squares, rel=1e-5
    )
    assert weight == 5


def test_without_dropout_r_drop_is_the_loss_of_the_paper(example, tiny_run, tmp_path, monkeypatch):
    config = tiny_run.config.replace({"model.dropout_rate": 0.0, "evaluation.every_steps": 3})
    monkeypatch.setattr(example, "load_config", lambda _: config)
    example.main(str(tmp_path / "run"), num_train_steps=3, alpha=2.0)
    assert read_config(tmp_path / "run").training.loss == "r_drop(alpha=2.0)"
    train(config.replace({"training.num_train_steps": 3}), tmp_path / "paper")
    losses, expected = (
        [record["loss"] for record in records_of(tmp_path / name, "train")]
        for name in ("run", "paper")
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
