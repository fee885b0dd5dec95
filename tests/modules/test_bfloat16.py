"""Models in bfloat16 with products in their form for CPUs: the same function, but for roundings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.kernels import cpu
from t2t_jax.kernels.cpu import CPU, CPU_BFLOAT16
from t2t_jax.kernels.gpu import GPU
from t2t_jax.kernels.tpu import TPU_BFLOAT16

_SOURCES = [[[3, 4, 5, 6, 2], [7, 2]], [[8, 9, 2]]]
_TARGETS = [[[4, 5, 2], [6, 2]], [[3, 10, 9, 8, 2]]]


def _losses_and_gradients(model, batch, **attributes):
    module = model.module.clone(**attributes)

    def loss(variables):
        options = {"label_smoothing": 0.1, "deterministic": False, "method": "losses"}
        rngs = {"dropout": jax.random.key(1)}
        smoothed, _ = module.apply(variables, batch, rngs=rngs, **options)
        return smoothed.sum()

    compute = jax.jit(jax.value_and_grad(loss))
    return compute, jax.tree.leaves(compute(model.variables))


def _distance(leaves, others):
    squares = [
        np.square(np.float64(a) - np.float64(b)).sum() for a, b in zip(leaves, others, strict=True)
    ]
    return np.sqrt(sum(squares))


@pytest.mark.thorough
@pytest.mark.parametrize("remat", ["none", "dots", pytest.param("layer", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_order": "pre", "share_embeddings": False, "d_k": 6, "d_v": 10, "d_ff": 20}],
    ids=["paper", "others"],
)
def test_gradients_are_as_near_to_float32_as_those_of_plain_products(
    make_model, make_batch, changes, remat
):
    batch = make_batch(_SOURCES, _TARGETS)
    wide, narrow = make_model(**changes), make_model(**changes, compute_dtype="bfloat16")
    _, exact = _losses_and_gradients(wide, batch)
    _, plain = _losses_and_gradients(narrow, batch, remat=remat)
    _, ours = _losses_and_gradients(narrow, batch, remat=remat, kernels=CPU_BFLOAT16)
    assert 0 < _distance(ours, exact) < 1.2 * _distance(plain, exact)


@pytest.mark.thorough
def test_the_forms_for_accelerators_are_as_near_to_float32(make_model, make_batch):
    batch = make_batch(_SOURCES, _TARGETS)
    wide, narrow = (make_model(output_bias=True, compute_dtype=t) for t in ("float32", "bfloat16"))
    _, exact = _losses_and_gradients(wide, batch)
    _, plain = _losses_and_gradients(narrow, batch)
    for kernels in (GPU, TPU_BFLOAT16):
        _, ours = _losses_and_gradients(narrow, batch, kernels=kernels)
        assert 0 < _distance(ours, exact) < 1.2 * _distance(plain, exact)


@pytest.mark.thorough
def test_layers_with_large_arrays_are_compiled_one_by_one(make_model, make_batch, monkeypatch):
    model = make_model(compute_dtype="bfloat16")
    batch = make_batch(_SOURCES, _TARGETS)
    in_a_loop, looped = _losses_and_gradients(model, batch, kernels=CPU_BFLOAT16)
    monkeypatch.setattr(cpu, "_MIN_UNROLLED_SIZE", 1)
    one_by_one, unrolled = _losses_and_gradients(model, batch, kernels=CPU_BFLOAT16)
    with_loops, without = (
        program.lower(model.variables).compile().as_text().count(" while(")
        for program in (in_a_loop, one_by_one)
    )
    assert with_loops - without == 4  # those of either stack, and of its derivative
    # From jaxlib 0.11 on, XLA leaves out a rounding between two layers, which is nearer to float32.
    _, exact = _losses_and_gradients(make_model(), batch)
    assert _distance(unrolled, exact) < 1.01 * _distance(looped, exact)
    assert _distance(unrolled, looped) < 0.5 * _distance(looped, exact)
    _, plain = _losses_and_gradients(model, batch, kernels=CPU)
    assert plain[0].dtype == unrolled[0].dtype == jnp.float32
