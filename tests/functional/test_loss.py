from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.loss import label_smoothed_cross_entropy

EPSILONS = [0.0, 0.1, 0.5]


def example(vocab=11, shape=(2, 3)):
    """Logits and targets."""
    rng = np.random.default_rng(0)
    logits = jnp.array(4 * rng.normal(size=(*shape, vocab)), jnp.float32)
    return logits, jnp.array(rng.integers(0, vocab, shape))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_losses_equal_their_definition_in_float64(epsilon):
    logits, targets = example()
    wide = np.exp(np.asarray(logits, np.float64))
    p = wide / wide.sum(-1, keepdims=True)
    one_hot = np.eye(11)[targets]
    q = (1 - epsilon) * one_hot + epsilon / 11

    smoothed, nll = label_smoothed_cross_entropy(logits, targets, epsilon)
    np.testing.assert_allclose(smoothed, -(q * np.log(p)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(nll, -np.log((one_hot * p).sum(-1)), rtol=1e-5, atol=1e-6)


def test_smoothed_gradient_vanishes_at_the_smoothed_distribution():
    # The minimum of the smoothed loss is where softmax(logits) is the smoothed one-hot vector.
    logits = jnp.log(jnp.array([0.9 + 0.1 / 4, 0.1 / 4, 0.1 / 4, 0.1 / 4]))
    gradient = jax.grad(lambda x: label_smoothed_cross_entropy(x, jnp.array(0), 0.1)[0])(logits)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_huge_logits_stay_finite():
    logits, targets = jnp.array([[1e4, -1e4, 0.0]]), jnp.array([1])
    smoothed, nll = label_smoothed_cross_entropy(logits, targets, 0.3)
    np.testing.assert_allclose(nll, 2e4, rtol=1e-6)
    np.testing.assert_allclose(smoothed, 0.7 * 2e4 + 0.3 * 1e4, rtol=1e-6)


def test_bfloat16_logits_give_float32_losses():
    logits, targets = example()
    narrow = logits.astype(jnp.bfloat16)
    losses = label_smoothed_cross_entropy(narrow, targets, 0.1)
    expected = label_smoothed_cross_entropy(narrow.astype(jnp.float32), targets, 0.1)
    assert [loss.dtype for loss in losses] == [jnp.float32, jnp.float32]
    np.testing.assert_array_equal(losses, expected)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_loss_and_gradient_equal_those_of_pytorch(epsilon):
    # Written by tests/goldens/make_transformer_goldens.py.
    with np.load(Path(__file__).parents[1] / "goldens" / "transformer.npz") as goldens:
        names = "logits", "targets", "cotangent", f"smoothed_{epsilon}", f"gradient_{epsilon}"
        logits, targets, cotangent, smoothed, gradient = (
            jnp.array(goldens[f"loss/{name}"]) for name in names
        )
    losses, pull_back = jax.vjp(
        lambda x: label_smoothed_cross_entropy(x, targets, epsilon)[0], logits
    )
    np.testing.assert_allclose(losses, smoothed, rtol=1e-5)
    np.testing.assert_allclose(pull_back(cotangent)[0], gradient, atol=1e-6)
