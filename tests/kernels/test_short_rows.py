"""The kernels for short rows compute equation 1, here as the interpreter of Pallas runs them."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import ParallelConfig
from t2t_jax.functional.attention import scaled_dot_product_attention
from t2t_jax.kernels import short_rows
from t2t_jax.kernels.gpu import CUDNN_GPU
from t2t_jax.parallel.axes import on_mesh
from t2t_jax.parallel.mesh import make_mesh
from tests.kernels.comparison import heads_of, normal, values_and_gradients
from tests.parallel.test_meshes import on_eight_devices

_attention = heads_of(CUDNN_GPU.attention)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpreted = partial(short_rows.short_attention, interpret=True)
    monkeypatch.setattr(short_rows, "short_attention", interpreted)


def _arrays(rows, queries, keys, heads=2, width=16, groups=None):
    rng = np.random.default_rng(queries)
    shapes = (rows, queries, heads, width), *[(rows, keys, groups or heads, width)] * 2
    return [jnp.array(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]


def _mask(rows, queries, keys):
    mask = np.random.default_rng(keys).random((rows, 1, queries, keys)) < 0.4
    mask[:, :, queries // 2] = False  # queries that may attend to nothing
    mask[-1] = False
    return jnp.array(mask)


def _both(attend, arrays, dtype):
    """Values, and the derivatives of their sum with given weights, in float32."""
    cast, weights = [x.astype(dtype) for x in arrays], normal(9, *arrays[0].shape)
    return [np.asarray(x, np.float32) for x in values_and_gradients(attend, cast, weights)]


# Lengths of blocks, shorter and longer ones, and queries that are more and fewer than keys.
@pytest.mark.parametrize(
    ("queries", "keys", "width"), [(64, 64, 32), (40, 56, 16), (8, 24, 16), (33, 5, 64)]
)
def test_values_and_derivatives_are_those_of_float32(queries, keys, width):
    arrays, mask = _arrays(3, queries, keys, width=width), _mask(3, queries, keys)
    mesh = make_mesh(ParallelConfig(data=1))

    def at_once(*arrays):
        with on_mesh(mesh):
            assert short_rows.fits(*arrays, mask)
            return short_rows.short_attention(*arrays, mask)

    found = _both(at_once, arrays, jnp.bfloat16)
    exact = _both(partial(scaled_dot_product_attention, mask=mask), arrays, jnp.float32)
    for one, other in zip(found, exact, strict=True):
        assert np.linalg.norm(one - other) < 0.004 * np.linalg.norm(other)  # of bfloat16
    assert not found[0][:, queries // 2].any()
    assert not found[0][-1].any()


def test_a_mask_of_all_queries_alike_is_spread():
    arrays = _arrays(2, 8, 8)
    mask = jnp.arange(8)[None, None, None] < jnp.array([3, 8])[:, None, None, None]
    with on_mesh(make_mesh(ParallelConfig(data=1))):
        assert short_rows.fits(*arrays, mask)
        found = jax.jit(lambda *x: short_rows.short_attention(*x, mask))(*arrays)
    exact = scaled_dot_product_attention(*arrays, mask)
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (found, exact)), atol=0.03)


@pytest.mark.parametrize(
    ("arrays", "mask_heads", "taken"),
    [
        ({}, 1, True),
        ({"queries": 66}, 1, False),
        ({"keys": 66}, 1, False),
        ({"width": 24}, 1, False),  # cuDNN takes it
        ({"width": 128}, 1, False),
        ({"groups": 1}, 1, False),
        ({}, 2, False),
    ],
)
def test_only_what_the_kernels_can_do_is_given_to_them(arrays, mask_heads, taken):
    sizes = {"rows": 2, "queries": 64, "keys": 64} | arrays
    mask = jnp.ones((2, mask_heads, sizes["queries"], sizes["keys"]), bool)
    given = _arrays(**sizes)
    assert not short_rows.fits(*given, mask)  # the devices are not known
    with on_mesh(make_mesh(ParallelConfig(data=1))):
        assert short_rows.fits(*given, mask) is taken


def test_a_jax_without_triton_leaves_these_rows_to_cudnn(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    short_rows._has_triton.cache_clear()
    with on_mesh(make_mesh(ParallelConfig(data=1))):
        assert not short_rows.fits(*_arrays(2, 8, 8), _mask(2, 8, 8))
    monkeypatch.undo()
    short_rows._has_triton.cache_clear()


@pytest.mark.parametrize("is_known", [True, False])
def test_attention_goes_through_them_where_the_devices_are_known(monkeypatch, is_known):
    def cudnn(query, key, value, mask, scale):
        del key, value, mask, scale
        return jnp.full_like(query, 7), None

    monkeypatch.setattr("t2t_jax.kernels.attention.fused_attention", cudnn)
    with on_mesh(make_mesh(ParallelConfig(data=1)) if is_known else None):
        found = _attention(*_arrays(2, 8, 8), _mask(2, 8, 8))
    assert (found == 7).all() != is_known


def on_meshes():
    """Each device computes its rows and heads; run where there are eight devices."""
    with pytest.MonkeyPatch.context() as patch:
        interpreted = partial(short_rows.short_attention, interpret=True)
        patch.setattr(short_rows, "short_attention", interpreted)
        arrays, mask = _arrays(8, 8, 8, heads=4), _mask(8, 8, 8)
        exact = _both(partial(scaled_dot_product_attention, mask=mask), arrays, jnp.float32)
        for axes in ({"data": 8}, {"data": 2, "tensor": 4}, {"data": 2, "fsdp": 4}):
            mesh = make_mesh(ParallelConfig(**axes))

            def split(*arrays, mesh=mesh):
                with on_mesh(mesh):
                    return _attention(*arrays, mask)

            for one, other in zip(_both(split, arrays, jnp.bfloat16), exact, strict=True):
                assert np.linalg.norm(one - other) < 0.004 * np.linalg.norm(other)


def test_each_device_computes_its_rows_and_heads():
    on_eight_devices("on_meshes", file=__file__)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
