"""Batches that are made of plain ids."""

import jax
import numpy as np
import pytest

from t2t_jax import Batch, UserError


def test_lists_and_padded_arrays_of_ids_make_the_same_batch():
    lists = Batch.of([[5, 6, 1], [7, 1]], [[8, 1], [9, 4, 3, 1]])
    arrays = Batch.of(
        np.array([[5, 6, 1], [7, 1, 0]]), np.array([[8, 1, 0, 0], [9, 4, 3, 1]], np.int64)
    )
    jax.tree.map(np.testing.assert_array_equal, lists, arrays)
    assert lists.inputs.tokens.tolist() == [[5, 6, 1], [7, 1, 0]]
    assert lists.inputs.segments.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert lists.targets.positions.tolist() == [[0, 1, 2, 3]] * 2


def test_a_decoder_alone_needs_no_sources():
    batch = Batch.of(None, [[8, 1], [9, 1]])
    assert batch.inputs.tokens.shape == (2, 0)


@pytest.mark.parametrize("ids", [5, "ab", [5, 6], [[[5]]], [[5.5]], [["a"]], np.zeros((2, 3)), {}])
def test_what_are_no_ids_is_refused(ids):
    with pytest.raises(UserError, match="inputs is not a list of ids for each sentence"):
        Batch.of(ids, [[8, 1]])


def test_sides_of_different_numbers_are_refused():
    with pytest.raises(UserError, match="inputs has 1 rows and targets 2"):
        Batch.of([[5, 1]], [[8, 1], [9, 1]])
