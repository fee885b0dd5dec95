"""Every transform of JAX works on the networks in plain JAX, and on the formulas of attention."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.flatten_util import ravel_pytree
from jax.test_util import check_grads

from t2t_jax.functional import attention
from t2t_jax.kernels.attention import softmax_over_allowed
from t2t_jax.kernels.reference import REFERENCE
from tests.kernels.comparison import normal

_KINDS = [
    {"norm_order": "pre", "position": "relative_bias", "attention_kind": "additive"},
    {"architecture": "decoder_only", "position": "rotary"},
]
_KEYS = {"dropout": jax.random.key(0)}


@pytest.mark.parametrize("changes", _KINDS, ids=["encoder-decoder", "decoder-only"])
def test_losses_of_a_network_have_every_derivative(changes, make_model, make_batch):
    _, fast, variables = make_model(d_model=8, d_ff=8, **changes)
    batch = make_batch([[[3, 4, 2]]], [[[6, 2]]], 3, 2)
    point, unravel = ravel_pytree(variables)
    direction = normal(1, point.size)

    def loss(network, x):
        options = {"label_smoothing": 0.1, "deterministic": False, "method": "losses"}
        return network.apply(unravel(x), batch, rngs=_KEYS, **options)[0].sum()

    plain = partial(loss, fast.clone(kernels=REFERENCE, remat="layer"))
    gradient = jax.grad(plain)
    value, slope = jax.jit(partial(jax.jvp, plain))((point,), (direction,))
    # The product with the matrix of second derivatives: forward over reverse, and in reverse twice.
    first, product = jax.jit(partial(jax.jvp, gradient))((point,), (direction,))
    expected = jax.jit(jax.grad(lambda x: gradient(x) @ direction))(point)
    np.testing.assert_allclose(slope, first @ direction, rtol=1e-4)
    np.testing.assert_allclose(product, expected, rtol=1e-3, atol=1e-4 * np.abs(product).max())
    # The derivatives that are written out for CPUs are the same.
    written_out = jax.jit(jax.grad(partial(loss, fast)))(point)
    np.testing.assert_allclose(written_out, first, rtol=1e-3, atol=1e-5)
    two = jax.jit(jax.vmap(plain))(jnp.stack([point, point + direction]))
    np.testing.assert_allclose(two, [value, jax.jit(plain)(point + direction)], rtol=1e-5)
    linear = jax.jit(lambda x: jax.linearize(plain, x)[1](direction))(point)
    along = jax.jit(jax.jacfwd(lambda t: plain(point + t * direction)))(0.0)
    np.testing.assert_allclose([linear, along], [slope, slope], rtol=1e-5)
    error, checked = jax.jit(checkify.checkify(plain, errors=checkify.float_checks))(point)
    error.throw()
    np.testing.assert_allclose(checked, value, rtol=1e-5)


_X, _SCORES = (1, 3, 2, 4), (1, 2, 3, 3)
_MASK = {"mask": jnp.tril(jnp.ones((1, 1, 3, 3), bool), -1)}  # nothing for the first query


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (partial(attention.scaled_dot_product_attention, **_MASK), (_X, _X, _X)),
        (partial(attention.attention_weights, **_MASK), (_X, _X)),
        (attention.ScaledProducts(), (_X, _X)),
        (partial(attention.masked_softmax, **_MASK), (_SCORES,)),
        (partial(softmax_over_allowed, **_MASK), (_SCORES,)),
        (attention.weighted_values, (_SCORES, _X)),
        (attention.additive_scores, (_X, _X, (2, 4))),
        (partial(attention.repeat_heads, num_heads=4), (_X,)),
        (partial(attention.split_heads, num_heads=2), (_X,)),
        (attention.merge_heads, (_X,)),
    ],
)
def test_formulas_are_differentiated_forward(function, shapes):
    arrays = [normal(seed, *shape) for seed, shape in enumerate(shapes)]
    check_grads(jax.jit(function), arrays, order=2, modes=["fwd", "rev"], rtol=0.02, atol=0.02)
