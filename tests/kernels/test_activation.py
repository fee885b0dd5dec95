"""Activations whose derivative is found from their result are the functions that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.kernels.recomputed import activation_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_derivatives_are_those_of_relu_to_the_last_bit(dtype):
    x = jnp.array([-np.inf, -2.5, -1e-30, -0.0, 0.0, 1e-30, 3.25, np.inf], dtype)
    ours = activation_of(jax.nn.relu, "from_results")
    assert ours is not jax.nn.relu
    for function in (jax.jit, lambda f: jax.jit(jax.vmap(jax.grad(f)))):
        np.testing.assert_array_equal(function(ours)(x), function(jax.nn.relu)(x))
    assert np.isnan(ours(jnp.array(jnp.nan)))


def test_other_functions_and_the_plain_form_stay():
    assert activation_of(jax.nn.gelu, "from_results") is jax.nn.gelu
    assert activation_of(jax.nn.relu, "plain") is jax.nn.relu
