"""The formulas of `t2t_jax.functional`, in float64 and in the dtype of a case."""

from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.functional import attention
from t2t_jax.functional.dropout import dropped, random_words
from t2t_jax.functional.loss import projected_cross_entropy
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.functional.normalization import layer_norm
from t2t_jax.kernels.choice import XLA_KERNELS
from t2t_jax.modules.named_functions import elementwise
from tests.against.kernels import inputs
from tests.against.kernels.part import EPSILON, KERNELS, settled

_NUM_DRAWS = 3


def compute(case: Any, folder: str) -> list[Any]:
    """Return results and derivatives: exact ones, and others near them.

    The others have inputs that differ by a rounding, the one rounding that the kernel is documented
    for, or the dtype of the case.
    """
    kernel, case = KERNELS[case["kernel"]], settled(case)
    own = globals().get(f"_{kernel.formula}") or partial(
        getattr(inputs, kernel.formula), kernels=XLA_KERNELS
    )
    function, arrays = partial(own, case), inputs.arrays_of(case, kernel.formula)
    epsilon = EPSILON[case["dtype"]]

    def draws(noise: dict[str, Any], share: float) -> list[Any]:
        rng = np.random.default_rng(0)

        def change(x: Any) -> Any:
            return x * (1 + share * rng.uniform(-1, 1, x.shape))

        return [
            exact(wide | noise | jax.tree.map(change, noise or wide)) for _ in range(_NUM_DRAWS)
        ]

    # Where the formulas say float32, they compute in float64.
    with jax.enable_x64(True), mock.patch.object(jnp, "float32", jnp.float64):
        wide = jax.tree.map(lambda x: x.astype(np.float64), arrays)
        exact = inputs.values_and_gradients(function)
        results = [exact(wide), draws({}, EPSILON[kernel.precision or case["dtype"]])]
        noise = {"noise": np.ones([case[axis] for axis in kernel.noise.split()])}
        results.append(draws(noise, epsilon) if kernel.noise else [])
    # Nothing overflows in programs, which take long to compile.
    is_program = kernel.formula in ("layers", "updates")
    return [*results, results[0] if is_program else inputs.values_and_gradients(function)(arrays)]


def _einsum(equation: str, *arrays: Any) -> Any:
    return jnp.einsum(equation, *arrays, preferred_element_type=jnp.float32)


def _dropout(case: Any, x: Any) -> Any:
    if not case["rate"]:
        return x
    with jax.enable_x64(False), jax.ensure_compile_time_eval():  # the same words in float64
        words = np.asarray(random_words(x.shape, inputs.dropout_key(case)))
    return dropped(x, case["rate"], words)


def _attention(
    case: Any, query: Any, key: Any, value: Any, slopes: Any, vector: Any, noise: Any = None
) -> Any:
    mask, queries = inputs.mask_of(case), np.arange(case["length"])[:, None]
    mask = mask.whole() if isinstance(mask, SegmentMask) else mask
    is_cached = KERNELS[case["kernel"]].formula == "cached_attention"
    apart = (0 if is_cached else queries) - np.arange(mask.shape[3])[None]
    key, value = (attention.repeat_heads(x, case["heads"]) for x in (key, value))
    weights = attention.attention_weights(
        query,
        key,
        mask,
        bias=slopes[:, None, None] * apart if case["bias"] else None,
        score=partial(attention.additive_scores, vector=vector, einsum=_einsum)
        if case["score"] == "additive"
        else None,
        einsum=_einsum,
    )
    heads = attention.weighted_values(_dropout(case, weights), value)
    if noise is None:
        return heads
    # The derivative by a score subtracts its weight times the product of result and cotangent. The
    # noise is that of the result in this product.
    scores = jnp.where(mask, _einsum("bqhd,bkhd->bhqk", attention.scaled(query), key), -1e300)
    total = jax.nn.logsumexp(scores, axis=-1).swapaxes(1, 2)[..., None]
    return heads * (1 - (noise - 1) * (total - jax.lax.stop_gradient(total)))


_cached_attention = _attention


def _products(case: Any, x: Any, matrix: Any, rows: Any, added: Any) -> Any:
    product = _einsum("bti,io->bto", x, matrix if case["use"] in ("linear", "rows") else rows.T)
    if case["use"] in ("logits", "next_token"):
        return product
    if case["use"] == "rows":
        product = jnp.where(inputs.chosen(case, (*x.shape[:2], 1)) == 1, product, 0)
    return product.astype(x.dtype) + added * case["bias"]


def _loss(case: Any, x: Any, embedding: Any, noise: Any = 1) -> Any:
    def project(x: Any) -> Any:
        matrix = embedding.astype(case["dtype"]).astype(x.dtype)
        return _einsum("btd,vd->btv", x, matrix) * noise

    targets = inputs.chosen(case, x.shape[:2], case["vocab"])
    return projected_cross_entropy(x, project, targets, case["smoothing"], case["chunks"])


def _norm(case: Any, x: Any, scale: Any, bias: Any, noise: Any = 1) -> Any:
    return layer_norm(x * noise, scale, bias, case["epsilon"])


def _activation(case: Any, x: Any) -> Any:
    return elementwise(ACTIVATIONS[case["activation"]])(x)


def _greatest(case: Any, logits: Any) -> Any:
    allowed = inputs.chosen(case, logits.shape, 4) >= 4 * case["rate"]
    choices, total = jnp.where(allowed, logits, -jnp.inf), jax.nn.logsumexp(logits, axis=-1)
    order = jnp.argsort(-choices, axis=-1, stable=True)[..., :4]  # the first of equal ones first
    if case["use"] == "greedy":
        return order[..., 0], total
    return jnp.take_along_axis(choices, order, axis=-1), order, total
