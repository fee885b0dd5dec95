"""Presets of kernels for TPUs, in float32 and in bfloat16."""

from dataclasses import replace
from functools import partial

from t2t_jax.kernels import normalization, reference
from t2t_jax.kernels.attention import FastAttention, blockwise_form, splash_form
from t2t_jax.kernels.cross_entropy import cross_entropy
from t2t_jax.kernels.normalizer import within_the_product
from t2t_jax.kernels.products import logits_on_accelerators, summed_in_float32, target_logits

TPU = replace(
    reference.REFERENCE,
    # Two matmuls read the gradient of the scores. `einsum_float32` would round it to their dtype,
    # and XLA would then write and read it, which takes as long as the matmuls.
    attention=FastAttention((splash_form, blockwise_form), einsum=summed_in_float32),
    logits=logits_on_accelerators,
    losses=partial(
        reference.losses,
        project=logits_on_accelerators,
        cross_entropy=partial(cross_entropy, normalizer=within_the_product),
        guess=target_logits,
    ),
    layer_norm=normalization.layer_norm,
    unrolls=lambda x: True,  # see `gpu.GPU`
    rounds_biases=True,
)
"""Kernels for TPUs."""


TPU_BFLOAT16 = replace(TPU, layer_norm=partial(normalization.layer_norm, plain_sums=True))
"""Kernels for TPUs and bfloat16 networks: squares of bfloat16 are exact in float32."""
