"""Attention in windows is the attention of the whole mask."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.attention import additive_scores
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.functional.position import alibi_bias
from t2t_jax.kernels.cpu import CPU
from tests.kernels.comparison import assert_close, heads_of, normal, values_and_gradients

_HEADS, _GROUPS = 4, 2
_attention = heads_of(CPU.attention)


def _arrays(length):
    rng = np.random.default_rng(0)
    shapes = (2, length, _HEADS, 4), (2, length, _GROUPS, 4), (2, length, _GROUPS, 6)
    arrays = [jnp.array(rng.normal(size=shape), jnp.float32) for shape in shapes]
    # Two sentences in the first row; one with padding in the second.
    segments = np.repeat([[1], [1]], length, axis=1)
    segments[0, length // 3 :], segments[1, -2:] = 2, 0
    return arrays, jnp.array(segments)


def _attend(mask, options, *arrays):
    terms = {}
    if "bias" in options:
        terms["bias"] = partial(alibi_bias, num_heads=_HEADS)
    if "vector" in options:
        learned = jnp.linspace(-1, 1, _HEADS * 4).reshape(_HEADS, 4)
        terms["score"] = jax.tree_util.Partial(additive_scores, vector=learned)
    return _attention(*arrays, mask, **terms)


@pytest.mark.parametrize(
    ("causal", "window", "length", "options"),
    [
        (True, 1, 7, ()),
        (True, 3, 12, ("bias",)),
        (True, 4, 23, ("vector", "bias")),
        (False, 1, 5, ("bias",)),
        (False, 3, 20, ()),
        (False, 5, 16, ("bias",)),
    ],
)
def test_values_and_derivatives_are_those_of_the_whole(causal, window, length, options):
    arrays, segments = _arrays(length)
    mask, cotangent = SegmentMask(segments, segments, causal, window), normal(1, 2, length, 4, 6)
    assert mask.is_narrow
    found, expected = (
        values_and_gradients(partial(_attend, form, options), arrays, cotangent)
        for form in (mask, mask.dense())
    )
    assert_close(found, expected, rtol=1e-5, atol=2e-6)


def test_a_mask_is_true_within_the_window_and_the_sentence():
    segments = jnp.array([[1, 1, 1, 1, 2, 0]])
    causal = SegmentMask(segments, segments, causal=True, window=2).dense()[0, 0]
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(causal, np.array(expected, bool))
    both = SegmentMask(segments, segments, window=2).dense()[0, 0]
    np.testing.assert_array_equal(both, np.array(expected, bool) | np.array(expected, bool).T)


def test_dropout_in_windows_does_not_depend_on_how_rows_are_cut_up():
    arrays, segments = _arrays(12)
    *arrays, segments = (np.concatenate([x, x]) for x in (*arrays, segments))

    @jax.jit
    def attend(arrays, segments, first_row):
        key = DropoutKey(jax.random.key(3), first_row)
        mask = SegmentMask(segments, segments, True, 3)
        return _attention(*arrays, mask, dropout_rate=0.5, dropout_key=key)

    def heads(rows):
        part = [x[rows] for x in arrays]
        return np.asarray(attend(part, segments[rows], np.int32(rows.start)))

    whole = heads(slice(0, 4))
    np.testing.assert_array_equal(heads(slice(2, 4)), whole[2:])
    assert np.any(whole[:2] != whole[2:])  # equal rows drop weights of their own
