import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import NormConfig, network_config
from t2t_jax.errors import UserError
from t2t_jax.modules.attention import Context, Norm
from t2t_jax.modules.feed_forward import FeedForward
from t2t_jax.modules.layers import Dropout, Layer, Residual

_X = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
_SCALE, _BIAS = np.array([1.0, 2.0, 0.5, -1.0]), np.array([0.0, 1.0, -1.0, 0.5])
_PLAIN = Context(jnp.zeros((1, 3), int), 3, jnp.ones((1, 1, 3, 3), bool))
_DROPPING = dataclasses.replace(_PLAIN, deterministic=False)
_NORM = {"scale": jnp.array(_SCALE, jnp.float32), "bias": jnp.array(_BIAS, jnp.float32)}


def _norm(x):
    x = np.asarray(x, np.float64)
    deviation = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return (x - x.mean(-1, keepdims=True)) / deviation * _SCALE + _BIAS


@pytest.mark.parametrize("order", ["post", "pre"])
def test_residual_drops_the_sublayer_but_never_the_input(order):
    config = network_config(d_model=4, num_heads=1, norm_order=order, dropout_rate=0.5)
    x = jnp.array(_X)
    output = Residual(config).apply(
        {"params": {"norm": _NORM}},
        x,
        lambda y: jnp.full_like(y, 100.0),
        _DROPPING,
        rngs={"dropout": jax.random.key(0)},
    )
    if order == "pre":
        dropped = np.round(np.asarray(output) - _X)
        assert set(np.unique(dropped)) == {0, 200}
    else:
        # Every position is explained by a mask of zeros and two hundreds, not always the same.
        masks = (np.arange(16)[:, None] >> np.arange(4)) & 1
        expected = _norm(_X[0, :, None] + 200 * masks)
        errors = np.abs(expected - np.asarray(output)[0, :, None]).max(-1)
        assert np.all(errors.min(-1) < 1e-4)
        assert len(set(errors.argmin(-1))) > 1


def test_dropout_is_the_identity_if_deterministic_or_at_rate_0():
    x, rngs = jnp.array(_X), {"dropout": jax.random.key(0)}
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, _PLAIN), x)
    np.testing.assert_array_equal(Dropout(0.0).apply({}, x, _DROPPING, rngs=rngs), x)


def test_norm_and_feed_forward_start_as_documented():
    x = jnp.array(_X)
    norm = nn.unbox(Norm(NormConfig()).init(jax.random.key(0), x))["params"]
    np.testing.assert_array_equal(norm["scale"], jnp.ones(4))
    np.testing.assert_array_equal(norm["bias"], jnp.zeros(4))
    config = network_config(d_model=4, num_heads=1, d_ff=8)
    feed_forward = nn.unbox(FeedForward(config).init(jax.random.key(0), x, _PLAIN))["params"]
    np.testing.assert_array_equal(feed_forward["bias_1"], jnp.zeros(8))
    np.testing.assert_array_equal(feed_forward["bias_2"], jnp.zeros(4))


def test_a_layer_alone_attends_as_far_as_its_stack_lets_it():
    """A later position changes the output of an encoder's layer everywhere, of a decoder's not."""
    config = network_config(d_model=4, num_heads=1, d_ff=8, position="none")
    x, changed = (jnp.array(_X).at[0, 2].add(by) for by in (0.0, 1.0))
    for stack, is_causal in zip(config.stacks, (False, True), strict=True):
        layer, context = Layer(config, stack), Context(encoded=x)
        variables = layer.init(jax.random.key(0), x, context)
        before, after = (layer.apply(variables, y, context)[0, :2] for y in (x, changed))
        assert np.allclose(before, after, atol=1e-6) == is_causal
    with pytest.raises(UserError, match="pass Context"):
        layer.apply(variables, x)
