"""Attention in blocks is the attention of equation 1, in memory that is linear in the length."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask, attention_mask
from t2t_jax.kernels import blockwise
from t2t_jax.kernels.attention import attention
from tests.selection import thorough_after

_SMALL_BLOCK = 8
_KEY = jax.random.key(7)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    """Several blocks in arrays that the whole mask can be compared on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "_BLOCK", _SMALL_BLOCK)
        yield


def _normal(seed, *shape):
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@cache
def _compiled(causal, rate, in_blocks, window=None):
    """Values and the derivatives of their sum with random weights."""

    def weighted(arrays, segments, first_row, cotangent):
        mask = SegmentMask(*segments, causal, window)
        heads = attention(
            *arrays,
            mask if in_blocks else mask.whole(),
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
    arrays = _normal(seed, 2, queries, 2, 4), _normal(1, 2, keys, 2, 4), _normal(2, 2, keys, 2, 6)
    rest = (arrays, segments, jnp.uint32(seed % 1000), _normal(3, 2, queries, 2, 6))
    found = _compiled(causal, rate, in_blocks=True, window=window)(*rest)
    expected = _compiled(causal, rate, in_blocks=False, window=window)(*rest)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=3e-6)


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_moves_nothing():
    arrays = [_normal(seed, 1, 20, 2, 4) for seed in range(3)]
    segments = (jnp.full((1, 20), 1, jnp.int32), jnp.zeros((1, 20), jnp.int32))
    rest = arrays, segments, jnp.uint32(0), jnp.ones((1, 20, 2, 4))
    for array in _compiled(False, 0.0, in_blocks=True)(*rest):
        np.testing.assert_array_equal(array, np.zeros_like(array))


@pytest.mark.parametrize("size", [1.0, 1e4, 1e18])
def test_what_is_hidden_has_no_weight_at_all_whatever_its_score(size):
    query = jnp.full((1, 20, 1, 4), size, jnp.float32)
    key = query.at[:, 10:].multiply(3)  # the hidden keys have by far the largest scores
    value = jnp.ones((1, 20, 1, 2)).at[:, 10:].set(1e30)
    segments = jnp.ones((1, 20), jnp.int32)
    mask = SegmentMask(segments, segments.at[:, 10:].set(2))
    heads = attention(query, key, value, mask)
    np.testing.assert_array_equal(heads, jnp.ones((1, 20, 1, 2)))


def test_bfloat16_stays_near_float32():
    arrays = tuple(_normal(seed, 2, 40, 2, 8) for seed in range(3))
    segments = (jnp.ones((2, 40), jnp.int32),) * 2
    rest = segments, jnp.uint32(0), _normal(3, 2, 40, 2, 8)
    exact = _compiled(True, 0.0, in_blocks=True)(arrays, *rest)
    halved = tuple(array.astype(jnp.bfloat16) for array in arrays)
    rounded = _compiled(True, 0.0, in_blocks=True)(halved, *rest)
    for one, other in zip(rounded, exact, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other, rtol=0.1, atol=0.1)


def test_shapes_alone_decide_and_short_rows_have_an_array():
    def is_whole(queries, keys):
        ones = (jnp.ones((1, queries), jnp.int32), jnp.ones((1, keys), jnp.int32))
        return isinstance(attention_mask(*ones), jax.Array)

    assert is_whole(1024, 1024)
    assert is_whole(8, 100_000)
    assert not is_whole(1032, 1032)
    assert not is_whole(2048, 1024)


def _temporary_bytes(length, differentiate, monkeypatch):
    monkeypatch.setattr(blockwise, "_BLOCK", 256)
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    segments = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def attend(query, key, value, segments):
        mask = attention_mask(segments, segments, causal=True)
        return attention(query, key, value, mask).sum()

    work = jax.grad(attend, (0, 1, 2)) if differentiate else attend
    compiled = jax.jit(work).lower(x, x, x, segments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("differentiate", [False, True], ids=["values", "derivatives"])
def test_memory_is_linear_in_the_length(differentiate, monkeypatch):
    once, twice, eight = (
        _temporary_bytes(length, differentiate, monkeypatch) for length in (8192, 16384, 65536)
    )
    assert twice < 2.2 * once
    assert eight < 9 * once
    assert eight < 65536 * 16 * 2 * 4 * 16  # sixteen arrays as large as the queries
