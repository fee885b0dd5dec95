"""Dropout whose derivative finds the dropped elements again drops those of the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.dropout import DropoutKey, dropout
from t2t_jax.kernels.recomputed import dropout_recomputed
from tests.kernels.comparison import values_and_gradients


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 7, 5), (6, 3), (3,)])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.7])
def test_values_and_derivatives_are_those_of_the_formula_to_the_last_bit(shape, rate, dtype):
    rng = np.random.default_rng(0)
    x, weights = (jnp.array(rng.normal(size=shape), dtype) for _ in range(2))

    def both(function):
        key = DropoutKey(jax.random.key(3), jnp.int32(5))
        return values_and_gradients(lambda x: function(x, rate, key), [x], weights)

    for ours, theirs in zip(both(dropout_recomputed), both(dropout), strict=True):
        assert ours.dtype == theirs.dtype == x.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_without_a_key_nothing_is_dropped():
    x = jnp.ones((2, 3))
    assert dropout_recomputed(x, 0.5, None) is x
