"""The sums of the loss in one reduction are those of several."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.kernels.cross_entropy import cross_entropy
from t2t_jax.kernels.normalizer import (
    greatest_in_one_pass,
    in_one_pass,
    in_passes,
    within_the_product,
)

_RNG = np.random.default_rng(0)
_LOGITS = {
    "usual": 4 * _RNG.normal(size=(3, 5, 1001)),
    "one entry": _RNG.normal(size=(4, 1)),
    "equal": np.full((2, 300), 2.5),
    "huge": np.array([[1e4, 9e3, -1e4], [-2e4, -2e4, -2e4]]),
    "ascending": np.arange(-50.0, 50.0)[None],
}


@pytest.mark.parametrize("logits", _LOGITS.values(), ids=_LOGITS)
def test_sums_are_those_of_float64(logits):
    most = logits.max(-1, keepdims=True)
    expected = most[..., 0] + np.log(np.exp(logits - most).sum(-1)), logits.mean(-1)

    def check(normalizer, *near):
        found = jax.jit(normalizer)(jnp.array(logits, jnp.float32), *near)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == jnp.float32
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)

    check(in_one_pass)
    check(in_passes)
    for apart in (-1e5, -300, -60, 0, 1, 60, 300, 1e5):  # near or not
        check(within_the_product, jnp.array(most[..., 0] + apart, jnp.float32))


@pytest.mark.parametrize("logits", _LOGITS.values(), ids=_LOGITS)
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_the_greatest_choice_is_found_beside_the_sum(logits, share):
    logits = jnp.array(logits, jnp.float32)
    forbidden = np.random.default_rng(1).random(logits.shape) < share
    choices = jnp.where(forbidden, -jnp.inf, logits)
    place, log_sum = jax.jit(greatest_in_one_pass)(logits, choices)
    np.testing.assert_array_equal(place, jnp.argmax(choices, axis=-1))  # the first of equal ones
    np.testing.assert_allclose(log_sum, jax.nn.logsumexp(logits, axis=-1), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(bad):
    logits = jnp.array(_LOGITS["usual"], jnp.float32).at[1, 2, 3].set(bad)
    for normalizer, near in ((in_one_pass, ()), (within_the_product, (logits[..., 0],))):
        log_sum, mean = jax.jit(normalizer)(logits, *near)
        assert not np.isfinite(log_sum[1, 2])
        assert not np.isfinite(mean[1, 2])
        assert np.isfinite(np.delete(np.asarray(log_sum).ravel(), 1 * 5 + 2)).all()


def test_losses_and_gradients_do_not_depend_on_how_the_sums_are_found():
    logits = jnp.array(_LOGITS["usual"], jnp.float32)
    targets = jnp.array(_RNG.integers(0, 1001, (3, 5)))

    def of(*options):
        def total(logits):
            losses = cross_entropy(logits, targets, 0.1, *options)
            return sum(loss.sum() for loss in losses), losses

        return jax.grad(total, has_aux=True)(logits)

    other, expected = of(in_passes)
    for options in ([in_one_pass], [within_the_product, jnp.ones((3, 5))]):
        one, losses = of(*options)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(losses, expected, rtol=1e-6)
