"""JAX's fused attention in place of ours: the same numbers, and only where its kernel can run.

The kernel itself needs an NVIDIA GPU; its XLA form, which takes the same arguments, does not.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.functional.attention import scaled_dot_product_attention
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.kernels import attention as attention_module
from t2t_jax.kernels.attention import fused_attention, is_fused
from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.gpu import CUDNN_GPU, GPU
from t2t_jax.kernels.tpu import TPU
from tests.kernels.comparison import assert_close, heads_of, normal, values_and_gradients


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
    arrays, mask, cotangent = _arrays(dtype), _mask(heads), jnp.cos(normal(2, 2, 6, 3, 8))

    def fused(*arrays):
        found, rows = fused_attention(*arrays, mask, implementation="xla")
        assert (rows is None) == (heads > 1)
        return found if rows is None else jnp.where(rows[..., None], found, 0)

    ours = partial(scaled_dot_product_attention, mask=mask)
    expected = values_and_gradients(ours, arrays, cotangent)
    found = values_and_gradients(fused, arrays, cotangent)
    assert found[0].dtype == expected[0].dtype == dtype
    assert not np.asarray(found[0][0, 2], np.float32).any()
    assert_close(found, expected, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 0.03)])
def test_gradients_of_scores_that_are_not_rounded_give_the_same(dtype, tolerance):
    arrays, mask = _arrays(dtype), _mask(3)

    expected, found = (
        values_and_gradients(
            partial(heads_of(kernels.attention), mask=mask), arrays, jnp.cos(normal(2, 2, 6, 3, 8))
        )
        for kernels in (CPU, TPU)
    )
    assert {one.dtype for one in (*found, *expected)} == {jnp.dtype(dtype)}
    assert_close(found, expected, atol=tolerance)


@pytest.mark.parametrize(
    ("arrays", "takes"),
    [
        ({}, True),
        ({"dtype": jnp.float16}, True),
        ({"dtype": jnp.float32}, False),
        ({"length": 5}, False),
        ({"d_k": 12, "d_v": 12}, False),
        ({"d_k": 136, "d_v": 136}, False),
        ({"d_v": 16}, False),
    ],
)
def test_the_kernel_is_taken_only_for_what_it_can_do(arrays, takes):
    assert is_fused(*_arrays(**{"dtype": jnp.bfloat16, **arrays})) is takes


def test_attention_goes_through_the_kernel_where_there_is_one(monkeypatch):
    def kernel(query, key, value, mask, scale):
        del key, value, mask, scale
        return jnp.full_like(query, 7), None

    monkeypatch.setattr(attention_module, "fused_attention", kernel)
    arrays, mask = _arrays(jnp.bfloat16), _mask(1)
    dropped = {"dropout_rate": 0.5, "dropout_key": DropoutKey(jax.random.key(0))}
    attention = heads_of(CUDNN_GPU.attention)
    assert (attention(*arrays, mask) == 7).all()
    assert not (heads_of(CPU.attention)(*arrays, mask) == 7).any()
    # It keeps no weights that could be dropped.
    assert not (attention(*arrays, mask, **dropped) == 7).any()
    none_dropped = {**dropped, "dropout_rate": 0.0}
    assert (attention(*arrays, mask, **none_dropped) == 7).all()


def test_rows_that_attend_to_nothing_are_zero_in_the_product_with_the_heads(monkeypatch):
    def kernel(*arrays):
        return fused_attention(*arrays, implementation="xla")

    monkeypatch.setattr(attention_module, "fused_attention", kernel)
    arrays, mask = _arrays(jnp.bfloat16), _mask(1)
    weight = jnp.array(np.random.default_rng(2).normal(size=(3 * 8, 5)), jnp.bfloat16)
    bias = jnp.ones(5, jnp.bfloat16)

    @partial(jax.jit, static_argnums=0)
    @partial(jax.value_and_grad, argnums=(1, 2, 3, 4), has_aux=True)
    def projected(kernels, weight, *arrays):
        heads, rows = kernels.attention(*arrays, mask)
        result = kernels.linear(heads.reshape(2, 6, 24), weight, bias, rows)
        return jnp.sin(result.astype(jnp.float32)).sum(), (result, rows)

    (_, (result, rows)), gradients = projected(CUDNN_GPU, weight, *arrays)
    (_, (expected, none)), expected_gradients = projected(GPU, weight, *arrays)
    assert none is None
    assert not rows[0, 2, 0]
    assert (np.asarray(result[0, 2], np.float32) == 1).all()  # the bias alone
    assert_close([result, *gradients], [expected, *expected_gradients], atol=0.1)


@pytest.mark.parametrize("keys", [8, 64, 128, 192])
def test_cudnn_is_given_lengths_where_its_derivative_is_not_a_number_without(monkeypatch, keys):
    """On Hopper GPUs it fails for 64 keys more than a multiple of 128 (cudnn-frontend, 628)."""
    given = {}

    def record(query, key, value, **options):
        given.update(options)
        return query

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    arrays = [jnp.zeros((2, n, 3, 8), jnp.bfloat16) for n in (6, keys, keys)]
    mask = jnp.zeros((2, 1, 6, keys), bool).at[0].set(True)
    _, rows = fused_attention(*arrays, mask)
    np.testing.assert_array_equal(rows, np.array([True, False])[:, None, None].repeat(6, 1))
    is_wrong = keys in (64, 192)
    assert given["mask"].any(-1).all() == is_wrong  # no query is left without a key
    if is_wrong:
        np.testing.assert_array_equal(given["query_seq_lengths"], [6, 6])
        np.testing.assert_array_equal(given["key_value_seq_lengths"], [keys, keys])
    assert ("query_seq_lengths" in given) == is_wrong
