import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.dropout import dropout, random_words

_RATES = [0.1, 0.3, 0.5, 0.9]
_SIDE = 1024
_KEY = jax.random.key(0)

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


def _bits(words):
    """`[32, ...]` bool: bit `i` of every word."""
    return (np.asarray(words)[None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1 == 1


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


def test_rate_0_is_the_identity():
    x = jnp.array([1.5, -0.0, jnp.inf])
    np.testing.assert_array_equal(dropout(x, 0.0, _KEY), x)


def test_dropped_elements_are_zero_even_where_they_are_not_finite():
    dropped = np.asarray(dropout(jnp.full((1000,), jnp.inf), 0.5, _KEY))
    assert set(dropped) == {0, np.inf}


def test_gradient_passes_only_where_elements_are_kept():
    x = jnp.arange(1.0, 101.0)
    gradient = jax.grad(lambda x: (dropout(x, 0.3, _KEY) * x).sum())(x)
    np.testing.assert_allclose(gradient, 2 * dropout(x, 0.3, _KEY), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dtype_is_kept(dtype):
    assert dropout(jnp.ones(4, dtype), 0.5, _KEY).dtype == dtype


def test_same_key_drops_the_same_elements_also_under_jit():
    jitted = jax.jit(dropout, static_argnums=1)
    x = jnp.ones((7, 13))
    np.testing.assert_array_equal(dropout(x, 0.5, _KEY), jitted(x, 0.5, _KEY))
    assert np.any(dropout(x, 0.5, _KEY) != dropout(x, 0.5, jax.random.key(1)))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 7), (2, 0)])
def test_a_word_depends_only_on_its_index_in_row_major_order(shape):
    words = random_words(shape, _KEY)
    assert words.shape == shape
    np.testing.assert_array_equal(np.ravel(words), random_words((128,), _KEY)[: words.size])


def test_every_bit_of_a_word_is_fair():
    words = random_words((_SIDE**2,), _KEY)
    _assert_binomial(_bits(words).sum(1), words.size, 0.5)


@pytest.mark.parametrize("distance", [1, 2, 3, 64, 512, 1000, 4096])
def test_bits_of_words_at_any_distance_are_independent(distance):
    bits = _bits(random_words((_SIDE**2,), _KEY))
    agree = (bits[:, distance:] == bits[:, :-distance]).sum(1)
    _assert_binomial(agree, bits.shape[1] - distance, 0.5)


def test_different_bits_of_a_word_are_independent():
    bits = _bits(random_words((2**18,), _KEY))
    for distance in range(1, 32):
        agree = (bits[distance:] == bits[:-distance]).sum(1)
        _assert_binomial(agree, bits.shape[1], 0.5)


def test_words_are_spread_evenly_over_their_range():
    cells = np.bincount(np.asarray(random_words((_SIDE**2,), _KEY)) >> 22, minlength=1024)
    _assert_binomial(cells, _SIDE**2, 1 / 1024)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_different_keys_agree_as_often_as_chance_says(rate):
    masks = [_kept(rate, jax.random.fold_in(_KEY, i)) for i in range(6)]
    chance = rate**2 + (1 - rate) ** 2
    agree = [(masks[i] == masks[j]).sum() for i in range(6) for j in range(i)]
    _assert_binomial(agree, _SIDE**2, chance)


def test_keys_that_differ_in_one_bit_give_unrelated_words():
    n = 2**14
    data = np.array([123, 456], np.uint32)
    reference = _bits(random_words((n,), jax.random.wrap_key_data(data)))
    words = jax.jit(lambda data: random_words((n,), jax.random.wrap_key_data(data)))
    for bit in range(64):
        changed = data.copy()
        changed[bit // 32] ^= np.uint32(1 << bit % 32)
        agree = (reference == _bits(words(changed))).sum(1)
        _assert_binomial(agree, n, 0.5)


def test_no_key_gives_the_words_of_another_in_another_order():
    # With 32 bits of key in the hash, about 8 of these pairs would; equal sums show them.
    sums = jax.jit(jax.vmap(lambda key: random_words((2**16,), key).sum()))
    keys = jax.random.split(_KEY, 1000)
    assert len(np.unique(sums(keys))) == 1000


def test_dropped_runs_are_as_long_as_chance_says():
    # P(run of at least k more drops after a drop) = rate^k: neighbours do not know of each other.
    dropped = ~_kept(0.5, shape=(_SIDE**2,))
    for k in range(1, 10):
        runs = np.lib.stride_tricks.sliding_window_view(dropped, k)[::k].all(1)
        _assert_binomial(runs.sum(), runs.size, 0.5**k)
