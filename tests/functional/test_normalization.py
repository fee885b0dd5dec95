import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.normalization import layer_norm, rms_norm


def test_constant_vector_gives_the_bias_and_a_finite_gradient():
    x, bias = jnp.full((1, 8), 5.0), jnp.arange(8.0)
    np.testing.assert_array_equal(layer_norm(x, jnp.ones(8), bias), bias[None])
    gradient = jax.grad(lambda x: jnp.square(layer_norm(x, jnp.ones(8), bias)).sum())(x)
    assert np.all(np.isfinite(gradient))


def test_bfloat16_is_computed_in_float32_and_returned_as_bfloat16():
    # In bfloat16 arithmetic the mean of 256 and 258 would be lost.
    x = jnp.array([256, 258, 256, 258], jnp.bfloat16)
    output = layer_norm(x, jnp.ones(4), jnp.zeros(4))
    assert output.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(output, np.float32), [-1, 1, -1, 1])


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2, 3.0])
def test_epsilon_is_added_to_the_variance_and_to_the_mean_of_squares(epsilon):
    x = jnp.array([2.0, 4.0])  # mean 3, variance 1, mean of squares 10
    ones = jnp.ones(2)
    expected = np.array([-1, 1]) / np.sqrt(1 + epsilon)
    np.testing.assert_allclose(layer_norm(x, ones, jnp.zeros(2), epsilon), expected, rtol=1e-6)
    expected = np.array([2, 4]) / np.sqrt(10 + epsilon)
    np.testing.assert_allclose(rms_norm(x, ones, epsilon), expected, rtol=1e-6)


def test_rms_norm_of_zeros_is_zero_with_a_finite_gradient_and_keeps_the_dtype():
    zeros = jnp.zeros((1, 4))
    gradient = jax.grad(lambda x: rms_norm(x, jnp.ones(4)).sum())(zeros)
    assert np.all(np.isfinite(gradient))
    # In bfloat16, the squares of 256 and 258 would have a wrong mean.
    x = jnp.array([256, -258, 256, -258], jnp.bfloat16)
    normed = rms_norm(x, jnp.full(4, 257.0))
    assert normed.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(normed, np.float32), [256, -258, 256, -258])
