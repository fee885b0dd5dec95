"""Matrix products and their derivatives."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.products import Transposed, einsum_float32, logits_on_accelerators
from t2t_jax.kernels.reference import REFERENCE
from t2t_jax.kernels.tpu import TPU
from tests.kernels.comparison import assert_close, values_and_gradients


def _operands(dtype):
    keys = jax.random.split(jax.random.key(0))
    return (jax.random.normal(keys[0], (2, 3, 4), dtype), jax.random.normal(keys[1], (5, 4), dtype))


def _rounded_logits(x, embedding):
    return logits_on_accelerators(x, embedding, x.dtype)


def test_the_derivative_multiplies_bfloat16_by_bfloat16():
    a, b = _operands(jnp.bfloat16)

    def total(a, b):
        return einsum_float32("btd,vd->btv", a, b).sum()

    text = jax.jit(jax.grad(total, argnums=(0, 1))).lower(a, b).as_text()
    operands = re.findall(r"dot_general.*: \((.*)\) ->", text)
    assert len(operands) >= 2
    assert all(re.fullmatch(r"tensor<\w*bf16>, tensor<\w*bf16>", pair) for pair in operands)


def test_logits_are_products_with_the_rows_in_the_dtype_of_the_output():
    x, embedding = _operands(jnp.float32)
    exact = np.float64(x) @ np.float64(embedding).T
    np.testing.assert_allclose(CPU.logits(x, embedding), exact, rtol=1e-5, atol=1e-6)
    narrow = x.astype(jnp.bfloat16)
    rounded = np.float64(narrow) @ np.float64(embedding.astype(jnp.bfloat16)).T
    logits = CPU.logits(narrow, embedding)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, rounded, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "equation", "shape"),
    [
        (partial(einsum_float32, "btd,vd->btv"), "btd,vd->btv", (5, 4)),
        (CPU.linear, "btd,dv->btv", (4, 5)),
        (REFERENCE.linear, "btd,dv->btv", (4, 5)),
        (CPU.logits, "btd,vd->btv", (5, 4)),
        (TPU.logits, "btd,vd->btv", (5, 4)),
        (REFERENCE.logits, "btd,vd->btv", (5, 4)),
        (_rounded_logits, "btd,vd->btv", (5, 4)),  # of float32, nothing is rounded
    ],
)
def test_derivatives_written_out_are_those_of_the_product(function, equation, shape):
    x, _ = _operands(jnp.float32)
    matrix = jax.random.normal(jax.random.key(2), shape)
    cotangent = jax.random.normal(jax.random.key(1), (2, 3, 5))
    found = values_and_gradients(function, [x, matrix], cotangent)
    expected = values_and_gradients(partial(jnp.einsum, equation), [x, matrix], cotangent)
    assert_close(found[:1], expected[:1], rtol=1e-6)
    assert_close(found[1:], expected[1:], rtol=1e-5, atol=1e-6)


def test_rounded_logits_are_sums_in_float32_rounded_once_and_so_are_their_gradients():
    x = jax.random.normal(jax.random.key(7), (2, 3, 64), jnp.bfloat16)
    embedding = jax.random.normal(jax.random.key(8), (5, 64))
    logits, pull_back = jax.vjp(_rounded_logits, x, embedding)
    exact = np.float64(x) @ np.float64(embedding.astype(jnp.bfloat16)).T
    assert logits.dtype == jnp.bfloat16
    np.testing.assert_array_equal(logits, exact.astype(jnp.bfloat16))
    cotangent = jax.random.normal(jax.random.key(9), logits.shape, jnp.bfloat16)
    of_x, of_embedding = pull_back(cotangent)
    assert (of_x.dtype, of_embedding.dtype) == (jnp.bfloat16, jnp.float32)
    exact = np.einsum("btv,btd->vd", np.float64(cotangent), np.float64(x))
    np.testing.assert_array_equal(of_embedding, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("kernels", [CPU, REFERENCE], ids=["cpu", "reference"])
@pytest.mark.parametrize("rows", [1, 40])  # 2 and 80 vectors: few, and many
def test_logits_of_the_next_token_are_those_of_every_token(rows, kernels):
    x = jax.random.normal(jax.random.key(3), (2, rows, 4))
    embedding = jax.random.normal(jax.random.key(4), (7, 4))
    expected, found = kernels.logits(x, embedding), kernels.next_logits(x, embedding)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (2, 40)])  # one vector, few, and many
def test_a_transposed_kernel_gives_the_same(shape, dtype):
    x = jax.random.normal(jax.random.key(5), (*shape, 4), dtype)
    kernel = jax.random.normal(jax.random.key(6), (4, 7), dtype)
    expected, result = CPU.linear(x, kernel), CPU.linear(x, Transposed(kernel.T))
    assert result.dtype == dtype
    near = 1e-5 if dtype == jnp.float32 else 0.02
    np.testing.assert_allclose(*(np.float32(y) for y in (result, expected)), rtol=near, atol=near)
