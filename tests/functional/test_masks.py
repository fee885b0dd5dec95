import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.functional.masks import causal_mask, segment_mask

_X, _O = True, False


def test_causal_mask_is_the_lower_triangle_with_its_diagonal():
    expected = [[[[_X, _O, _O], [_X, _X, _O], [_X, _X, _X]]]]
    np.testing.assert_array_equal(causal_mask(3), expected)


_rows = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@given(queries=_rows, keys=_rows)
def test_segment_mask_is_true_for_equal_numbers_above_zero(queries, keys):
    mask = segment_mask(jnp.array([queries]), jnp.array([keys]))
    assert mask.dtype == bool
    expected = [[q == k and k > 0 for k in keys] for q in queries]
    np.testing.assert_array_equal(mask[0, 0], expected)
