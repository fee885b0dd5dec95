"""JAX's kernel for TPUs computes equation 1, here as the interpreter of Pallas runs it."""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

from t2t_jax.config import ParallelConfig
from t2t_jax.functional.attention import repeat_heads, scaled_dot_product_attention
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels import splash
from t2t_jax.kernels.attention import attention
from t2t_jax.kernels.choice import Kernels
from t2t_jax.parallel.axes import on_mesh
from t2t_jax.parallel.mesh import make_mesh
from tests.parallel.test_meshes import on_eight_devices

_SPLASH = Kernels("xla_fused", "fused", long_rows="splash")


@contextmanager
def _interpreted():
    """Several blocks, of a kernel that runs on any device."""
    make = partial(splash_attention_kernel.make_splash_mha, interpret=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splash, "_LARGEST_BLOCK", 128)
        patch.setattr(splash_attention_kernel, "make_splash_mha", make)
        yield


@pytest.fixture(scope="module", autouse=True)
def _on_any_device():
    with _interpreted():
        yield


def _normal(seed, *shape):
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _segments(seed, rows, length):
    """Sentences one after the other, with padding within and at the end."""
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.integers(1, 4, (rows, length))) * (rng.random((rows, length)) < 0.9)
    return jnp.array(numbers, jnp.int32).at[:, -7:].set(0)


def _mesh(**axes):
    return make_mesh(ParallelConfig(**{"data": 1} | axes))


def _both(attend, arrays, cotangent):
    """Values, and the derivatives of their sum with given weights."""

    def weighted(*arrays):
        heads = attend(*arrays)
        return (heads.astype(jnp.float32) * cotangent).sum(), heads

    (_, heads), gradient = jax.jit(jax.value_and_grad(weighted, (0, 1, 2), has_aux=True))(*arrays)
    return heads, *gradient


def _in_the_kernel(mask, mesh):
    def attend(*arrays):
        with on_mesh(mesh):
            return attention(*arrays, mask, kernels=_SPLASH)

    return attend


def _as_a_whole(mask):
    def attend(query, key, value):
        key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
        return scaled_dot_product_attention(query, key, value, mask.whole())

    return attend


@cache
def _case(causal, groups=4):
    queries, keys = (200, 200) if causal else (130, 300)
    segments = _segments(1, 2, queries)
    # No key has the number 3: its queries may attend to nothing.
    others = segments if causal else jnp.where(_segments(2, 2, keys) == 3, 0, _segments(2, 2, keys))
    arrays = _normal(3, 2, queries, 4, 8), _normal(4, 2, keys, groups, 8)
    mask = SegmentMask(segments, others, causal)
    return (*arrays, _normal(5, 2, keys, groups, 16)), mask, _normal(6, 2, queries, 4, 16)


def _pallas_calls(function, *arrays):
    return str(jax.make_jaxpr(function)(*arrays)).count("pallas_call")


@pytest.mark.parametrize("groups", [4, 2], ids=["heads", "groups of heads"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "cross"])
def test_values_and_derivatives_are_those_of_the_equation(causal, groups):
    arrays, mask, cotangent = _case(causal, groups)
    attend = _in_the_kernel(mask, _mesh())
    assert _pallas_calls(attend, *arrays) == 1
    found = _both(attend, arrays, cotangent)
    expected = _both(_as_a_whole(mask), arrays, cotangent)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    nothing = ~np.asarray(mask.whole().any(-1)[:, 0])
    assert nothing.any()
    np.testing.assert_array_equal(found[0][nothing], 0)
    np.testing.assert_array_equal(found[1][nothing], 0)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e18])
def test_what_is_hidden_has_no_weight_at_all_whatever_its_score(size):
    query = jnp.full((1, 200, 1, 8), size, jnp.float32)
    key = query.at[:, 100:].multiply(3)  # the hidden keys have by far the largest scores
    value = jnp.ones((1, 200, 1, 8)).at[:, 100:].set(1e30)
    segments = jnp.ones((1, 200), jnp.int32)
    mask = SegmentMask(segments, segments.at[:, 100:].set(0))
    heads = _in_the_kernel(mask, _mesh())(query, key, value)
    np.testing.assert_array_equal(heads, jnp.ones((1, 200, 1, 8)))


def test_where_nothing_may_be_attended_to_all_is_zero():
    arrays = [_normal(seed, 1, 200, 2, 8) for seed in range(3)]
    zeros = jnp.zeros((1, 200), jnp.int32)
    for mask in (SegmentMask(zeros, zeros, causal=True), SegmentMask(zeros + 1, zeros)):
        attend = _in_the_kernel(mask, _mesh())
        for array in _both(attend, arrays, jnp.ones((1, 200, 2, 8))):
            np.testing.assert_array_equal(array, np.zeros_like(array))


def test_bfloat16_stays_near_float32():
    arrays, mask, cotangent = _case(True)
    attend = _in_the_kernel(mask, _mesh())
    rounded = _both(attend, [x.astype(jnp.bfloat16) for x in arrays], cotangent)
    for one, other in zip(rounded, _both(attend, arrays, cotangent), strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other, rtol=0.1, atol=0.1)


def on_meshes():
    """Each device computes its part, in layers that are computed again for their derivatives."""
    arrays, mask, cotangent = _case(True)
    expected = _both(_as_a_whole(mask), arrays, cotangent)
    for axes in ({"data": 2}, {"fsdp": 2, "tensor": 4}):
        attend = _in_the_kernel(mask, _mesh(**axes))
        assert "shard_map" in str(jax.make_jaxpr(attend)(*arrays))
        found = _both(jax.checkpoint(attend), arrays, cotangent)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def mapped():
    """The parts of a batch that `jax.vmap` maps over an axis of the mesh, as a step of passes."""
    arrays, mask, cotangent = _case(True)
    mesh = _mesh(data=2, tensor=2)

    @partial(jax.vmap, axis_name="data", spmd_axis_name="data")
    def gradient(segments, cotangent, *arrays):
        attend = _in_the_kernel(SegmentMask(segments, segments, causal=True), mesh)
        assert _pallas_calls(attend, *arrays) == 1
        return jax.grad(lambda *x: (attend(*x) * cotangent).sum(), (0, 1, 2))(*arrays)

    parts = [x[:, None] for x in (mask.query_segments, cotangent, *arrays)]
    _, *expected = _both(_as_a_whole(mask), arrays, cotangent)
    for one, other in zip(jax.jit(gradient)(*parts), expected, strict=True):
        np.testing.assert_allclose(one[:, 0], other, rtol=1e-5, atol=1e-5)


def _number(mesh, mask, arrays, **options):
    """How often an attention calls the kernel."""

    def attend(*arrays):
        with on_mesh(mesh):
            return attention(*arrays, mask, **{"kernels": _SPLASH} | options)

    return _pallas_calls(attend, *arrays)


def undivided():
    """Devices that would not have as many rows, or heads, have loops over blocks."""
    arrays, mask, _ = _case(True)
    assert [_number(_mesh(data=n), mask, arrays) for n in (1, 2, 4)] == [1, 1, 0]
    assert [_number(_mesh(tensor=n), mask, arrays) for n in (2, 4, 8)] == [1, 1, 0]


@pytest.mark.thorough
def test_on_several_devices():
    on_eight_devices("on_meshes", "mapped", "undivided", file=__file__)


def test_what_the_kernel_does_not_compute_is_computed_in_blocks():
    arrays, mask, _ = _case(True)
    one = _mesh()
    assert _number(one, mask, arrays) == 1
    assert _number(one, mask, arrays, kernels=Kernels()) == 0
    assert _number(None, mask, arrays) == 0  # devices that nothing is known of
    assert _number(one, replace(mask, window=150), arrays) == 0
    long = [jax.ShapeDtypeStruct((2, 1 << 17, 4, 8), jnp.float32)] * 3
    many = jnp.ones((2, 1 << 17), jnp.int32)
    assert _number(one, SegmentMask(many, many, causal=True), long) == 0
    assert _number(one, mask, [jnp.tile(x, 33) for x in arrays]) == 0  # heads of 264
    dropped = {"dropout_rate": 0.5, "dropout_key": DropoutKey(jax.random.key(0), 0)}
    assert _number(one, mask, arrays, **dropped) == 0
    assert _number(one, mask, arrays, **dropped | {"dropout_key": None}) == 1


def test_other_programs_do_not_import_pallas():
    code = "import sys, t2t_jax.modules.models; print('jax.experimental.pallas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


if __name__ == "__main__":
    with _interpreted():
        for name in sys.argv[1:]:
            globals()[name]()
