import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.functional.dropout import DropoutKey, dropout, random_words
from tests.selection import thorough_after

_RATES = [0.1, 0.3, 0.5, 0.9]
_SIDE = 1024
_KEY = DropoutKey(jax.random.key(0))

# A word is a hash of its row and of its place in it: what holds of one long row, of many short ones
# and of a square shows that both are hashed well, and together.
_SHAPES = [(_SIDE**2, 1), (1, _SIDE**2), (_SIDE, _SIDE)]

# Counts of n fair (or rate-biased) draws are normal; 5.5 standard deviations, two-sided, happen by
# chance in 4e-8 of them, and the tests here look at a few ten thousand.
_SIGMAS = 5.5


def _assert_binomial(counts, draws, probability):
    deviation = (np.asarray(counts) - draws * probability) / np.sqrt(
        draws * probability * (1 - probability)
    )
    assert np.max(np.abs(deviation)) < _SIGMAS


def _kept(rate, key=_KEY, shape=(_SIDE, _SIDE)):
    return np.asarray(dropout(jnp.ones(shape), rate, key) != 0)


@cache
def _words(shape):
    """The words of an array, computed once for all tests."""
    return np.asarray(jax.jit(random_words, static_argnums=0)(shape, _KEY))


def _bits(words):
    """`[32, n]` bool: bit `i` of every word."""
    words = np.ravel(words)
    return (words[None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1 == 1


@pytest.mark.parametrize("rate", _RATES)
def test_rate_is_honoured_over_all_elements_rows_and_columns(rate):
    kept = _kept(rate)
    _assert_binomial(kept.sum(), kept.size, 1 - rate)
    _assert_binomial(kept.sum(0), _SIDE, 1 - rate)
    _assert_binomial(kept.sum(1), _SIDE, 1 - rate)


@pytest.mark.parametrize("rate", _RATES)
def test_kept_elements_are_scaled_so_that_the_mean_stays(rate):
    x = jnp.array(np.random.default_rng(0).normal(3, 1, (_SIDE, _SIDE)), jnp.float32)
    x, dropped = np.asarray(x), np.asarray(dropout(x, rate, _KEY))
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], x[kept] / (1 - rate), rtol=1e-6)
    # One element has variance (E x^2) rate / (1 - rate), so the mean of all of them is known to:
    tolerance = _SIGMAS * np.sqrt(10 * rate / (1 - rate)) / _SIDE
    assert abs(dropped.mean(dtype=np.float64) - x.mean(dtype=np.float64)) < tolerance


def test_rate_0_or_no_key_is_the_identity():
    x = jnp.array([1.5, -0.0, jnp.inf])
    np.testing.assert_array_equal(dropout(x, 0.0, _KEY), x)
    np.testing.assert_array_equal(dropout(x, 0.5, None), x)


def test_dropped_elements_are_zero_even_where_they_are_not_finite():
    dropped = np.asarray(dropout(jnp.full((1000,), jnp.inf), 0.5, _KEY))
    assert set(dropped) == {0, np.inf}


def test_gradient_passes_only_where_elements_are_kept():
    x = jnp.arange(1.0, 101.0)
    gradient = jax.grad(lambda x: (dropout(x, 0.3, _KEY) * x).sum())(x)
    np.testing.assert_allclose(gradient, 2 * dropout(x, 0.3, _KEY), rtol=1e-6)


def test_same_key_drops_the_same_elements_also_under_jit():
    jitted = jax.jit(dropout, static_argnums=1)
    x = jnp.ones((7, 13))
    np.testing.assert_array_equal(dropout(x, 0.5, _KEY), jitted(x, 0.5, _KEY))
    other = DropoutKey(jax.random.key(1))
    assert np.any(dropout(x, 0.5, _KEY) != dropout(x, 0.5, other))


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 7), (3, 2, 2, 3), (2, 0), (0, 2)])
def test_a_word_depends_only_on_its_row_and_its_place_in_it_in_row_major_order(shape):
    words = random_words(shape, _KEY)
    assert words.shape == shape
    flat = _words((16, 64))
    rows, width = shape[0], math.prod(shape[1:])
    np.testing.assert_array_equal(np.reshape(words, (rows, width)), flat[:rows, :width])


@partial(jax.jit, static_argnums=0)
def _dropped(rows, first_row):
    return dropout(jnp.ones((rows, 3, 2)), 0.5, DropoutKey(_KEY.key, first_row))


@given(st.integers(0, 2**31 - 13), st.lists(st.integers(0, 3), max_size=4))
def test_the_rows_of_any_part_are_dropped_as_in_the_whole(first_row, sizes):
    whole = np.asarray(_dropped(12, first_row))
    start = 0
    for size in sizes:
        part = _dropped(size, first_row + start)
        np.testing.assert_array_equal(part, whole[start : start + size])
        start += size


def test_the_first_row_may_be_traced_or_not():
    words = random_words((7, 3), _KEY)[5:]
    for row in (5, np.int32(5), jnp.int32(5)):
        np.testing.assert_array_equal(random_words((2, 3), DropoutKey(_KEY.key, row)), words)
    traced = jax.jit(lambda row: random_words((2, 3), DropoutKey(_KEY.key, row)))
    np.testing.assert_array_equal(traced(5), words)


def test_no_row_has_words_of_another_in_its_place_or_shifted():
    # A row gives its words an offset within the hash. All words that two rows share are found, at
    # whatever places: chance makes 0.0037 of each pair's, 2^8 * 2^20 / 2^32 * 15 in all.
    words = _words((16, 2**12))
    values, counts = np.unique(words, return_counts=True)
    assert counts.max() <= 2
    assert values.size > words.size - 8
    # And no row is another plus, or with the bits flipped of, one constant.
    rows = _words((_SIDE, 4))
    for differences in (rows[:, 1:] - rows[:, :1], rows[:, 1:] ^ rows[:, :1]):
        assert len(np.unique(differences, axis=0)) == _SIDE


@pytest.mark.parametrize("shape", _SHAPES)
def test_every_bit_of_a_word_is_fair(shape):
    words = _words(shape)
    _assert_binomial(_bits(words).sum(1), words.size, 0.5)


@pytest.mark.parametrize("distance", [1, 2, 3, 64, 512, 1000, 4096])
@pytest.mark.parametrize("shape", _SHAPES)
def test_bits_of_words_at_any_distance_are_independent(shape, distance):
    bits = _bits(_words(shape))
    agree = (bits[:, distance:] == bits[:, :-distance]).sum(1)
    _assert_binomial(agree, bits.shape[1] - distance, 0.5)


@pytest.mark.parametrize("shape", [(2**18, 1), (1, 2**18), (512, 512)])
def test_different_bits_of_a_word_are_independent(shape):
    bits = _bits(_words(shape))
    for distance in range(1, 32):
        agree = (bits[distance:] == bits[:-distance]).sum(1)
        _assert_binomial(agree, bits.shape[1], 0.5)


@pytest.mark.parametrize("shape", _SHAPES)
def test_words_are_spread_evenly_over_their_range(shape):
    cells = np.bincount(np.ravel(_words(shape)) >> 22, minlength=1024)
    _assert_binomial(cells, _SIDE**2, 1 / 1024)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_rows_and_columns_agree_as_often_as_chance_says(rate):
    kept = _kept(rate).astype(np.float32)
    chance = rate**2 + (1 - rate) ** 2
    for lines in (kept, kept.T):
        agree = (lines @ lines.T + (1 - lines) @ (1 - lines).T)[np.triu_indices(_SIDE, 1)]
        # Of half a million pairs, one in fifty times one is beyond 5.5 standard deviations.
        _assert_binomial(agree, _SIDE, chance)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_four_corners_of_rectangles_are_independent(rate):
    # All words of a row have their row's offset: two rows must not be alike where two others are.
    variance = rate * (1 - rate)
    lines = (_kept(rate).astype(np.float64) - (1 - rate)) / np.sqrt(variance)
    squares = np.square((lines @ lines.T)[np.triu_indices(_SIDE, 1)]) / _SIDE
    kurtosis = (1 - 3 * variance) / variance
    assert abs(squares.mean() - 1) < _SIGMAS * np.sqrt(2 * kurtosis / squares.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_different_keys_agree_as_often_as_chance_says(rate):
    masks = [_kept(rate, DropoutKey(jax.random.fold_in(_KEY.key, i))) for i in range(6)]
    chance = rate**2 + (1 - rate) ** 2
    agree = [(masks[i] == masks[j]).sum() for i in range(6) for j in range(i)]
    _assert_binomial(agree, _SIDE**2, chance)


@pytest.mark.parametrize("shape", [(2**14, 1), (1, 2**14), (128, 128)])
def test_keys_that_differ_in_one_bit_give_unrelated_words(shape):
    data = np.array([123, 456], np.uint32)
    words = jax.jit(lambda data: random_words(shape, DropoutKey(jax.random.wrap_key_data(data))))
    reference = _bits(words(data))
    for bit in range(64):
        changed = data.copy()
        changed[bit // 32] ^= np.uint32(1 << bit % 32)
        agree = (reference == _bits(words(changed))).sum(1)
        _assert_binomial(agree, 2**14, 0.5)


@pytest.mark.parametrize("shape", thorough_after(1, [(256, 256), (2**16, 1), (1, 2**16)]))
def test_no_key_gives_the_words_of_another_in_another_order(shape):
    # With 32 bits of key in the hash, about 8 of these pairs would; equal sums show them.
    sums = jax.jit(jax.vmap(lambda key: random_words(shape, DropoutKey(key)).sum()))
    keys = jax.random.split(_KEY.key, 1000)
    assert len(np.unique(sums(keys))) == 1000
