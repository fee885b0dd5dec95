"""JAX's kernel for TPUs computes equation 1, here as the interpreter of Pallas runs it."""

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
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels import splash
from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.reference import REFERENCE
from t2t_jax.kernels.tpu import TPU
from t2t_jax.parallel.axes import on_mesh
from t2t_jax.parallel.mesh import make_mesh
from tests.kernels.comparison import assert_close, heads_of, normal, values_and_gradients
from tests.parallel.test_meshes import on_eight_devices
from tests.programs import run_python
from tests.selection import thorough_after


@contextmanager
def interpreted():
    """Several blocks, of a kernel that runs on any device."""
    make = partial(splash_attention_kernel.make_splash_mha, interpret=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splash, "_MAX_BLOCK", 128)
        patch.setattr(splash_attention_kernel, "make_splash_mha", make)
        yield


@pytest.fixture(scope="module", autouse=True)
def _on_any_device():
    with interpreted():
        yield


def _segments(seed, rows, length):
    """Sentences one after the other, with padding within and at the end."""
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.integers(1, 4, (rows, length))) * (rng.random((rows, length)) < 0.9)
    return jnp.array(numbers, jnp.int32).at[:, -7:].set(0)


def mesh_of_axes(**axes):
    return make_mesh(ParallelConfig(**{"data": 1} | axes))


def in_the_kernel(mask, mesh, kernels=TPU, **options):
    def attend(*arrays):
        with on_mesh(mesh):
            return heads_of(kernels.attention)(*arrays, mask, **options)

    return attend


def _as_a_whole(mask):
    return lambda *arrays: heads_of(REFERENCE.attention)(*arrays, mask.dense())


@cache
def _case(causal, groups=4):
    queries, keys = (200, 200) if causal else (130, 300)
    segments = _segments(1, 2, queries)
    # No key has the number 3: its queries may attend to nothing.
    others = segments if causal else jnp.where(_segments(2, 2, keys) == 3, 0, _segments(2, 2, keys))
    arrays = normal(3, 2, queries, 4, 8), normal(4, 2, keys, groups, 8)
    mask = SegmentMask(segments, others, causal)
    return (*arrays, normal(5, 2, keys, groups, 16)), mask, normal(6, 2, queries, 4, 16)


def _pallas_calls(function, *arrays):
    return str(jax.make_jaxpr(function)(*arrays)).count("pallas_call")


@pytest.mark.parametrize("groups", thorough_after(2, [4, 2]), ids=["heads", "groups of heads"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "cross"])
def test_values_and_derivatives_are_those_of_the_equation(causal, groups):
    arrays, mask, cotangent = _case(causal, groups)
    attend = in_the_kernel(mask, mesh_of_axes())
    assert _pallas_calls(attend, *arrays) == 1
    found = values_and_gradients(attend, arrays, cotangent)
    expected = values_and_gradients(_as_a_whole(mask), arrays, cotangent)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)
    nothing = ~np.asarray(mask.dense().any(-1)[:, 0])
    assert nothing.any()
    np.testing.assert_array_equal(found[0][nothing], 0)
    np.testing.assert_array_equal(found[1][nothing], 0)


def on_meshes():
    """Each device computes its part, in layers that are computed again for their derivatives."""
    arrays, mask, cotangent = _case(True)
    expected = values_and_gradients(_as_a_whole(mask), arrays, cotangent)
    for axes in ({"data": 2}, {"fsdp": 2, "tensor": 4}):
        attend = in_the_kernel(mask, mesh_of_axes(**axes))
        assert "shard_map" in str(jax.make_jaxpr(attend)(*arrays))
        found = values_and_gradients(jax.checkpoint(attend), arrays, cotangent)
        assert_close(found, expected, rtol=1e-5, atol=1e-5)


def mapped():
    """The parts of a batch that `jax.vmap` maps over an axis of the mesh, as a step of passes."""
    arrays, mask, cotangent = _case(True)
    mesh = mesh_of_axes(data=2, tensor=2)

    @partial(jax.vmap, axis_name="data", spmd_axis_name="data")
    def gradient(segments, cotangent, *arrays):
        attend = in_the_kernel(SegmentMask(segments, segments, causal=True), mesh)
        assert _pallas_calls(attend, *arrays) == 1
        return jax.grad(lambda *x: (attend(*x) * cotangent).sum(), (0, 1, 2))(*arrays)

    parts = [x[:, None] for x in (mask.query_segments, cotangent, *arrays)]
    _, *expected = values_and_gradients(_as_a_whole(mask), arrays, cotangent)
    found = [x[:, 0] for x in jax.jit(gradient)(*parts)]
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def _number(mesh, mask, arrays, **options):
    """How often an attention calls the kernel."""
    return _pallas_calls(in_the_kernel(mask, mesh, **options), *arrays)


def undivided():
    """Devices that would not have as many rows, or heads, have loops over blocks."""
    arrays, mask, _ = _case(True)
    assert [_number(mesh_of_axes(data=n), mask, arrays) for n in (1, 2, 4)] == [1, 1, 0]
    assert [_number(mesh_of_axes(tensor=n), mask, arrays) for n in (2, 4, 8)] == [1, 1, 0]


@pytest.mark.thorough
def test_on_several_devices():
    on_eight_devices("on_meshes", "mapped", "undivided", file=__file__)


def test_what_the_kernel_does_not_compute_is_computed_in_blocks():
    arrays, mask, _ = _case(True)
    one = mesh_of_axes()
    assert _number(one, mask, arrays) == 1
    assert _number(one, mask, arrays, kernels=CPU) == 0
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
    done = run_python("-c", code)
    assert done.stdout.split() == ["False"]


if __name__ == "__main__":
    with interpreted():
        for name in sys.argv[1:]:
            globals()[name]()
