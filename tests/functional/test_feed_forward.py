import jax
import jax.numpy as jnp
import numpy as np

from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.feed_forward import position_wise_feed_forward

_EYE, _ZEROS = jnp.eye(4), jnp.zeros(4)


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


def test_equation_2_holds_at_every_position():
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 4), (4, 8), (8,), (8, 4), (4,)]
    x, w_1, b_1, w_2, b_2 = (rng.normal(size=shape) for shape in shapes)
    narrow = (jnp.array(a, jnp.float32) for a in (x, w_1, b_1, w_2, b_2))
    output = position_wise_feed_forward(*narrow)
    for b, t in np.ndindex(2, 3):
        hidden = np.maximum(0, x[b, t] @ w_1 + b_1)
        np.testing.assert_allclose(output[b, t], hidden @ w_2 + b_2, rtol=1e-5, atol=1e-5)


def test_dropout_is_on_the_hidden_activations_before_the_second_product():
    # With identity kernels and b_2 = 1, dropped activations leave exactly b_2.
    x = jnp.full((8, 32, 4), 3.0)
    output = position_wise_feed_forward(
        x,
        _EYE,
        _ZEROS,
        _EYE,
        jnp.ones(4),
        dropout_rate=0.5,
        dropout_key=DropoutKey(jax.random.key(0)),
    )
    assert set(np.unique(output)) == {1.0, 7.0}
