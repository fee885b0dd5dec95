"""The presets for CPUs: without and with instructions that multiply bfloat16."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32

from t2t_jax.kernels import bfloat16, reference
from t2t_jax.kernels.attention import FastAttention, blockwise_form
from t2t_jax.kernels.cross_entropy import losses
from t2t_jax.kernels.products import linear_on_cpus, logits_on_cpus, rows_product_on_cpus

CPU = replace(
    reference.REFERENCE,
    attention=FastAttention((blockwise_form,)),
    linear=partial(reference.linear, multiply=linear_on_cpus, multiply_rows=rows_product_on_cpus),
    logits=logits_on_cpus,
    next_logits=partial(reference.next_logits, multiply_rows=rows_product_on_cpus),
    losses=partial(losses, project=logits_on_cpus),
    # Otherwise XLA for CPUs would compute an update again from the old values at each use, and then
    # copy these, because the new values overwrite them.
    finish=jax.lax.optimization_barrier,
)
"""The functions for CPUs, and for any devices."""

_LARGE = 1 << 17
"""Least size of a layer's input for which unrolling pays: compiling takes up to twice as long."""


def _is_bfloat16(x: Float[Array, "..."]) -> bool:
    """Return whether products of an array have the forms of `kernels.bfloat16`."""
    return x.dtype == jnp.bfloat16


def _multiply(
    x: Float[Array, "b t d_in"], kernel: Float[Array, "d_in d_out"]
) -> Float[Array, "b t d_out"]:
    return bfloat16.linear(x, kernel) if _is_bfloat16(x) else linear_on_cpus(x, kernel)


def _multiply_rows(
    x: Float[Array, "b k d_in"], rows: Float[Array, "d_out d_in"], dtype: DTypeLike
) -> Float[Array, "b k d_out"]:
    return rows_product_on_cpus(x, rows, dtype, is_summed_wide=_is_bfloat16(x))


def _add_bias(x: Float[Array, "b t d"], bias: Float[Array, " d"]) -> Float[Array, "b t d"]:
    return bfloat16.add_bias(x, bias) if _is_bfloat16(x) else x + bias


def _logits(
    x: Float[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float32[Array, "b t vocab"]:
    return (bfloat16.pre_softmax_logits if _is_bfloat16(x) else logits_on_cpus)(x, embedding)


def _unrolls(x: Float[Array, "b t d"]) -> bool:
    """Return whether a stack is compiled layer by layer.

    In a loop, XLA on CPUs too reads a layer's saved activations out of arrays of all layers. This
    is slow: in bfloat16, it takes a seventh of a step. In float32 it takes a twentieth, which is
    not worth a change of roundings from earlier versions.
    """
    return _is_bfloat16(x) and x.size >= _LARGE


CPU_BFLOAT16 = replace(
    CPU,
    # XLA on CPUs would convert operands of such small products to float32 one by one.
    attention=FastAttention((blockwise_form,), dtype=jnp.float32),
    linear=partial(
        reference.linear,
        multiply=_multiply,
        multiply_rows=_multiply_rows,
        add_bias=_add_bias,
    ),
    logits=_logits,
    next_logits=partial(reference.next_logits, multiply_rows=_multiply_rows),
    losses=partial(losses, project=_logits),
    unrolls=_unrolls,
    # With a few queries, a product is no faster in bfloat16, and XLA writes to an array in bfloat16
    # by converting all of it to float32 and back.
    cache_dtype=lambda dtype: jnp.float32,
)
"""The functions for CPUs that multiply bfloat16 and sum in float32, for networks in bfloat16."""
