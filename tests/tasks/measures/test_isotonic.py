"""Isotonic regression by hand, and against every way to cut points into blocks."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.tasks.measures.isotonic import isotonic_regression


def fitted(x, y):
    x = np.array(x, float)
    return isotonic_regression(x, np.array(y, float))(x)


def test_by_hand():
    assert fitted([1, 2, 3, 4], [1, 3, 2, 4]).tolist() == [1, 2.5, 2.5, 4]
    assert fitted([4, 3, 2, 1], [4, 2, 3, 1]).tolist() == [4, 2.5, 2.5, 1]
    assert fitted([1, 2, 3], [3, 2, 1]).tolist() == [2, 2, 2]
    assert fitted([1, 1, 2], [0, 4, 1]).tolist() == pytest.approx([5 / 3] * 3)  # weights 2 and 1
    assert fitted([5], [0.3]).tolist() == [0.3]


def test_between_the_knots_it_is_linear_and_beyond_them_constant():
    curve = isotonic_regression(np.array([0.0, 1.0, 3.0]), np.array([0.0, 1.0, 2.0]))
    assert curve(np.array([-9, 0.5, 2, 9])).tolist() == [0, 0.5, 1.5, 2]


def best_of_all_cuts(y):
    """The nondecreasing fit with the least squares among means of consecutive blocks."""
    fits = []
    for cuts in itertools.product([False, True], repeat=len(y) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(y)]
        fit = np.concatenate(
            [np.full(b - a, np.mean(y[a:b])) for a, b in itertools.pairwise(edges)]
        )
        if (np.diff(fit) >= 0).all():
            fits.append(fit)
    return min(fits, key=lambda fit: ((fit - y) ** 2).sum())


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8))
def test_no_other_nondecreasing_fit_is_nearer(y):
    np.testing.assert_allclose(fitted(range(len(y)), y), best_of_all_cuts(np.array(y, float)))
