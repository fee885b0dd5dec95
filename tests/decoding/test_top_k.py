"""The greatest of many numbers, against a stable sort."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.decoding.search.reductions import top_k


def _sorted(x, k):
    """NumPy's: of equal numbers, the first."""
    places = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, places, axis=-1), places


# Rows that are cut evenly into blocks, with a rest, and that are too short to be cut.
@pytest.mark.parametrize(
    ("length", "k"),
    [(1, 1), (7, 7), (64, 1), (65, 1), (97, 3), (256, 8), (300, 8), (1009, 2), (4000, 8)],
)
def test_it_is_what_a_stable_sort_puts_first(length, k):
    rng = np.random.default_rng(length)
    distinct = rng.permuted(np.tile(np.arange(length), (2, 3, 1)), axis=-1)
    few = rng.integers(0, 3, (2, 3, length))  # most are equal
    ascending = np.broadcast_to(np.arange(length), (2, 3, length))
    some_impossible = np.where(rng.random((2, 3, length)) < 0.9, -np.inf, few)
    found = jax.jit(partial(top_k, k=k))
    for x in (distinct, few, ascending, some_impossible, np.full((2, 3, length), -np.inf)):
        values, places = _sorted(x.astype(np.float32), k)
        got = found(x.astype(np.float32))
        np.testing.assert_array_equal(got[0], values)
        np.testing.assert_array_equal(got[1], places)


def test_without_batch_axes():
    values, places = top_k(jnp.float32([3, 1, 4, 1, 5, 9, 2, 6] * 20), 2)
    assert (values.tolist(), places.tolist()) == ([9, 9], [5, 13])
