"""Layer normalisation that keeps its moments is the formula, and so are its derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional import normalization
from t2t_jax.kernels.normalization import layer_norm
from tests.kernels.comparison import assert_close, values_and_gradients

_RNG = np.random.default_rng(0)
_VECTORS = {
    "usual": _RNG.normal(size=(3, 5, 64)),
    "odd width": 7 * _RNG.normal(size=(4, 37)) - 2,
    "far from zero": 1000 + _RNG.normal(size=(2, 256)),
    "constant": np.full((2, 8), 3.25),
    "one number": _RNG.normal(size=(3, 1)),
    "one vector": _RNG.normal(size=(512,)),
    "tiny": 1e-4 * _RNG.normal(size=(2, 3, 64)),
    "huge": 1e4 * _RNG.normal(size=(2, 3, 64)),
}


def _learned(width):
    rng = np.random.default_rng(1)
    return [jnp.array(rng.normal(size=width), jnp.float32) for _ in range(2)]


@pytest.mark.parametrize("x", _VECTORS.values(), ids=_VECTORS)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3])
@pytest.mark.parametrize(("norm", "near"), [(normalization.layer_norm, 1e-7), (layer_norm, 2e-4)])
def test_vectors_are_those_of_the_formula_in_float64(norm, near, x, epsilon):
    x = x.astype(np.float32).astype(np.float64)
    scale, bias = _learned(x.shape[-1])
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias
    found = jax.jit(norm, static_argnums=3)(jnp.array(x, jnp.float32), scale, bias, epsilon)
    np.testing.assert_allclose(found, expected, rtol=near, atol=2e-4)


def test_vectors_whose_squares_overflow_are_those_of_the_formula():
    x = jnp.array([[1e30, -3e30, 2e30, 5e29]])
    arrays = x, *_learned(4), 1e-6
    np.testing.assert_array_equal(layer_norm(*arrays), normalization.layer_norm(*arrays))


def test_moments_by_sums_of_numbers_in_bfloat16_are_no_less_exact():
    learned = _learned(64)
    for far in (0, 1, 30, 250):
        x = jnp.array(far + np.random.default_rng(3).normal(size=(50, 64)), jnp.bfloat16)
        exact = layer_norm(x.astype(jnp.float32), *learned, 1e-6)
        one, other = (layer_norm(x, *learned, 1e-6, form) for form in (False, True))
        np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (other, one)), atol=0.04)
        worst = [abs(np.asarray(y, np.float32) - exact).max() for y in (one, other)]
        assert worst[1] < 1.1 * worst[0]


@pytest.mark.parametrize("plain_sums", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["usual", "odd width", "one vector"])
def test_derivatives_are_those_that_jax_finds_of_the_formula(name, dtype, plain_sums):
    x = jnp.array(_VECTORS[name], dtype)
    weights = jnp.array(np.random.default_rng(2).normal(size=x.shape), jnp.float32)

    def of(norm):
        arrays = x, *_learned(x.shape[-1])
        return values_and_gradients(partial(norm, epsilon=1e-6), arrays, weights)

    found = of(partial(layer_norm, plain_sums=plain_sums))
    expected = of(normalization.layer_norm)
    assert [one.dtype for one in found] == [one.dtype for one in expected]
    near = 1e-4 if dtype == "float32" else 2e-2
    assert_close(found, expected, rtol=near, atol=near)
