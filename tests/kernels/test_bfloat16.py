"""Products of bfloat16 matrices in their forms for CPUs: the same products, and in bfloat16."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.kernels import bfloat16
from t2t_jax.kernels.products import einsum_float32
from t2t_jax.system.host import instruction_sets
from tests.kernels.comparison import values_and_gradients
from tests.selection import thorough_after

_SIZES = st.integers(1, 40) | st.sampled_from([16, 32, 48])


@settings(max_examples=20)  # each compiles
@given(_SIZES, _SIZES, st.sampled_from([jnp.bfloat16, jnp.float32]))
def test_a_matrix_of_any_shape_is_transposed(m, n, dtype):
    matrix = np.random.default_rng(0).normal(size=(m, n)).astype(dtype)
    np.testing.assert_array_equal(jax.jit(bfloat16.transpose)(matrix), matrix.T)


def _normal(seed, *shape):
    """Random numbers that bfloat16 holds exactly."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def _assert_is_rounded(result, equation, a, b):
    """The result is the sum of exact products in float32, rounded once to the result's dtype."""
    a, b = np.float64(a), np.float64(b)
    exact, terms = np.einsum(equation, a, b), np.einsum(equation, np.abs(a), np.abs(b))
    rounding = 2**-7 if result.dtype == jnp.bfloat16 else 0
    error = np.abs(np.float64(result) - exact)
    assert (error <= rounding * np.abs(exact) + 1e-6 * terms).all()


_PRODUCTS = {
    "linear": (bfloat16.linear, "btd,dv->btv"),
    "logits": (bfloat16.pre_softmax_logits, "btd,vd->btv"),
}
_SHAPES = [  # of the positions, and the widths of both sides
    ((1, 1), 16, 32),
    ((1, 1), 32, 16),
    ((1, 1), 5, 3),
    ((2, 3), 1, 7),
    ((2, 3), 7, 1),
    ((1, 5), 1, 1),
    ((4, 8), 16, 48),
    ((4, 8), 48, 16),
    ((1, 16), 24, 20),
    ((3, 3), 20, 32),
    ((3, 3), 32, 20),
]


@pytest.mark.parametrize(("positions", "d", "v"), _SHAPES)
@pytest.mark.parametrize(("function", "equation"), _PRODUCTS.values(), ids=_PRODUCTS)
def test_products_and_their_gradients_are_exact_sums_that_are_rounded(
    function, equation, positions, d, v
):
    sizes = dict(zip("btdv", (*positions, d, v), strict=True))
    axes = [*equation.split("->")[0].split(","), equation.split("->")[1]]
    a, b, cotangent = (
        _normal(seed, *(sizes[axis] for axis in names)) for seed, names in enumerate(axes)
    )
    value, a_bar, b_bar = values_and_gradients(function, [a, b], cotangent)
    of_a, of_b, of_result = axes
    _assert_is_rounded(value, equation, a, b)
    _assert_is_rounded(a_bar, f"{of_result},{of_b}->{of_a}", cotangent, b)
    _assert_is_rounded(b_bar, f"{of_result},{of_a}->{of_b}", cotangent, a)
    assert a_bar.dtype == b_bar.dtype == jnp.bfloat16


@pytest.mark.parametrize(("positions", "d", "v"), _SHAPES)
@pytest.mark.parametrize("dtype", thorough_after(1, [jnp.bfloat16, jnp.float32]))
@pytest.mark.parametrize("equation", thorough_after(1, ["vd,btd->vbt", "btd,vd->btv"]))
def test_products_of_decoding_are_exact_sums_that_are_rounded(equation, dtype, positions, d, v):
    x, rows = _normal(0, *positions, d), _normal(1, v, d)
    a, b = (x, rows) if equation.startswith("b") else (rows, x)
    result = jax.jit(partial(einsum_float32, equation))(a, b).astype(dtype)
    assert result.dtype == dtype
    _assert_is_rounded(result, equation, a, b)


def test_the_embedding_is_rounded_for_the_logits_and_its_gradient_has_its_dtype():
    x, cotangent = _normal(0, 2, 8, 16), _normal(1, 2, 8, 48)
    embedding = jax.random.normal(jax.random.key(2), (48, 16))
    logits, _, gradient = values_and_gradients(
        bfloat16.pre_softmax_logits, [x, embedding], cotangent
    )
    _assert_is_rounded(logits, "btd,vd->btv", x, embedding.astype(jnp.bfloat16))
    assert logits.dtype == gradient.dtype == jnp.float32
    _assert_is_rounded(gradient.astype(jnp.bfloat16), "btv,btd->vd", cotangent, x)


@pytest.mark.parametrize(("positions", "width"), [((1, 1), 16), ((1, 1), 1), ((4, 9), 20)])
def test_a_bias_is_added_everywhere_and_its_gradient_is_the_sum(positions, width):
    shapes = (*positions, width), (width,), (*positions, width)
    x, bias, cotangent = (_normal(seed, *shape) for seed, shape in enumerate(shapes))
    value, x_bar, bias_bar = values_and_gradients(bfloat16.add_bias, [x, bias], cotangent)
    np.testing.assert_array_equal(value, x + bias)
    np.testing.assert_array_equal(x_bar, cotangent)
    _assert_is_rounded(bias_bar, "btd,o->d", cotangent, np.ones(1))


_OURS = bfloat16.linear, bfloat16.add_bias, bfloat16.pre_softmax_logits
_PLAIN = jnp.matmul, jnp.add, lambda x, embedding: x @ embedding.T


def _layers(functions, remat, x, embedding, stacked):
    """Two layers in a scan, of two products each, and logits; their sum is a loss."""
    linear, add_bias, logits = functions

    def layer(x, params):
        inward, bias, outward = params
        hidden = jnp.tanh(add_bias(linear(x, inward), bias))
        return x + linear(hidden, outward), None

    x, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, stacked)
    return jnp.sin(logits(x, embedding)).sum()


def _gradients_of_layers(positions, d_model, d_ff, remat):
    """The function that computes gradients of the layers, and its operands."""
    vocab = 24 if d_model % 16 else 32
    of_layers = (2, d_model, d_ff), (2, d_ff), (2, d_ff, d_model)
    shapes = (*positions, d_model), (vocab, d_model), *of_layers
    x, embedding, *stacked = (
        _normal(seed, *shape) / jnp.sqrt(shape[-1]).astype(jnp.bfloat16)
        for seed, shape in enumerate(shapes)
    )
    loss = partial(_layers, _OURS, remat)
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))), (x, embedding, tuple(stacked))


@pytest.mark.parametrize("remat", thorough_after(1, [True, False]))
@pytest.mark.parametrize(
    ("positions", "d_model", "d_ff"),
    [((2, 8), 16, 48), ((2, 8), 48, 16), ((1, 1), 16, 32), ((3, 3), 12, 20)],
)
def test_layers_in_a_scan_run_and_have_the_gradients_of_float32(positions, d_model, d_ff, remat):
    compute, operands = _gradients_of_layers(positions, d_model, d_ff, remat)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), operands)
    plain = partial(_layers, _PLAIN, False)
    expected = jax.jit(jax.grad(plain, argnums=(0, 1, 2)))(*wide)
    for got, want in zip(*map(jax.tree.leaves, (compute(*operands), expected)), strict=True):
        assert got.dtype == jnp.bfloat16
        # A dozen roundings of 2**-9 each.
        assert np.linalg.norm(np.float32(got) - want) < 0.03 * np.linalg.norm(want)


def _dtypes_of_operands(compiled):
    """The dtypes of both operands of every product of a compiled program, within fusions too."""
    dtypes = dict(re.findall(r"%([\w.-]+) = (\w+)\[", compiled.as_text()))
    products = re.findall(r" dot\((.*?)\), ", compiled.as_text())
    return [{dtypes[name] for name in re.findall(r"%([\w.-]+)", one)} for one in products]


@pytest.mark.skipif(
    {"avx512_bf16", "amx_bf16"}.isdisjoint(instruction_sets()),
    reason="XLA multiplies in float32 on CPUs without instructions for bfloat16",
)
@pytest.mark.parametrize("remat", [False, True])
def test_products_of_layers_in_a_scan_are_compiled_with_operands_in_bfloat16(remat):
    compute, operands = _gradients_of_layers((4, 16), 64, 128, remat)
    products = _dtypes_of_operands(compute.lower(*operands).compile())
    # Two products with two gradients each, the sum for the bias, and the logits with theirs. With
    # remat a layer computes the first of its products again, whose result the gradients need.
    assert products == (10 + remat) * [{"bf16"}]
