"""The kernels: functions of a case, of the choice of kernels, and of arrays."""

from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

from t2t_jax.config import ParallelConfig
from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.decoding import strategies
from t2t_jax.functional.dropout import dropout
from t2t_jax.functional.loss import projected_cross_entropy
from t2t_jax.functional.masks import SegmentMask, attention_mask
from t2t_jax.functional.normalization import layer_norm
from t2t_jax.kernels import attention, blockwise, normalization, products, short_rows, splash
from t2t_jax.kernels.choice import Kernels
from t2t_jax.kernels.normalizer import NORMALIZERS
from t2t_jax.kernels.recomputed import activation_of, dropout_found_again
from t2t_jax.modules.named_functions import elementwise
from t2t_jax.parallel.axes import on_mesh
from t2t_jax.parallel.mesh import make_mesh
from tests.against.kernels import inputs
from tests.against.kernels.part import KERNELS, settled
from tests.against.programs import NotRun

# Kernels for accelerators run in the interpreter of Pallas, in blocks that suit short rows.
short_rows.short_attention = partial(short_rows.short_attention, interpret=True)
splash_attention_kernel.make_splash_mha = partial(
    splash_attention_kernel.make_splash_mha, interpret=True
)
splash._MULTIPLE = 128
for _name in ("fused_attention", "fused_cached_attention"):
    setattr(attention, _name, partial(getattr(attention, _name), implementation="xla"))


def compute(case: Any, folder: str) -> Any:
    """Return the results of the case's kernel, and their derivatives."""
    kernel, (choice, _, by_xla) = KERNELS[case["kernel"]], case["kernel"].partition(", ")
    if choice.endswith("=cudnn") and not by_xla:
        return NotRun("needs an NVIDIA GPU: cuDNN computes on no other device")
    case, blockwise._BLOCK = settled(case), case["block"]
    kernels = Kernels(**dict([choice.split("=")]) | dict(kernel.with_choices))
    own = globals().get(f"_{kernel.formula}") or getattr(inputs, kernel.formula)
    with on_mesh(make_mesh(ParallelConfig(data=1))):
        function = inputs.values_and_gradients(partial(own, case, kernels))
        return function(inputs.arrays_of(case, kernel.formula))


def _attention(
    case: Any, kernels: Kernels, query: Any, key: Any, value: Any, slopes: Any, vector: Any
) -> Any:
    mask: Any = inputs.mask_of(case)
    if isinstance(mask, SegmentMask) and not case["kernel"].startswith("long_rows"):
        reach: Any = {"causal": mask.causal, "window": mask.window}
        mask = attention_mask(mask.query_segments, mask.key_segments, **reach)
    return attention.attention(
        query,
        key,
        value,
        mask,
        bias=(lambda apart: slopes[:, None, None] * apart) if case["bias"] else None,
        score=_score(case, vector),
        dropout_rate=case["rate"],
        dropout_key=inputs.dropout_key(case),
        kernels=kernels,
    )


def _score(case: Any, vector: Any) -> Any:
    is_additive = case["score"] == "additive"
    return jax.tree_util.Partial(attention.additive, vector=vector) if is_additive else None


def _cached_attention(
    case: Any, _: Kernels, query: Any, key: Any, value: Any, slopes: Any, vector: Any
) -> Any:
    mask, at, score = inputs.mask_of(case), case["keys"] // 2, _score(case, vector)
    if case["use"] == "fused":
        return attention.fused_cached_attention(query, key, value, mask)
    bias = slopes[:, None, None] * -jnp.arange(case["keys"]) if case["bias"] else None
    key, value = key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)
    match case["use"]:
        case "cached":
            return attention.cached_attention(query, key, value, mask, bias=bias, score=score)
        case "new":
            kept = key.swapaxes(2, 3), value
            new = [x[:, :, at : at + 1] for x in kept]
            old = [x.at[:, :, at].set(7) for x in kept]
            return attention.attention_with_new(query, old, new, at, mask, bias=bias, score=score)
    parts = [
        attention.Kept(key[..., part], value[:, :, part], mask[..., part], biased)
        for part in (slice(at), slice(at, None))
        for biased in [None if bias is None else bias[..., part]]
    ]
    return attention.attention_to_both(query, *parts, score=score)


def _products(case: Any, kernels: Kernels, x: Any, matrix: Any, rows: Any, added: Any) -> Any:
    form, bias = kernels.products, added if case["bias"] else None
    match case["use"]:
        case "logits":
            return products.pre_softmax_logits(x, rows, form)
        case "next_token":
            return products.next_token_logits(x, rows, form)
        case "transposed":
            return products.linear(x, products.Transposed(rows), bias, form)
    has_x = inputs.chosen(case, (*x.shape[:2], 1)) == 1 if case["use"] == "rows" else None
    return products.linear(x, matrix, bias, form, has_x)


def _loss(case: Any, kernels: Kernels, x: Any, embedding: Any) -> Any:
    is_rounded, guess = kernels.logits == "rounded", None
    project = products.rounded_logits if is_rounded else products.pre_softmax_logits
    if kernels.loss == "within_the_product":
        guess = partial(products.target_logits, embedding=embedding)
    return projected_cross_entropy(
        x,
        partial(project, embedding=embedding),
        inputs.chosen(case, x.shape[:2], case["vocab"]),
        case["smoothing"],
        case["chunks"],
        NORMALIZERS[kernels.loss],
        guess,
    )


def _norm(case: Any, kernels: Kernels, x: Any, scale: Any, bias: Any) -> Any:
    if kernels.norms == "plain":
        return layer_norm(x, scale, bias, case["epsilon"])
    by_sums = kernels.norms == "with_products"
    return normalization.layer_norm(x, scale, bias, case["epsilon"], by_sums)


def _activation(case: Any, kernels: Kernels, x: Any) -> Any:
    return activation_of(elementwise(ACTIVATIONS[case["activation"]]), kernels.activations)(x)


def _dropout(case: Any, kernels: Kernels, x: Any) -> Any:
    drop = dropout_found_again if kernels.dropout == "found_again" else dropout
    return drop(x, case["rate"], inputs.dropout_key(case))


def _greatest(case: Any, kernels: Kernels, logits: Any) -> Any:
    allowed = inputs.chosen(case, logits.shape, 4) >= 4 * case["rate"]
    choices = jnp.where(allowed, logits, -jnp.inf)
    given: Any = strategies.Given(None, logits, choices, 0, kernels)
    if case["use"] == "beam":
        best = strategies.top_k(choices, min(4, case["vocab"]))
        return *best, strategies.normalizer_of(given)
    with mock.patch.object(strategies, "_append", lambda _, total, token, __: (token, total)):
        return strategies.Greedy(2).extend(given)
