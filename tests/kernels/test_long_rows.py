"""What every kernel for long rows has to hold: in blocks, and JAX's kernel for TPUs."""

import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels import blockwise
from t2t_jax.kernels.cpu import CPU
from tests.kernels.comparison import assert_close, heads_of, normal, values_and_gradients
from tests.kernels.test_splash import in_the_kernel, interpreted, mesh_of_axes


@pytest.fixture(scope="module", params=["in blocks", "splash"])
def attend(request):
    """A function of a mask that returns the attention under it, in several blocks."""
    with interpreted(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "_BLOCK", 64)
        if request.param == "splash":
            yield lambda mask: in_the_kernel(mask, mesh_of_axes())
        else:
            yield lambda mask: lambda *arrays: heads_of(CPU.attention)(*arrays, mask)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e18])
def test_what_is_hidden_has_no_weight_at_all_whatever_its_score(attend, size):
    query = jnp.full((1, 200, 1, 8), size, jnp.float32)
    key = query.at[:, 100:].multiply(3)  # the hidden keys have by far the largest scores
    value = jnp.ones((1, 200, 1, 8)).at[:, 100:].set(1e30)
    segments = jnp.ones((1, 200), jnp.int32)
    mask = SegmentMask(segments, segments.at[:, 100:].set(0))
    np.testing.assert_array_equal(attend(mask)(query, key, value), jnp.ones((1, 200, 1, 8)))


def test_where_nothing_may_be_attended_to_all_is_zero(attend):
    arrays = [normal(seed, 1, 200, 2, 8) for seed in range(3)]
    zeros = jnp.zeros((1, 200), jnp.int32)
    for mask in (SegmentMask(zeros, zeros, causal=True), SegmentMask(zeros + 1, zeros)):
        for array in values_and_gradients(attend(mask), arrays, jnp.ones((1, 200, 2, 8))):
            np.testing.assert_array_equal(array, np.zeros_like(array))


def test_bfloat16_stays_near_float32(attend):
    arrays = [normal(seed, 2, 200, 2, 8) for seed in range(3)]
    segments, cotangent = jnp.ones((2, 200), jnp.int32), normal(3, 2, 200, 2, 8)
    attend_causally = attend(SegmentMask(segments, segments, causal=True))
    exact = values_and_gradients(attend_causally, arrays, cotangent)
    halved = [array.astype(jnp.bfloat16) for array in arrays]
    rounded = values_and_gradients(attend_causally, halved, cotangent)
    assert {array.dtype for array in rounded} == {jnp.dtype(jnp.bfloat16)}
    assert_close(rounded, exact, rtol=0.1, atol=0.1)
