from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Context, MultiHeadAttention, UserError
from t2t_jax.config import AttentionConfig, network_config
from t2t_jax.functional.position import rotary_frequencies
from tests.modules.numpy_transformer import cross_attention


def test_position_that_may_attend_to_nothing_gets_zeros():
    module = MultiHeadAttention(AttentionConfig(d_model=6, num_heads=2, d_k=3, d_v=3))
    context = Context(jnp.zeros((1, 3), int), 3, jnp.zeros((1, 1, 3, 3), bool))
    output, _ = module.init_with_output(jax.random.key(0), jnp.ones((1, 3, 6)), context)
    np.testing.assert_array_equal(output, jnp.zeros((1, 3, 6)))


def test_without_a_context_every_position_attends_to_every_other():
    config = network_config(d_model=6, num_heads=2)
    module = MultiHeadAttention(config.attention)
    x = jnp.array(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    output, variables = module.init_with_output(jax.random.key(0), x)
    params = jax.tree.map(np.float64, variables["params"])
    expected = [cross_attention(params, config, one, one) for one in np.float64(x)]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    one_mask = Context(mask=jnp.ones((1, 1, 3, 3), bool))
    np.testing.assert_array_equal(module.apply(variables, x, one_mask), output)
    across = module.apply(variables, x, encoded=x)
    np.testing.assert_allclose(across, expected, rtol=1e-4, atol=1e-5)


def test_rotary_positions_without_a_context_of_positions_are_the_places_in_a_row():
    module = MultiHeadAttention(AttentionConfig(d_model=8, num_heads=2))
    x = jnp.array(np.random.default_rng(0).normal(size=(2, 3, 8)), jnp.float32)
    turned, places = rotary_frequencies(4, 10_000.0), jnp.broadcast_to(jnp.arange(3), (2, 3))
    output, variables = module.init_with_output(jax.random.key(0), x, Context(rotary=turned))
    expected = module.apply(variables, x, Context(positions=places, rotary=turned))
    np.testing.assert_array_equal(output, expected)
    assert not np.allclose(output, module.apply(variables, x))


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"d_model": 30, "num_heads": 4}, "d_model=30 is not divisible by num_heads=4"),
        ({"d_model": 0, "num_heads": 4}, "d_model=0 is not positive"),
        ({"d_model": 8, "num_heads": 0}, "num_heads=0 is not positive"),
        ({"d_model": 8, "num_heads": 4, "num_kv_heads": 3}, "not a multiple of num_kv_heads=3"),
        ({"d_model": 8, "num_heads": 4, "attention_kind": "cosine"}, "attention_kind='cosine' is"),
    ],
)
def test_sizes_that_make_no_heads_are_refused(sizes, says):
    with pytest.raises(UserError, match=says):
        AttentionConfig(**sizes)


@pytest.mark.parametrize("mask", [jnp.ones((3, 3), bool), jnp.ones((1, 1, 3, 3))])
def test_an_array_that_is_no_mask_is_refused(mask):
    with pytest.raises(UserError, match=r"encoded_mask is .*; give a bool array"):
        Context.__post_init__(SimpleNamespace(mask=None, encoded_mask=mask))
