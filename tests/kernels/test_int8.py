"""Matrices of 8-bit integers."""

import hypothesis.extra.numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.int8 import Int8Matrix, int8_product
from t2t_jax.kernels.int8 import quantize as quantize_by_operation
from tests.kernels.comparison import normal

linear, next_logits = jax.jit(CPU.linear), jax.jit(CPU.next_logits)
quantize = jax.jit(quantize_by_operation, static_argnames="axis")


def _quantized(matrix, axis):
    return Int8Matrix(*quantize(matrix, axis))


def test_integers_by_hand():
    # The greatest in magnitude becomes 127; the others are 31.75 and 63.5 of its 127ths.
    values, scales = quantize(jnp.array([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0]]), axis=-1)
    np.testing.assert_array_equal(values, [[32, -127, 64], [0, 0, 0]])
    np.testing.assert_allclose(scales[0], 2 / 127, rtol=1e-6)
    assert values.dtype == jnp.int8
    by_column, scales = quantize(jnp.array([[0.5, -2.0, 1.0], [0.25, 1.0, 1.0]]), axis=0)
    np.testing.assert_array_equal(by_column, [[127, -127, 127], [64, 64, 127]])
    np.testing.assert_allclose(scales, np.array([[0.5, 2.0, 1.0]]) / 127, rtol=1e-6)


_FLOATS = st.floats(-1e6, 1e6, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20)


@given(arrays.arrays(np.float32, (3, 4), elements=_FLOATS))
def test_no_element_is_off_by_more_than_half_a_step(x):
    values, scales = quantize(jnp.array(x), axis=-1)
    error = np.abs(np.float64(values) * np.float64(scales) - x)
    assert (error <= np.float64(scales) * 0.5001).all()
    assert np.abs(np.int32(values)).max() <= 127


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rows", [(1, 1), (3, 1), (2, 5)])
def test_a_product_is_the_exact_product_of_the_integers_times_their_scales(axis, rows):
    x = normal(0, *rows, 300)
    matrix = _quantized(normal(1, *((300, 7) if axis == 0 else (7, 300))), axis)
    integers, scales = quantize(x, -1)
    weights = np.int64(matrix.values) if axis == 0 else np.int64(matrix.values).T
    exact = (np.int64(integers) @ weights) * np.float64(scales) * np.ravel(matrix.scales)
    got = jax.jit(int8_product, static_argnums=2)(x, matrix, axis)
    np.testing.assert_allclose(got, exact, rtol=1e-6)


def test_sums_do_not_overflow_where_all_elements_are_greatest():
    x, matrix = jnp.ones((1, 2, 8192)), _quantized(jnp.ones((8192, 3)), 0)
    np.testing.assert_allclose(int8_product(x, matrix, 0), np.full((1, 2, 3), 8192), rtol=1e-6)


def test_products_are_near_those_of_floats():
    # Rounding to 127ths of about four standard deviations: an error of 1/110 of one, uniform, in
    # each factor. Of a sum of independent products the relative error is that of one.
    x, kernel = normal(0, 4, 32, 512), normal(1, 512, 256)
    exact = np.float64(x) @ np.float64(kernel)
    error = np.float64(linear(x, _quantized(kernel, 0))) - exact
    assert 0.005 < error.std() / exact.std() < 0.02
    assert abs(error.mean()) < 0.001 * exact.std()


def test_a_vector_has_the_same_product_in_any_company():
    x, matrix = normal(0, 4, 3, 64), _quantized(normal(1, 10, 64), 1)
    together = next_logits(x, matrix)
    for b in range(4):
        np.testing.assert_array_equal(next_logits(x[b : b + 1], matrix)[0], together[b])
    alone = next_logits(x[:1, :1], matrix)
    np.testing.assert_array_equal(alone[0, 0], together[0, 0])


def test_results_have_the_dtype_of_the_vectors_and_logits_are_float32():
    x = normal(0, 1, 2, 8).astype(jnp.bfloat16)
    assert linear(x, _quantized(normal(1, 8, 4), 0)).dtype == jnp.bfloat16
    assert next_logits(x, _quantized(normal(1, 4, 8), 1)).dtype == jnp.float32


def test_what_is_not_finite_does_not_become_a_number():
    x = jnp.ones((1, 2, 4)).at[0, 0, 1].set(jnp.nan)
    product = linear(x, _quantized(normal(1, 4, 3), 0))
    assert np.isnan(product[0, 0]).all()
    assert np.isfinite(product[0, 1]).all()
