import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.feed_forward import gated_feed_forward, position_wise_feed_forward
from tests.modules.numpy_transformer import GATES, activation

_EYE, _ZEROS = jnp.eye(4), jnp.zeros(4)
_DROPOUT = {"dropout_rate": 0.5, "dropout_key": DropoutKey(jax.random.key(0))}


def _narrow(*arrays):
    return [jnp.array(array, jnp.float32) for array in arrays]


def test_one_position_worked_by_hand():
    # x W_1 + b_1 = (1, 2) [[1, 0, 1], [0, 1, -1]] + (0, -3, 0.5) = (1, -1, -0.5)
    # max(0, .)   = (1, 0, 0)
    # . W_2 + b_2 = (4, 5) + (0.5, -0.5) = (4.5, 4.5)
    output = position_wise_feed_forward(
        jnp.array([[[1.0, 2.0]]]),
        jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, -1.0]]),
        jnp.array([0.0, -3.0, 0.5]),
        jnp.array([[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]),
        jnp.array([0.5, -0.5]),
    )
    np.testing.assert_array_equal(output, [[[4.5, 4.5]]])


def test_equation_2_holds_at_every_position_and_is_two_convolutions_with_kernels_of_size_1():
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 4), (4, 8), (8,), (8, 4), (4,)]
    x, w_1, b_1, w_2, b_2 = (rng.normal(size=shape) for shape in shapes)
    output = position_wise_feed_forward(*_narrow(x, w_1, b_1, w_2, b_2))
    for b, t in np.ndindex(2, 3):
        hidden = np.maximum(0, x[b, t] @ w_1 + b_1)
        np.testing.assert_allclose(output[b, t], hidden @ w_2 + b_2, rtol=1e-5, atol=1e-5)

    def convolution(x, kernel, bias):
        layout = ("NWC", "WIO", "NWC")
        x, kernel, bias = _narrow(x, kernel[None], bias)
        y = jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=layout)
        return y + bias

    expected = convolution(jnp.maximum(0, convolution(x, w_1, b_1)), w_2, b_2)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def test_dropout_is_on_the_hidden_activations_before_the_second_product():
    # With identity kernels and b_2 = 1, dropped activations leave exactly b_2.
    x = jnp.full((8, 32, 4), 3.0)
    output = position_wise_feed_forward(x, _EYE, _ZEROS, _EYE, jnp.ones(4), **_DROPOUT)
    assert set(np.unique(output)) == {1.0, 7.0}


@pytest.mark.parametrize("kind", ["relu", "gelu", "gelu_tanh", "silu", *GATES])
def test_activations_are_those_of_their_definitions(kind):
    x = np.linspace(-6, 6, 49)
    expected = activation(GATES.get(kind, kind), x)
    found = ACTIVATIONS[kind].load()(jnp.array(x, jnp.float32))
    # The approximation of gelu by tanh is off by 5e-4.
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_activation_of_equation_2_may_be_another():
    hidden = jnp.array([[[-1.0, 0.5, 2.0, -3.0]]])
    layer = _EYE, _ZEROS, _EYE, jnp.ones(4)
    output = position_wise_feed_forward(hidden, *layer, activation=jax.nn.silu)
    expected = activation("silu", np.float64(hidden)) + 1
    np.testing.assert_allclose(output, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_a_gated_network_is_equation_6_at_every_position(kind):
    rng = np.random.default_rng(0)
    x, w, v, w_2 = (rng.normal(size=shape) for shape in ((2, 3, 4), (4, 8), (4, 8), (8, 4)))
    output = gated_feed_forward(*_narrow(x, w, v, w_2), activation=ACTIVATIONS[kind].load())
    expected = (activation(GATES[kind], x @ w) * (x @ v)) @ w_2
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def test_dropout_of_a_gated_network_is_on_the_product_with_the_gate():
    x = jnp.full((8, 32, 4), 3.0)
    output = gated_feed_forward(x, _EYE, _EYE, _EYE, activation=jax.nn.relu, **_DROPOUT)
    assert set(np.unique(output)) == {0.0, 18.0}
