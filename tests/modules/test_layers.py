import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Context, UserError
from t2t_jax.config import network_config
from t2t_jax.modules.layers import Layer, Residual
from tests.modules.numpy_transformer import norm

_X = np.random.default_rng(0).normal(size=(1, 3, 4)).astype(np.float32)
_PLAIN = Context(jnp.zeros((1, 3), int), 3, jnp.ones((1, 1, 3, 3), bool))
_DROPPING = dataclasses.replace(_PLAIN, deterministic=False)
_NORM = {"scale": np.float32([1, 2, 0.5, -1]), "bias": np.float32([0, 1, -1, 0.5])}


@pytest.mark.parametrize("order", ["post", "pre"])
def test_residual_drops_the_sublayer_but_never_the_input(order):
    config = network_config(d_model=4, num_heads=1, norm_order=order, dropout_rate=0.5)
    x = jnp.array(_X)
    output = Residual(config).apply(
        {"params": {"norm": jax.tree.map(jnp.array, _NORM)}},
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
        expected = norm(_NORM, config, _X[0, :, None] + 200.0 * masks)
        errors = np.abs(expected - np.asarray(output)[0, :, None]).max(-1)
        assert np.all(errors.min(-1) < 1e-4)
        assert len(set(errors.argmin(-1))) > 1


def test_a_layer_alone_attends_as_far_as_its_stack_lets_it():
    """A later position changes the output of an encoder's layer everywhere, of a decoder's not."""
    config = network_config(d_model=4, num_heads=1, d_ff=8, position="none")
    x, changed = (jnp.array(_X).at[0, 2].add(by) for by in (0.0, 1.0))
    for stack, is_causal in zip(config.stacks, (False, True), strict=True):
        layer, context = Layer(config, stack), Context(encoded=x)
        variables = layer.init(jax.random.key(0), x, context)
        before, after = (layer.apply(variables, y, context)[0, :2] for y in (x, changed))
        assert np.allclose(before, after, atol=1e-6) == is_causal
        # Where every position may attend to all, no mask is made.
        jaxpr = jax.make_jaxpr(partial(layer.apply, context=context))(variables, x)
        assert ("bool[" in str(jaxpr)) == is_causal
    with pytest.raises(UserError, match="pass Context"):
        layer.apply(variables, x)
