"""The presets for CPUs: without and with instructions that multiply bfloat16."""

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
    # Otherwise XLA for CPUs would compute an update again from the old values at each use, and then
    # copy these, because the new values overwrite them.
    finish=jax.lax.optimization_barrier,
)
"""The functions for CPUs, and for any devices."""

_LARGE = 1 << 17
"""Least size of a layer's input for which unrolling pays: compiling takes up to twice as long."""

_summed_wide = partial(rows_product_on_cpus, is_summed_wide=True)

CPU_BFLOAT16 = replace(
    CPU,
    # XLA on CPUs would convert operands of such small products to float32 one by one.
    attention=FastAttention((blockwise_form,), dtype=jnp.float32),
    linear=partial(
        reference.linear,
        multiply=bfloat16.linear,
        multiply_rows=_summed_wide,
        add_bias=bfloat16.add_bias,
    ),
    logits=bfloat16.pre_softmax_logits,
    next_logits=partial(reference.next_logits, multiply_rows=_summed_wide),
    losses=partial(
        reference.losses, project=bfloat16.pre_softmax_logits, cross_entropy=cross_entropy
    ),
    # In a loop, XLA on CPUs too reads a layer's saved activations out of arrays of all layers. This
    # is slow: in bfloat16, it takes a seventh of a step. In float32 it takes a twentieth, which is
    # not worth a change of roundings from earlier versions.
    unrolls=lambda x: x.size >= _LARGE,
    # With a few queries, a product is no faster in bfloat16, and XLA writes to an array in bfloat16
    # by converting all of it to float32 and back.
    cache_dtype=lambda dtype: jnp.float32,
)
"""The functions for CPUs that multiply bfloat16 and sum in float32, for networks in bfloat16."""
