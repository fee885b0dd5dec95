"""Attention to a cache, in any order and in two parts, is equation 1."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from t2t_jax.functional.attention import SCALED_PRODUCT, additive_scores
from t2t_jax.kernels.cached_attention import (
    CachedEntries,
    attention_with_new,
    cached_attention,
    fused_cached_attention,
)
from t2t_jax.kernels.reference import REFERENCE
from tests.kernels.comparison import normal


@pytest.mark.parametrize("groups", [1, 2])
def test_attention_to_a_cache_in_other_orders_is_the_same(groups):
    """Of one query whose own position is not yet written, and of several, with cuDNN's formula."""
    query, key, value = (
        np.asarray(normal(seed, *shape))
        for seed, shape in enumerate([(2, 3, 2, 8), (2, 5, groups, 8), (2, 5, groups, 8)])
    )
    mask = np.random.default_rng(3).random((2, 1, 3, 5)) < 0.6
    mask[..., 3] = True
    turned = key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)
    expected = jax.jit(cached_attention)(query, [CachedEntries(*turned, mask)])
    fused = jax.jit(partial(fused_cached_attention, implementation="xla"))
    np.testing.assert_allclose(fused(query, key, value, mask), expected, rtol=1e-5, atol=1e-6)
    both = key.swapaxes(1, 2), value.swapaxes(1, 2)
    unwritten, new = [x.copy() for x in both], [x[:, :, 3:4] for x in both]
    for x in unwritten:
        x[:, :, 3] = 1e6
    bias, query, mask = np.asarray(normal(4, 2, 1, 5)), query[:, :1], mask[:, :, :1]
    with_new = jax.jit(attention_with_new, static_argnums=3)
    found = with_new(query, tuple(unwritten), tuple(new), 3, mask, bias=bias)
    expected = jax.jit(cached_attention)(query, [CachedEntries(*turned, mask, bias)])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_query_that_may_attend_to_nothing_gets_zeros_of_values_that_are_zero():
    query, key = normal(0, 2, 1, 2, 8), normal(1, 2, 5, 2, 8)
    mask = jnp.zeros((2, 1, 1, 5), bool)
    value = jnp.zeros_like(key)
    found = fused_cached_attention(query, key, value, mask, implementation="xla")
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("additive", [False, True])
def test_attention_to_two_sets_or_to_both_in_one_array_is_equation_1(groups, additive):
    rows, queries, heads, width, first, second = 2, 3, 4, 5, 6, 7
    both = first + second
    query, key = normal(0, rows, queries, heads, width), normal(1, rows, groups, width, both)
    value, bias = normal(2, rows, groups, both, 3), normal(3, heads, queries, both)
    score = Partial(additive_scores, vector=normal(4, heads, width)) if additive else SCALED_PRODUCT
    mask = jnp.array(np.random.default_rng(5).random((rows, 1, queries, both)) < 0.6)
    mask = mask.at[0, :, 1].set(False)  # a query that may attend to nothing
    in_order = key.transpose(0, 3, 1, 2), value.swapaxes(1, 2)
    expected, _ = REFERENCE.attention(query, *in_order, mask, lambda _: bias, score=score)
    rowwise = jnp.broadcast_to(bias[..., :first], (rows, heads, queries, first))
    parts = [
        CachedEntries(key[..., :first], value[:, :, :first], mask[..., :first], rowwise),
        CachedEntries(key[..., first:], value[:, :, first:], mask[..., first:], bias[..., first:]),
    ]
    for kept in (parts, [CachedEntries(key, value, mask, bias)]):
        found = jax.jit(cached_attention)(query, kept, score)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
