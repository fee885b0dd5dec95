"""The loss with a derivative that is written out, and of logits that need not exist at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.cross_entropy import cross_entropy, in_chunks
from tests.functional.test_loss import EPSILONS, example
from tests.kernels.comparison import assert_close


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("outputs", ["smoothed", "nll", "both"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("factor", [1, 1e4])  # which makes most probabilities 0
def test_losses_and_their_derivative_are_those_of_the_formula(epsilon, outputs, dtype, factor):
    logits, targets = example()
    cotangents = [
        jnp.array(c, jnp.float32) for c in np.random.default_rng(1).normal(size=(2, 2, 3))
    ]
    if outputs != "both":
        cotangents[outputs == "smoothed"] = jnp.zeros((2, 3))

    def values_and_gradient(loss):
        narrow = (factor * logits).astype(dtype)
        losses, pull_back = jax.vjp(lambda x: loss(x, targets, epsilon), narrow)
        return *losses, *pull_back(tuple(cotangents))

    found = values_and_gradient(cross_entropy)
    expected = values_and_gradient(label_smoothed_cross_entropy)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    assert found[2].dtype == dtype
    near = 1e-6 if dtype == jnp.float32 else 2**-7
    assert_close(found[:2], expected[:2], rtol=1e-6, atol=1e-6)
    assert_close(found[2:], expected[2:], rtol=near, atol=1e-6)


def _projected_example():
    rng = np.random.default_rng(3)
    x = jnp.array(rng.normal(size=(3, 16, 6)), jnp.float32)
    embedding = jnp.array(rng.normal(size=(13, 6)), jnp.float32)
    cotangents = tuple(jnp.array(rng.normal(size=(2, 3, 16)), jnp.float32))
    return x, embedding, jnp.array(rng.integers(0, 13, (3, 16))), cotangents


def _naive(logits, targets, epsilon):
    """Both losses as sums over the vocabulary against an explicit distribution."""
    log_p = jax.nn.log_softmax(logits)
    one_hot = jax.nn.one_hot(targets, logits.shape[-1])
    smoothed = (1 - epsilon) * one_hot + epsilon / logits.shape[-1]
    return -(smoothed * log_p).sum(-1), -(one_hot * log_p).sum(-1)


def _projected_naive(x, embedding, targets):
    return _naive(jnp.einsum("btd,vd->btv", x, embedding), targets, 0.1)


def _projected(x, embedding, targets, num_chunks):
    options = {"embedding": embedding, "bias": None, "epsilon": 0.1, "is_training": True}
    return in_chunks(partial(CPU.losses, **options), num_chunks)(x, targets=targets)


@partial(jax.jit, static_argnums=0)
def _with_gradients(losses, x, embedding, targets, cotangents):
    values, pull_back = jax.vjp(lambda x, embedding: losses(x, embedding, targets), x, embedding)
    return values, pull_back(cotangents)


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 8])
def test_projected_losses_and_gradients_are_the_naive_ones_in_any_chunks(num_chunks):
    x, embedding, targets, cotangents = _projected_example()
    losses = partial(_projected, num_chunks=num_chunks)
    values, gradients = _with_gradients(losses, x, embedding, targets, cotangents)
    expected = _with_gradients(_projected_naive, x, embedding, targets, cotangents)
    for got, plain in zip((*values, *gradients), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, plain, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("num_chunks", [1, 4])
def test_bfloat16_activations_give_float32_losses_and_float32_gradients_of_the_matrix(num_chunks):
    x, embedding, targets, cotangents = _projected_example()
    losses = partial(_projected, num_chunks=num_chunks)
    narrow = x.astype(jnp.bfloat16)
    values, gradients = _with_gradients(losses, narrow, embedding, targets, cotangents)
    expected = _with_gradients(_projected_naive, x, embedding, targets, cotangents)
    assert [value.dtype for value in values] == [jnp.float32, jnp.float32]
    assert [gradient.dtype for gradient in gradients] == [jnp.bfloat16, jnp.float32]
    for got, wide in zip((*values, *gradients), jax.tree.leaves(expected), strict=True):
        error = np.abs(got.astype(jnp.float32) - wide).max()
        assert 0 < error < 0.02 * np.abs(wide).max()


def test_in_chunks_the_logits_never_exist_all_at_once():
    x, embedding, targets, cotangents = _projected_example()
    for num_chunks, whole in ((1, True), (4, False)):
        losses = partial(_projected, num_chunks=num_chunks)
        text = _with_gradients.lower(losses, x, embedding, targets, cotangents).as_text()
        assert ("tensor<3x16x13xf32>" in text) == whole
        assert "tensor<4x3x4x13xf32>" not in text  # nor as what a loop leaves for another
