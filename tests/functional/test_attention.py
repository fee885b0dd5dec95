from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.functional.attention import (
    attention_weights,
    masked_softmax,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.kernels.attention import softmax_over_allowed
from tests.kernels.comparison import assert_close, normal, values_and_gradients

_jitted_attention = jax.jit(scaled_dot_product_attention)


def _attention64(query, key, value, mask):
    """Equation 1 with loops in float64; a query that may attend to nothing gives zeros."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, queries, heads, d_k = query.shape
    result = np.zeros((batch, queries, heads, value.shape[-1]))
    for b, q, h in np.ndindex(batch, queries, heads):
        allowed = np.flatnonzero(mask[b, h, q])
        if allowed.size:
            weights = np.exp([query[b, q, h] @ key[b, k, h] / np.sqrt(d_k) for k in allowed])
            result[b, q, h] = weights @ value[b, allowed, h] / weights.sum()
    return result


def test_two_queries_and_two_keys_worked_by_hand():
    # One head, d_k = 4, so the scores are divided by 2.
    #   q_1 . k_1 = 2 ln 3    q_1 . k_2 = 0       / 2:  ln 3, 0    softmax: 3/4, 1/4
    #   q_2 . k_1 = 0         q_2 . k_2 = 2 ln 4  / 2:  0, ln 4    softmax: 1/5, 4/5
    # With v_1 = (4, 0) and v_2 = (0, 20):
    #   o_1 = 3/4 (4, 0) + 1/4 (0, 20) = (3, 5)      o_2 = 1/5 (4, 0) + 4/5 (0, 20) = (0.8, 16)
    query = jnp.array([[2 * np.log(3), 0, 0, 0], [0, 2 * np.log(4), 0, 0]], jnp.float32)
    key = jnp.array([[1, 0, 0, 0], [0, 1, 0, 0]], jnp.float32)
    value = jnp.array([[4, 0], [0, 20]], jnp.float32)
    query, key, value = (x[None, :, None] for x in (query, key, value))

    weights = attention_weights(query, key)
    np.testing.assert_allclose(weights, [[[[0.75, 0.25], [0.2, 0.8]]]], rtol=1e-6)
    output = scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(output, [[[[3, 5]], [[0.8, 16]]]], rtol=1e-6)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), density=st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_attention_equals_equation_1_under_any_mask(seed, density):
    query, key, value = normal(seed, 2, 3, 2, 4), normal(seed, 2, 5, 2, 4), normal(1, 2, 5, 2, 6)
    mask = np.random.default_rng(seed).random((2, 2, 3, 5)) < density
    output = _jitted_attention(query, key, value, jnp.array(mask))
    expected = _attention64(query, key, value, mask)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_no_mask_allows_everything_and_masks_broadcast_over_heads_and_queries():
    query, key, value = normal(0, 2, 3, 2, 4), normal(1, 2, 5, 2, 4), normal(2, 2, 5, 2, 6)
    full = _attention64(query, key, value, np.ones((2, 2, 3, 5), bool))
    output = scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(output, full, rtol=1e-5, atol=1e-6)

    keys = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)
    expected = _attention64(query, key, value, np.broadcast_to(keys[:, None, None], (2, 2, 3, 5)))
    output = scaled_dot_product_attention(query, key, value, jnp.array(keys)[:, None, None])
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e18])
def test_masked_keys_have_no_weight_at_all_whatever_the_scores(size):
    # The masked keys would have by far the largest scores.
    query = jnp.full((1, 1, 1, 4), size, jnp.float32)
    key = jnp.array([[[[-1.0] * 4], [[1.0] * 4], [[-1.0] * 4]]], jnp.float32) * size
    mask = jnp.array([[[[True, False, True]]]])
    np.testing.assert_array_equal(attention_weights(query, key, mask), [[[[0.5, 0, 0.5]]]])


def test_query_without_keys_gives_zeros_and_finite_gradients():
    query, key, value = normal(0, 1, 2, 1, 4), normal(1, 1, 3, 1, 4), normal(2, 1, 3, 1, 4)
    mask = jnp.array([[[[True, True, False], [False, False, False]]]])
    assert np.all(scaled_dot_product_attention(query, key, value, mask)[:, 1] == 0)
    np.testing.assert_allclose(attention_weights(query, key, mask).sum(-1), [[[1, 0]]], rtol=1e-6)

    def loss(query, key, value):
        return jnp.square(scaled_dot_product_attention(query, key, value, mask)).sum()

    query_bar, key_bar, value_bar = jax.grad(loss, (0, 1, 2))(query, key, value)
    assert np.all(query_bar[:, 1] == 0)
    assert np.all(key_bar[:, 2] == 0)
    assert np.all(value_bar[:, 2] == 0)
    assert np.all(np.isfinite(key_bar))
    assert np.any(query_bar[:, 0] != 0)


def test_scores_have_variance_1_whatever_d_k():
    # Footnote 4: independent components with mean 0 and variance 1 make products of variance d_k,
    # and a softmax over them has hardly any gradient left where d_k is large.
    variances, derivatives = {}, {}
    for d_k in (4, 512):
        query, key = normal(d_k, 4, 32, 1, d_k), normal(d_k + 1, 4, 32, 1, d_k)
        for divided, factor in ((True, 1), (False, d_k**0.5)):
            weights = np.asarray(attention_weights(factor * query, key), np.float64)
            scores = np.log(np.maximum(weights, 1e-300))
            # The derivative is diag(w) - w w^T; this is its squared norm.
            squares = np.square(weights).sum(-1)
            norm = squares - 2 * (weights**3).sum(-1) + squares**2
            derivatives[divided, d_k] = np.sqrt(np.maximum(norm, 0)).mean()
            if divided:
                variances[d_k] = scores.var(-1, ddof=1).mean()
    assert variances[4] == pytest.approx(1, abs=0.15)
    assert variances[512] == pytest.approx(1, abs=0.15)
    assert derivatives[True, 512] == pytest.approx(derivatives[True, 4], rel=0.1)
    assert derivatives[False, 512] < derivatives[True, 512] / 2


def test_bfloat16_inputs_give_float32_weights_and_a_bfloat16_result():
    query, key, value = (jnp.array(normal(i, 1, 4, 2, 8), jnp.bfloat16) for i in range(3))
    weights = attention_weights(query, key)
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    output = scaled_dot_product_attention(query, key, value)
    assert output.dtype == jnp.bfloat16
    expected = _attention64(query, key, value, np.ones((1, 2, 4, 4), bool))
    np.testing.assert_allclose(np.asarray(output, np.float32), expected, atol=0.02)


def test_dropout_zeroes_single_weights_and_scales_the_others():
    # Values are unit vectors, so the output is the dropped and scaled weights themselves.
    query, key = normal(0, 1, 64, 1, 4), normal(1, 1, 64, 1, 4)
    value = jnp.eye(64)[None, :, None]
    weights = attention_weights(query, key)[0, 0]
    dropped = scaled_dot_product_attention(
        query, key, value, dropout_rate=0.25, dropout_key=DropoutKey(jax.random.key(0))
    )[0, :, 0]
    kept = dropped != 0
    np.testing.assert_allclose(dropped, np.where(kept, weights / 0.75, 0), rtol=1e-5)
    # 4096 weights: three standard deviations of the share kept are 0.02.
    assert abs(kept.mean() - 0.75) < 0.02


def test_heads_are_consecutive_slices_of_the_last_axis():
    x = jnp.arange(12.0).reshape(1, 2, 6)
    expected = [[[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]]
    np.testing.assert_array_equal(split_heads(x, 3), expected)
    np.testing.assert_array_equal(merge_heads(split_heads(x, 3)), x)


@pytest.mark.parametrize("softmax", [masked_softmax, softmax_over_allowed])
def test_the_derivative_of_a_masked_softmax_is_that_of_its_definition(softmax):
    def by_definition(scores, mask):
        exponentials = jnp.where(mask, jnp.exp(scores), 0)
        return exponentials / jnp.maximum(exponentials.sum(-1, keepdims=True), 1e-30)

    scores, cotangent = normal(0, 2, 2, 3, 5), normal(1, 2, 2, 3, 5)
    mask = jnp.ones((2, 1, 3, 5), bool).at[0, 0, 1].set(False).at[1, 0, :, 3:].set(False)
    found, expected = (
        values_and_gradients(partial(function, mask=mask), [scores], cotangent)
        for function in (softmax, by_definition)
    )
    assert_close(found[:1], expected[:1], rtol=1e-5, atol=1e-7)
    assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-6)


def test_a_mask_of_numbers_to_add_is_refused():
    query = jnp.ones((1, 2, 1, 4))
    with pytest.raises(TypeError, match="mask"):  # by its annotation here, elsewhere by its dtype
        attention_weights(query, query, jnp.zeros((1, 1, 2, 2)))
