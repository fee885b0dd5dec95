"""Presets of kernels for CPUs, without and with bfloat16 instructions."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from t2t_jax.kernels import bfloat16, reference
from t2t_jax.kernels.attention import FastAttention, blockwise_form
from t2t_jax.kernels.cross_entropy import cross_entropy
from t2t_jax.kernels.products import linear_on_cpus, logits_on_cpus, rows_product_on_cpus

CPU = replace(
    reference.REFERENCE,
    attention=FastAttention((blockwise_form,)),
    linear=partial(reference.linear, multiply=linear_on_cpus, multiply_rows=rows_product_on_cpus),
    logits=logits_on_cpus,
    next_logits=partial(reference.next_logits, multiply_rows=rows_product_on_cpus),
    losses=partial(reference.losses, project=logits_on_cpus, cross_entropy=cross_entropy),
    # Without the barrier, XLA for CPUs computes an update again at each use. For this it copies the
    # old values, because the new values overwrite them.
    finish=jax.lax.optimization_barrier,
)
"""Kernels for CPUs, which also run on all other devices."""

_MIN_UNROLLED_SIZE = 1 << 17
"""Minimum size of a layer's input for unrolling, because compilation takes up to twice as long."""

_rows_product = partial(rows_product_on_cpus, sums_in_float32=True)

CPU_BFLOAT16 = replace(
    CPU,
    # XLA for CPUs would convert each operand of these small matmuls to float32.
    attention=FastAttention((blockwise_form,), dtype=jnp.float32),
    linear=partial(
        reference.linear,
        multiply=bfloat16.linear,
        multiply_rows=_rows_product,
        add_bias=bfloat16.add_bias,
    ),
    logits=bfloat16.pre_softmax_logits,
    next_logits=partial(reference.next_logits, multiply_rows=_rows_product),
    losses=partial(
        reference.losses, project=bfloat16.pre_softmax_logits, cross_entropy=cross_entropy
    ),
    # A loop reads the saved activations of a layer from stacked arrays of all layers. In bfloat16,
    # this takes a seventh of a step. In float32 it takes only a twentieth, so `CPU` keeps the loop
    # and the rounding errors of earlier versions.
    unrolls=lambda x: x.size >= _MIN_UNROLLED_SIZE,
    # With few queries, a bfloat16 matmul is no faster. To write into a bfloat16 array, XLA converts
    # the whole array to float32 and back.
    cache_dtype=lambda dtype: jnp.float32,
)
"""Kernels for bfloat16 networks on CPUs with bfloat16 instructions."""
