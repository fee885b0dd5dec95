"""JAX's fused attention in place of ours: the same numbers, and only where its kernel can run.

The kernel itself needs an NVIDIA GPU; its XLA form, which takes the same arguments, does not.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional import attention
from t2t_jax.functional.attention import (
    fused_attention,
    has_kernel,
    scaled_dot_product_attention,
)
from t2t_jax.functional.dropout import DropoutKey


def _arrays(dtype=jnp.float32, length=6, d_k=8, d_v=8):
    rng = np.random.default_rng(0)
    shapes = (2, length, 3, d_k), (2, 10, 3, d_k), (2, 10, 3, d_v)
    return [jnp.array(rng.normal(size=shape), dtype) for shape in shapes]


def _mask(heads):
    mask = np.random.default_rng(1).random((2, heads, 6, 10)) < 0.5
    mask[0, :, 2] = False  # a query that may attend to nothing
    return jnp.array(mask)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 0.03)])
def test_values_and_gradients_equal_ours_also_where_nothing_may_be_attended_to(
    heads, dtype, tolerance
):
    arrays, mask = _arrays(dtype), _mask(heads)

    def both(function, **options):
        def loss(*arrays):
            out = function(*arrays, mask, **options)
            return jnp.sin(out.astype(jnp.float32)).sum(), out

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)

    gradients, out = both(scaled_dot_product_attention)
    fused_gradients, fused_out = both(fused_attention, implementation="xla")
    assert fused_out.dtype == out.dtype == dtype
    assert not np.asarray(fused_out[0, 2], np.float32).any()
    for ours, theirs in zip([out, *gradients], [fused_out, *fused_gradients], strict=True):
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        np.testing.assert_allclose(theirs, ours, atol=tolerance)


def _device(platform="gpu", capability="9.0"):
    return SimpleNamespace(platform=platform, compute_capability=capability)


@pytest.mark.parametrize(
    ("device", "arrays", "takes"),
    [
        (_device(), {}, True),
        (_device(capability="8.0"), {}, True),
        (_device(capability="12.0"), {}, True),
        (_device(capability="7.5"), {}, False),
        (_device(capability="gfx942"), {}, False),
        (_device("tpu"), {}, False),
        (SimpleNamespace(platform="cpu"), {}, False),
        (_device(), {"dtype": jnp.float16}, True),
        (_device(), {"dtype": jnp.float32}, False),
        (_device(), {"length": 5}, False),
        (_device(), {"d_k": 12, "d_v": 12}, False),
        (_device(), {"d_k": 136, "d_v": 136}, False),
        (_device(), {"d_v": 16}, False),
    ],
)
def test_the_kernel_is_taken_only_for_what_it_can_do(monkeypatch, device, arrays, takes):
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert has_kernel(*_arrays(**{"dtype": jnp.bfloat16, **arrays})) is takes


def test_attention_goes_through_the_kernel_where_there_is_one(monkeypatch):
    def kernel(query, key, value, mask):
        del key, value, mask
        return jnp.full_like(query, 7)

    monkeypatch.setattr(attention, "has_kernel", lambda *_: True)
    monkeypatch.setattr(attention, "fused_attention", kernel)
    arrays, mask = _arrays(), _mask(1)
    dropped = {"dropout_rate": 0.5, "dropout_key": DropoutKey(jax.random.key(0))}
    assert (scaled_dot_product_attention(*arrays, mask) == 7).all()
    # It keeps no weights that could be dropped. Without a mask nothing in the model calls it.
    assert not (scaled_dot_product_attention(*arrays, mask, **dropped) == 7).any()
    assert (
        scaled_dot_product_attention(*arrays, mask, **{**dropped, "dropout_rate": 0.0}) == 7
    ).all()
