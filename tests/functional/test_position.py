import math

import numpy as np
import pytest

from t2t_jax.functional.position import sinusoidal_positions


@pytest.mark.parametrize("d_model", [4, 512])
def test_even_columns_are_sines_and_odd_columns_cosines(d_model):
    table = sinusoidal_positions(1001, d_model)
    assert table.shape == (1001, d_model)
    for pos in (0, 1, 2, 17, 255, 1000):
        for i in {0, 1, d_model // 3, d_model // 2 - 1}:
            angle = pos / 10_000 ** (2 * i / d_model)
            # float32 holds an angle of 1000 to 6e-5.
            assert table[pos, 2 * i] == pytest.approx(math.sin(angle), abs=1e-4)
            assert table[pos, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-4)


def test_first_two_positions_written_out():
    # d_model = 4: the frequencies are 1 and 1/100.
    expected = [[0, 1, 0, 1], [0.84147098, 0.54030231, 0.00999983, 0.99995000]]
    np.testing.assert_allclose(sinusoidal_positions(2, 4), expected, atol=1e-7)


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
        rotation = [
            [math.cos(angle), math.sin(angle)],
            [-math.sin(angle), math.cos(angle)],
        ]
        pair = table[:, 2 * i : 2 * i + 2]
        np.testing.assert_allclose(pair[shift:], pair[:-shift] @ np.transpose(rotation), atol=5e-5)
