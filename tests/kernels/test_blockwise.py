"""Attention in blocks is the attention of equation 1, in memory that is linear in the length."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask, attention_mask
from t2t_jax.kernels import blockwise
from t2t_jax.kernels.cpu import CPU
from tests.kernels.comparison import assert_close, heads_of, normal, values_and_gradients
from tests.selection import thorough_after

_SMALL_BLOCK = 8
_KEY = jax.random.key(7)
_attention = heads_of(CPU.attention)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    """Several blocks in arrays that the whole mask can be compared on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "_BLOCK", _SMALL_BLOCK)
        yield


@cache
def _compiled(causal, rate, in_blocks, window=None):
    """Values and the derivatives of their sum with random weights."""

    def weighted(arrays, segments, first_row, cotangent):
        mask = SegmentMask(*segments, causal, window)
        heads = _attention(
            *arrays,
            mask if in_blocks else mask.dense(),
            dropout_rate=rate,
            dropout_key=DropoutKey(_KEY, first_row),
        )
        return (heads.astype(jnp.float32) * cotangent).sum(), heads

    def both(*arguments):
        (_, heads), gradient = jax.value_and_grad(weighted, has_aux=True)(*arguments)
        return heads, *gradient

    return jax.jit(both)


# Lengths of less than a block, of whole blocks and of neither.
_SHAPES = {False: [(5, 17), (16, 24), (23, 9)], True: [(5, 5), (16, 16), (23, 23)]}


@settings(max_examples=20)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("rate", thorough_after(1, [0.4, 0.0]), ids=["dropout", "no dropout"])
@pytest.mark.parametrize(
    ("causal", "window"),
    [(False, None), (True, None), (True, 12)],
    ids=["any order", "causal", "a window of more than half the row"],
)
def test_values_and_derivatives_are_those_of_the_whole(causal, window, rate, data, seed):
    queries, keys = data.draw(st.sampled_from(_SHAPES[causal]))
    rng = np.random.default_rng(seed)
    # Sentences in any order, padding anywhere, sentences with nothing to attend to.
    draw = [
        np.sort(rng.integers(0, 4, (2, n))) * (rng.random((2, n)) < 0.9) for n in (queries, keys)
    ]
    segments = (draw[0], draw[0] if causal else draw[1])
    segments = tuple(jnp.array(one, jnp.int32) for one in segments)
    arrays = normal(seed, 2, queries, 2, 4), normal(1, 2, keys, 2, 4), normal(2, 2, keys, 2, 6)
    rest = (arrays, segments, jnp.uint32(seed % 1000), normal(3, 2, queries, 2, 6))
    found = _compiled(causal, rate, in_blocks=True, window=window)(*rest)
    expected = _compiled(causal, rate, in_blocks=False, window=window)(*rest)
    assert_close(found, expected, rtol=1e-6, atol=3e-6)


def test_equal_scores_of_any_size_share_the_weight_in_derivatives_too():
    same, ones = jnp.full((1, 20, 1, 8), 3e4), jnp.ones((1, 20), jnp.int32)
    attend = partial(_attention, mask=SegmentMask(ones, ones))
    *_, by_value = values_and_gradients(attend, [same, same, normal(0, *same.shape)], 1.0)
    np.testing.assert_allclose(by_value, np.ones(same.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("queries", "keys", "options", "whole"),
    [
        (1024, 1024, {}, True),
        (8, 100_000, {}, True),
        (1032, 1032, {}, False),
        (2048, 1024, {}, False),
        (8, 8, {"causal": True, "window": 4}, True),
        (9, 9, {"causal": True, "window": 4}, False),
        (12, 12, {"window": 4}, True),
        (13, 13, {"window": 4}, False),
    ],
)
def test_only_rows_that_are_short_or_as_short_as_a_window_have_an_array(
    queries, keys, options, whole
):
    ones = (jnp.ones((1, queries), jnp.int32), jnp.ones((1, keys), jnp.int32))
    assert isinstance(attention_mask(*ones, **options), jax.Array) == whole


def _temporary_bytes(length, differentiate, window, monkeypatch):
    monkeypatch.setattr(blockwise, "_BLOCK", 256)
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def attend(query, key, value, segments):
        mask = attention_mask(segments, segments, causal=True, window=window)
        return _attention(query, key, value, mask).sum()

    work = jax.grad(attend, (0, 1, 2)) if differentiate else attend
    compiled = jax.jit(work).lower(x, x, x, segments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    ("differentiate", "window"),
    [(False, None), (True, None), (False, 16)],
    ids=["values", "derivatives", "a window"],
)
def test_memory_is_linear_in_the_length(differentiate, window, monkeypatch):
    once, twice, eight = (
        _temporary_bytes(length, differentiate, window, monkeypatch)
        for length in (8192, 16384, 65536)
    )
    assert twice < 2.2 * once
    assert eight < 9 * once
    assert eight < 65536 * 16 * 2 * 4 * 16  # sixteen arrays as large as the queries
