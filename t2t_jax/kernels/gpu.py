"""Presets of kernels for GPUs, without and with cuDNN's fused attention."""

from dataclasses import replace
from functools import partial

from jaxtyping import Array, Float

from t2t_jax.kernels import normalization, reference
from t2t_jax.kernels.attention import FastAttention, blockwise_form, cudnn_form
from t2t_jax.kernels.cross_entropy import cross_entropy
from t2t_jax.kernels.normalizer import greatest_in_one_pass, in_one_pass
from t2t_jax.kernels.products import logits_on_accelerators
from t2t_jax.kernels.recomputed import dropout_recomputed, relu_from_result
from t2t_jax.kernels.reference import CacheLayout


def _rounded_logits(
    x: Float[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float[Array, "b t vocab"]:
    """Compute logits, summed in float32 and rounded to the dtype of `x`."""
    # Memory bandwidth limits GPUs, and logits are the largest array of a training step.
    return logits_on_accelerators(x, embedding, x.dtype)


GPU = replace(
    reference.REFERENCE,
    attention=FastAttention((blockwise_form,)),
    logits=logits_on_accelerators,
    losses=partial(
        reference.losses,
        project=logits_on_accelerators,
        project_in_training=_rounded_logits,
        cross_entropy=partial(cross_entropy, normalizer=in_one_pass),
    ),
    layer_norm=normalization.layer_norm,
    dropout=dropout_recomputed,
    relu=relu_from_result,
    # By the bytes that compiled programs move, an unrolled step of the base model takes two thirds
    # of the time of a loop on an NVIDIA H200, and half on a TPU v5e.
    unrolls=lambda x: True,
    logsumexp=lambda logits: in_one_pass(logits)[0],
    greatest=greatest_in_one_pass,
    rounds_biases=True,
)
"""Kernels for any GPU."""


def _fused_cache_layout(beam_size: int | None, is_fused: bool) -> CacheLayout:
    beam_layout: CacheLayout = "in_order" if is_fused else "transposed"
    return "stacked" if beam_size == 1 else beam_layout


CUDNN_GPU = replace(
    GPU,
    attention=FastAttention((cudnn_form, blockwise_form)),
    cache_layout=lambda beam_size, is_fused: "stacked" if beam_size == 1 else "transposed",
)
"""Kernels for NVIDIA GPUs of compute capability 8.0 or later, which cuDNN's attention needs."""

CUDNN_GPU_FEW_QUERIES = replace(CUDNN_GPU, cache_layout=_fused_cache_layout)
"""Kernels as in `CUDNN_GPU`, for GPUs on which cuDNN also supports the few queries of decoding."""
