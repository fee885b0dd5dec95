"""Check that a registered kind of attention gives equal results in training and in decoding."""

from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t2t_jax.config import AttentionConfig
from t2t_jax.config.attention_kinds import AttentionKind
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.functional.masks import attention_mask
from t2t_jax.modules.attention import Context, MultiHeadAttention, join_projections
from t2t_jax.modules.cache import empty_cache
from t2t_jax.modules.parameters import Parameters

_WIDTH, _LAYER = 8, 1
_SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 2, 2]])
"""Two sentences in each row; the last position of the first row is padding."""
_TOLERANCE = 1e-4  # float32 sums in another order differ by about 1e-6


@cache
def attention_problem(config: AttentionConfig, kind: AttentionKind, executes: bool) -> str | None:
    """Return what is wrong with the `combine` of a registered kind; None if nothing is.

    Args:
      config: an attention of the model; the check replaces its d_model by a small one.
      kind: the kind of `config`, for the cache of results.
      executes: whether to execute the functions; False only traces and differentiates them.
    """
    title = config.combination.title if config.combination else ""
    if not title:
        return None
    module = MultiHeadAttention(replace(config, d_model=_WIDTH, dropout_rate=0.0))
    results = jax.jit(partial(_results, module))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*_SEGMENTS.shape, _WIDTH), np.float32)
    try:
        shapes = jax.eval_shape(module.init, jax.random.key(0), x)["params"]
        params = jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), shapes)
        if not executes:
            jax.eval_shape(results, params, x)
            return None
        with jax.default_matmul_precision("highest"):
            outputs, gradients = jax.device_get(results(params, x))
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{title} raised {type(error).__name__}: {in_one_line(error)[:300]}; fix the class"
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((outputs, gradients))):
        return (
            f"{title} has values or gradients that are not finite; the heads of a query without "
            "keys, such as padding, are zeros; fix the class"
        )
    for place, (together, alone) in outputs.items():
        worst = np.unravel_index(abs(together - alone).argmax(), alone.shape)
        if abs(together - alone)[worst] > _TOLERANCE * abs(together).max():
            return (
                f"{title} gives {together[worst]:.6g} {place}, but {alone[worst]:.6g} otherwise; "
                "combine may depend only on the heads and the gates of its position, on its "
                "parameters and on the layer; fix the class"
            )
    return None


def _results(
    module: MultiHeadAttention, params: Parameters, x: Float[Array, "b t d_model"]
) -> tuple[dict[str, tuple[Array, Array]], object]:
    """Return pairs of outputs that must be equal, by place, and gradients."""
    rows, length, _ = x.shape

    def whole(params: Parameters, x: Array, segments: Int[Array, "b t"]) -> Array:
        mask = attention_mask(segments, segments, causal=True)
        context = Context(mask=mask, layer=_LAYER)
        return jnp.asarray(module.apply({"params": params}, x, context))

    segments = jnp.array(_SEGMENTS)
    packed, pullback = jax.vjp(partial(whole, segments=segments), params, x)
    joined = join_projections(params, module.config)
    cache: Any = empty_cache("transposed", module.config, 1, rows, length, x.dtype)[0]
    outputs = []
    for index in range(length):
        mask = jnp.broadcast_to(jnp.arange(length) <= index, (rows, 1, 1, length))
        context = Context(mask=mask, layer=_LAYER)
        arguments = x[:, index : index + 1], cache, index, context
        output, cache = cast(Any, module.apply({"params": joined}, *arguments, method="step"))
        outputs.append(output)
    together, step_by_step = whole(params, x, segments * 0 + 1), jnp.concatenate(outputs, 1)
    alone = whole(params, x[:1, 3:5], segments[:1, 3:5])
    pairs = {
        "if many positions are computed together": (together, step_by_step),
        "if sentences share a row": (packed[:1, 3:5], alone),
    }
    return pairs, pullback(jnp.ones_like(packed))
