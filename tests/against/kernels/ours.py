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
from t2t_jax.functional import dropout as plain_dropout
from t2t_jax.functional import normalization as plain_normalization
from t2t_jax.functional.loss import projected_cross_entropy
from t2t_jax.functional.masks import SegmentMask, attention_mask
from t2t_jax.kernels import attention as attentions
from t2t_jax.kernels import blockwise, normalization, recomputed, short_rows, splash
from t2t_jax.kernels import products as forms
from t2t_jax.kernels.choice import Kernels
from t2t_jax.kernels.normalizer import NORMALIZERS
from t2t_jax.modules.cache import InOrder, OfStack, attend_and_keep, cached_order
from t2t_jax.modules.named_functions import elementwise
from t2t_jax.parallel.axes import on_mesh
from t2t_jax.parallel.mesh import make_mesh
from tests.against.kernels import plain
from tests.against.kernels.part import KERNELS, OF_GPUS, settled
from tests.against.kernels.plain import layers, updates  # noqa: F401
from tests.against.programs import NotRun

# The interpreter of Pallas runs kernels for accelerators, in blocks that suit short rows.
blockwise._BLOCK, splash._MULTIPLE = 8, 128
_CHANGES: Any = [
    (short_rows, "short_attention", {"interpret": True}),
    (splash_attention_kernel, "make_splash_mha", {"interpret": True}),
    (attentions, "fused_attention", {"implementation": "xla"}),
    (attentions, "fused_cached_attention", {"implementation": "xla"}),
]
for _module, _name, _options in _CHANGES:
    setattr(_module, _name, partial(getattr(_module, _name), **_options))


def compute(case: Any, folder: str) -> Any:
    """Return the results of the case's kernel, and their derivatives."""
    if case["kernel"] in OF_GPUS:
        return NotRun("needs an NVIDIA GPU: cuDNN computes on no other device")
    choices: Any = dict(word.split("=") for word in case["kernel"].split() if "=" in word)
    function = partial(globals()[KERNELS[case["kernel"]].formula], settled(case))
    with on_mesh(make_mesh(ParallelConfig(data=1))):
        both = plain.values_and_gradients(partial(function, kernels=Kernels(**choices)))
        return both(plain.arrays_of(settled(case)))


def attention(case: Any, kernels: Kernels, query: Any, key: Any, value: Any, **learned: Any) -> Any:
    mask: Any = plain.mask_of(case)
    if isinstance(mask, SegmentMask) and not case["kernel"].startswith("long_rows"):
        reach: Any = {"causal": mask.causal, "window": mask.window}
        mask = attention_mask(mask.query_segments, mask.key_segments, **reach)
    slopes, drop = learned["slopes"][:, None, None], plain.dropout_key(case)
    options: Any = {"dropout_rate": case["rate"], "dropout_key": drop, "kernels": kernels}
    if case["score"] == "biased":
        options["bias"] = lambda apart: slopes * apart
    return attentions.attention(query, key, value, mask, score=_score(case, learned), **options)


def _score(case: Any, learned: dict[str, Any]) -> Any:
    additive = jax.tree_util.Partial(attentions.additive, vector=learned["vector"])
    return additive if case["score"] == "additive" else None


def cached(case: Any, kernels: Kernels, query: Any, key: Any, value: Any, **learned: Any) -> Any:
    """Attend to a cache, in which the newest entries are still to be written."""
    mask, num_new = plain.mask_of(case), query.shape[1]
    at = (key.shape[1] - num_new) // 2
    new = [x[:, at : at + num_new] for x in (key, value)]
    old = [x.at[:, at : at + num_new].set(7) for x in (key, value)]
    bias, before, first = None, None, 0
    if case["score"] == "biased":
        bias = learned["slopes"][:, None, None] * -jnp.arange(key.shape[1])
    match case["use"]:
        case "in_order":
            cache: Any = InOrder(*old)
        case "stacked":
            cache = OfStack(*(x.swapaxes(1, 2) for x in old))
        case "turned":
            cache = cached_order(*old)
        case "before":
            first = at
            own_bias = None if bias is None else bias[..., :at]
            arrays = cached_order(key[:, :at], value[:, :at])
            before = attentions.Kept(*arrays, mask[..., :at], own_bias)
            cache = cached_order(*(x[:, at:] for x in old))
            bias = None if bias is None else bias[..., at:]
    attend = partial(attend_and_keep, query, new, cache, at - first, mask[..., first:], before)
    return attend(bias, _score(case, learned))[0]


def products(case: Any, kernels: Kernels, x: Any, matrix: Any, rows: Any, added: Any) -> Any:
    form, has_x = kernels.products, plain.chosen(case, (*x.shape[:2], 1), 2) == 1
    match case["use"]:
        case "logits":
            return forms.pre_softmax_logits(x, rows, form)
        case "next_token":
            return forms.next_token_logits(x, rows, form)
        case "transposed":
            return forms.linear(x, forms.Transposed(rows), None, form)
        case "rows":
            return forms.linear(x, matrix, None, form, has_x)
    return forms.linear(x, matrix, added if case["use"] == "bias" else None, form)


def loss(case: Any, kernels: Kernels, x: Any, embedding: Any) -> Any:
    targets, guess = plain.chosen(case, x.shape[:2], case["vocab"]), None
    project = forms.rounded_logits if kernels.logits == "rounded" else forms.pre_softmax_logits
    if kernels.loss == "within_the_product":
        guess = partial(forms.target_logits, embedding=embedding)
    given = targets, case["rate"], 1, NORMALIZERS[kernels.loss], guess
    return projected_cross_entropy(x, partial(project, embedding=embedding), *given)


def norm(case: Any, kernels: Kernels, x: Any, scale: Any, bias: Any) -> Any:
    if kernels.norms == "plain":
        return plain_normalization.layer_norm(x, scale, bias, case["epsilon"])
    by_sums = kernels.norms == "with_products"
    return normalization.layer_norm(x, scale, bias, case["epsilon"], by_sums)


def activation(case: Any, kernels: Kernels, x: Any) -> Any:
    return recomputed.activation_of(elementwise(ACTIVATIONS[case["use"]]), kernels.activations)(x)


def dropout(case: Any, kernels: Kernels, x: Any) -> Any:
    is_found = kernels.dropout == "found_again"
    drop = recomputed.dropout_found_again if is_found else plain_dropout.dropout
    return drop(x, case["rate"], plain.dropout_key(case))


def greatest(case: Any, kernels: Kernels, logits: Any) -> Any:
    allowed = plain.chosen(case, logits.shape, 4) >= 4 * case["rate"]
    choices = jnp.where(allowed, logits, -jnp.inf)
    given: Any = strategies.Given(None, logits, choices, 0, kernels)
    if case["use"] == "beam":
        best = strategies.top_k(choices, min(4, case["vocab"]))
        return *best, strategies.normalizer_of(given)
    with mock.patch.object(strategies, "_append", lambda _, total, token, __: (token, total)):
        return strategies.Greedy(2).extend(given)
