"""Activations whose derivative is found from their result are the functions that they stand for."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Context, FeedForward
from t2t_jax.config import network_config
from t2t_jax.kernels.recomputed import relu_from_result
from t2t_jax.kernels.reference import REFERENCE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_derivatives_are_those_of_relu_to_the_last_bit(dtype):
    x = jnp.array([-np.inf, -2.5, -1e-30, -0.0, 0.0, 1e-30, 3.25, np.inf], dtype)
    for function in (jax.jit, lambda f: jax.jit(jax.vmap(jax.grad(f)))):
        np.testing.assert_array_equal(function(relu_from_result)(x), function(jax.nn.relu)(x))
    assert np.isnan(relu_from_result(jnp.array(jnp.nan)))


@pytest.mark.parametrize(("activation", "is_replaced"), [("relu", True), ("gelu", False)])
def test_a_preset_replaces_relu_and_no_other_activation(activation, is_replaced):
    network = FeedForward(network_config(d_model=4, num_heads=1, feed_forward=activation))
    context = Context(kernels=replace(REFERENCE, relu=jnp.zeros_like))
    output, _ = network.init_with_output(jax.random.key(0), jnp.ones((1, 2, 4)), context)
    assert output.any() != is_replaced
