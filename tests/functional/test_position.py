import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.position import (
    alibi_bias,
    linear_scaling,
    ntk_scaling,
    relative_position_buckets,
    rotary_frequencies,
    rotate,
    sinusoidal_positions,
    tensor2tensor_sinusoids,
)
from tests.kernels.comparison import normal
from tests.modules.numpy_transformer import sinusoids, sinusoids_of_tensor2tensor


@pytest.mark.parametrize("d_model", [4, 512])
def test_even_columns_are_sines_and_odd_columns_cosines(d_model):
    table = sinusoidal_positions(1001, d_model)
    # float32 holds an angle of 1000 to 6e-5.
    np.testing.assert_allclose(table, sinusoids(1001, d_model), atol=1e-4)


def test_wavelengths_grow_geometrically_from_2_pi_to_almost_10000_2_pi():
    d_model = 64
    table = np.asarray(sinusoidal_positions(2, d_model), np.float64)
    frequency = np.arctan2(table[1, 0::2], table[1, 1::2])
    assert frequency[0] == pytest.approx(1, rel=1e-6)
    np.testing.assert_allclose(frequency[1:] / frequency[:-1], 10_000 ** (-2 / d_model), rtol=1e-5)


@pytest.mark.parametrize("shift", [1, 5, 100])
def test_a_shift_is_a_rotation_that_does_not_depend_on_the_position(shift):
    # "For any fixed offset k, PE(pos+k) can be represented as a linear function of PE(pos)."
    d_model = 16
    table = np.asarray(sinusoidal_positions(200, d_model), np.float64)
    for i in range(d_model // 2):
        angle = shift / 10_000 ** (2 * i / d_model)
        rotation = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        pair = table[:, 2 * i : 2 * i + 2]
        np.testing.assert_allclose(pair[shift:], pair[:-shift] @ np.transpose(rotation), atol=5e-5)


@pytest.mark.parametrize("d_model", [2, 4, 6, 64])  # of which 2 has one frequency
def test_sinusoids_of_tensor2tensor_are_sines_and_then_cosines(d_model):
    expected = sinusoids_of_tensor2tensor(101, d_model)
    np.testing.assert_allclose(tensor2tensor_sinusoids(101, d_model), expected, atol=1e-5)


_FREQUENCIES = [
    # By hand: 10000^(-2i/4); 16^(-2i/8).
    ((4,), None, [1, 1 / 100]),
    ((8, 16.0), None, [1, 1 / 2, 1 / 4, 1 / 8]),
    ((8, 16.0), partial(linear_scaling, scale=4.0), [1 / 4, 1 / 8, 1 / 16, 1 / 32]),
    # base * 8^(8/6) = 16 * 16 = 256, whose powers -2i/8 are these: the last one is divided by 8.
    ((8, 16.0), partial(ntk_scaling, scale=8.0), [1, 1 / 4, 1 / 16, 1 / 64]),
    ((8, 16.0), partial(ntk_scaling, scale=1.0), [1, 1 / 2, 1 / 4, 1 / 8]),
    ((2,), None, [1]),
    ((2,), partial(ntk_scaling, scale=4.0), [1]),
]


@pytest.mark.parametrize(("sizes", "divisors", "expected"), _FREQUENCIES)
def test_rotary_frequencies_worked_by_hand(sizes, divisors, expected):
    found = rotary_frequencies(*sizes, divisors=divisors)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_rotation_worked_by_hand():
    # Position 3: the first pair turns by 3 * pi/6, a quarter, and the second by 3 * pi/3, a half.
    x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    frequencies = jnp.array([math.pi / 6, math.pi / 3])
    turned = rotate(x, jnp.array([[3]]), frequencies)
    np.testing.assert_allclose(turned[0, 0, 0], [-2, 1, -3, -4], atol=1e-6)


def test_position_0_turns_nothing_and_the_dtype_stays():
    x = normal(0, 2, 3, 2, 8).astype(jnp.bfloat16)
    frequencies = rotary_frequencies(8)
    turned = rotate(x, jnp.zeros((2, 3), int), frequencies)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_array_equal(turned, x)
    # The angle is no bfloat16, in which 301 would be 300.
    at, wide = jnp.full((2, 3), 301), x.astype(jnp.float32)
    expected = rotate(wide, at, frequencies).astype(jnp.bfloat16)
    np.testing.assert_array_equal(rotate(x, at, frequencies), expected)


def test_the_bias_of_alibi_worked_by_hand():
    distances = np.subtract.outer(np.arange(3), np.arange(3))
    once = np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    bias = alibi_bias(jnp.array(distances), 2)
    np.testing.assert_array_equal(bias, [-once / 16, -once / 256])


def test_buckets_worked_by_hand():
    # One way of 32 has 16: 0 to 7 alone, then from 8 on doubling every second one: 8-11, 12-15,
    # 16-22, 23-31, 32-45, 46-63, 64-90, 91 and more.
    keys = jnp.array([[0, 1, 7, 8, 11, 12, 16, 22, 23, 64, 90, 91, 128, 10_000]])
    expected = np.array([0, 1, 7, 8, 8, 9, 10, 10, 11, 14, 14, 15, 15, 15])
    np.testing.assert_array_equal(relative_position_buckets(keys, bidirectional=True)[0], expected)
    behind = relative_position_buckets(-keys, bidirectional=True)[0]
    np.testing.assert_array_equal(behind[1:], 16 + expected[1:])
    np.testing.assert_array_equal(relative_position_buckets(-keys, bidirectional=False)[0], 0)


def test_no_vectors_at_all_are_turned_into_none():
    # Searches that stay open compile programs into which no sentence comes.
    turned = rotate(jnp.zeros((0, 3, 2, 4)), jnp.zeros((0, 3), jnp.int32), jnp.ones(2))
    assert turned.shape == (0, 3, 2, 4)
