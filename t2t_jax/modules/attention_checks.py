"""Compute a kind of attention as in training and as in decoding, for `function_problems`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from t2t_jax.config import AttentionConfig
from t2t_jax.functional.masks import attention_mask
from t2t_jax.modules.attention import Context, MultiHeadAttention, join_projections
from t2t_jax.modules.cache import empty_cache
from t2t_jax.modules.parameters import Parameters

SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 2, 2]])
"""Two sentences in each row; the last position of the first row is padding."""


def attention_results(
    config: AttentionConfig, arrays: Sequence[Array], unused: PyTree
) -> tuple[Array, Array, PyTree[Array]]:
    """Compute attention with random parameters.

    Args:
      config: an attention of the model; a small d_model, that of `arrays`, replaces its d_model.
      arrays: the input `[b, t, d_model]`, with the shape of `SEGMENTS`.
      unused: the parameters of other functions.

    Returns:
      The outputs of whole rows; the same outputs from cached steps and of a sentence by itself; and
      the gradients of packed rows.
    """
    (x,) = arrays
    module = MultiHeadAttention(replace(config, d_model=x.shape[-1], dropout_rate=0.0))
    shapes = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), x.dtype), shapes)
    context = Context(layer=1)

    def whole(params: Parameters, x: Array, segments: Int[np.ndarray, "b t"]) -> Array:
        ids = jnp.asarray(segments)
        mask = attention_mask(ids, ids, causal=True)
        return jnp.asarray(module.apply({"params": params}, x, replace(context, mask=mask)))

    packed, pullback = jax.vjp(partial(whole, segments=SEGMENTS), params, x)
    joined = {"params": join_projections(params, module.config)}
    rows, length = SEGMENTS.shape
    cache: Any = empty_cache("transposed", module.config, 1, rows, length, x.dtype)[0]
    steps = []
    for index in range(length):
        mask = jnp.broadcast_to(jnp.arange(length) <= index, (rows, 1, 1, length))
        inputs = x[:, index : index + 1], cache, index, replace(context, mask=mask)
        output, cache = module.apply(joined, *inputs, method="step")
        steps.append(output)
    together = whole(params, x, SEGMENTS * 0 + 1), packed[0, 3:5]
    one_by_one = jnp.concatenate(steps, 1), whole(params, x[:1, 3:5], SEGMENTS[:1, 3:5])
    values, slices = (
        jnp.concatenate([y.reshape(-1) for y in outputs]) for outputs in (together, one_by_one)
    )
    return values, slices, pullback(jnp.ones_like(packed))
