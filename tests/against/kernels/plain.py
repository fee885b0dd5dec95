"""The formulas of `t2t_jax.functional`, in float64 and in the dtype of a case, and their inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from t2t_jax.config import Config, TrainingConfig
from t2t_jax.config.families import DecoderOnlyConfig
from t2t_jax.config.tables import ACTIVATIONS
from t2t_jax.functional import attention as attention_formulas
from t2t_jax.functional.dropout import DropoutKey, dropped, random_words
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.functional.normalization import layer_norm
from t2t_jax.kernels.choice import XLA_KERNELS, Kernels
from t2t_jax.modules.context import Context
from t2t_jax.modules.layers import LayerStack
from t2t_jax.modules.named_functions import elementwise
from t2t_jax.training.recipe import make_optimizer
from t2t_jax.training.state import TrainState
from t2t_jax.training.step import LossSums, update
from tests.against.kernels.part import EPSILON, KERNELS, settled

_X = {"x": "batch length width"}
_HEADS = {
    "query": "batch length heads width",
    "key": "batch keys groups width",
    "value": "batch keys groups width_out",
    "slopes": "heads",
    "vector": "heads width",
}
SHAPES = {
    "attention": _HEADS,
    "cached": _HEADS,
    "products": _X | {"matrix": "width width_out", "rows": "width_out width", "added": "width_out"},
    "loss": _X | {"embedding": "vocab width"},
    "norm": _X | {"scale": "width", "bias": "width"},
    "greatest": {"logits": "batch length vocab"},
    "updates": {"matrix": "length width", "vector": "width"},
}
"""The axes of the arrays of a formula; others have an x."""
_FLOAT32 = "embedding", "scale", "bias", "slopes"
"""Parameters that kernels take in float32."""
_NOISE = {
    "attention": "batch length heads width_out",
    "loss": "batch length vocab",
    "norm": "batch length width",
}
"""The axes of what some kernels round, and others do not."""
_NUM_DRAWS, _LARGEST = 3, 3e38


def compute(case: Any, folder: str) -> list[Any]:
    """Return results and derivatives: exact ones, and others near them.

    The others have inputs that differ by a rounding, the one rounding that the kernel is documented
    for, or the dtype of the case.
    """
    kernel, case = KERNELS[case["kernel"]], settled(case)
    function, arrays = partial(globals()[kernel.formula], case), arrays_of(case)

    def draws(changed: dict[str, Any], share: float) -> list[Any]:
        rng = np.random.default_rng(0)

        def change(x: Any) -> Any:
            return x * (1 + share * rng.uniform(-1, 1, x.shape))

        return [exact(wide | jax.tree.map(change, changed), share) for _ in range(_NUM_DRAWS)]

    # Where the formulas say float32, they compute in float64.
    with jax.enable_x64(True), mock.patch.object(jnp, "float32", jnp.float64):
        wide = jax.tree.map(lambda x: x.astype(np.float64), arrays)
        exact = values_and_gradients(function)
        if kernel.formula == "loss":
            wide["shift"] = np.ones((case["batch"], case["length"]))
        results = [exact(wide), draws(wide, EPSILON[kernel.precision or case["dtype"]]), []]
        if kernel.documented:
            noise = np.ones([case[axis] for axis in _NOISE[kernel.formula].split()])
            results[2] = draws({"noise": noise}, EPSILON[case["dtype"]])
    if kernel.formula == "layers":  # which take long to compile, and do not overflow
        return [*results, results[0]]
    return [*results, values_and_gradients(function)(arrays)]


def values_and_gradients(function: Callable[..., Any]) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function of arrays: results, and the derivatives of a weighted sum of them.

    Its second argument is the share by which the weights change.
    """

    @jax.jit
    def both(arrays: Any, share: Any) -> Any:
        shapes = jax.tree.leaves(jax.eval_shape(lambda: function(**arrays)))
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in shapes):
            return jax.tree.leaves(function(**arrays)), {}
        results, pull_back = jax.vjp(lambda x: jax.tree.leaves(function(**x)), arrays)
        weights = []
        for x in results:
            places = jnp.arange(x.size).reshape(x.shape)
            exact = places * 37 % 17 / 8 - 1  # in every dtype
            weights.append((exact * (1 + share * jnp.cos(places))).astype(x.dtype))
        return results, *pull_back(weights)

    def named(arrays: Any, share: float = 0.0) -> dict[str, np.ndarray]:
        paths, _ = jax.tree_util.tree_flatten_with_path(both(arrays, share))
        return {jax.tree_util.keystr(path): np.asarray(x, np.float64) for path, x in paths}

    return named


def arrays_of(case: Any) -> dict[str, Any]:
    """Return the arrays of a case: those that derivatives are by."""
    rng, arrays, formula = np.random.default_rng(case["seed"]), {}, KERNELS[case["kernel"]].formula
    for name, axes in SHAPES.get(formula, _X).items():
        x = rng.normal(size=[case[axis] for axis in axes.split()])
        patterns = {
            "normal": x,
            "equal": x.flat[0] + 0 * x,
            "rows": x[..., :1] + 0 * x,
            "integers": np.round(x) + 0.0,  # no -0, which `top_k` puts below 0
            "outliers": np.where(rng.random(x.shape) < 1 / 16, 100 * x, x),
            "far": 100 + x,
        }
        dtype, factor = case["dtype"], case["factor"]
        if name in _FLOAT32:
            dtype, factor = "float32", 1.0
        finite = np.clip(factor * patterns[case["values"]], -_LARGEST, _LARGEST)
        arrays[name] = finite.astype(jnp.dtype(dtype))
    if formula == "layers":
        params = jax.eval_shape(_stack(case).init, jax.random.key(0), arrays["x"])["params"]
        draw = partial(rng.normal, scale=0.3)
        arrays["params"] = jax.tree.map(lambda p: draw(size=p.shape).astype("float32"), params)
    return arrays


def chosen(case: Any, shape: Any, most: Any) -> np.ndarray:
    """Return random integers below a number."""
    return np.random.default_rng(case["seed"] + 1).integers(most, size=shape)


def mask_of(case: Any) -> Any:
    """Return a mask: of sentences one after the other and padding, or of random pairs."""
    rows, lengths = case["batch"], (case["length"], case["keys"])
    if case["mask"] in ("whole", "of_heads"):
        heads = case["heads"] if case["mask"] == "of_heads" else 1
        mask = chosen(case, (rows, heads, *lengths), 2) == 1
        mask[..., 0] |= case["use"] == "in_order"  # this kernel promises nothing without a key
        return mask
    first, other = (
        np.where(np.arange(n) < chosen(case, (rows, 1), n + 1), np.sort(segments), 0)
        for n in lengths
        for segments in [chosen(case, (rows, n), 3) + 1]
    )
    return SegmentMask(first, other, case["mask"] == "causal", case["window"] or None)


def dropout_key(case: Any) -> DropoutKey:
    """Return a key, and a first row that is often not 0."""
    return DropoutKey(jax.random.key(case["seed"]), case["seed"] % 7)


def _einsum(equation: str, *arrays: Any) -> Any:
    return jnp.einsum(equation, *arrays, preferred_element_type=jnp.float32)


def dropout(case: Any, x: Any) -> Any:
    if not case["rate"]:
        return x
    with jax.enable_x64(False), jax.ensure_compile_time_eval():  # the same words in float64
        words = np.asarray(random_words(x.shape, dropout_key(case)))
    return dropped(x, case["rate"], words)


def attend(
    case: Any, query: Any, key: Any, value: Any, slopes: Any, vector: Any, noise: Any = None
) -> Any:
    mask = mask_of(case)
    mask = mask.whole() if isinstance(mask, SegmentMask) else mask
    is_cached = KERNELS[case["kernel"]].formula == "cached"
    apart = (0 if is_cached else np.arange(mask.shape[2])[:, None]) - np.arange(mask.shape[3])[None]
    key, value = (attention_formulas.repeat_heads(x, case["heads"]) for x in (key, value))
    score = partial(attention_formulas.additive_scores, vector=vector, einsum=_einsum)
    weights = attention_formulas.attention_weights(
        query,
        key,
        mask,
        bias=slopes[:, None, None] * apart if case["score"] == "biased" else None,
        score=score if case["score"] == "additive" else None,
        einsum=_einsum,
    )
    heads = attention_formulas.weighted_values(dropout(case, weights), value)
    if noise is None:
        return heads
    # The derivative by a score subtracts its weight times the product of result and cotangent. The
    # noise is that of the result in this product.
    scores = jnp.where(
        mask, _einsum("bqhd,bkhd->bhqk", attention_formulas.scaled(query), key), -1e300
    )
    total = jax.nn.logsumexp(scores, axis=-1).swapaxes(1, 2)[..., None]
    return heads * (1 - (noise - 1) * (total - jax.lax.stop_gradient(total)))


attention = cached = attend


def products(case: Any, x: Any, matrix: Any, rows: Any, added: Any) -> Any:
    has_rows = case["use"] in ("transposed", "logits", "next_token")
    product = _einsum("bti,io->bto", x, rows.T if has_rows else matrix)
    if case["use"] in ("logits", "next_token"):
        return product
    if case["use"] == "rows":
        product = jnp.where(chosen(case, (*x.shape[:2], 1), 2) == 1, product, 0)
    return product.astype(x.dtype) + added if case["use"] == "bias" else product.astype(x.dtype)


def loss(case: Any, x: Any, embedding: Any, noise: Any = 1, shift: Any = 1) -> Any:
    matrix = embedding.astype(case["dtype"]).astype(x.dtype)
    logits = _einsum("btd,vd->btv", x, matrix) * noise
    targets = chosen(case, x.shape[:2], case["vocab"])
    smoothed, nll = label_smoothed_cross_entropy(logits, targets, case["rate"])
    # Probabilities are as exact as the logarithm of their sum, which is as great as the logits.
    total = jax.nn.logsumexp(logits, axis=-1)
    fixed = jax.lax.stop_gradient(total)
    error = (shift - 1) * fixed * (total - fixed)
    return smoothed + error, nll + error


def norm(case: Any, x: Any, scale: Any, bias: Any, noise: Any = 1) -> Any:
    return layer_norm(x * noise, scale, bias, case["epsilon"])


def activation(case: Any, x: Any) -> Any:
    return elementwise(ACTIVATIONS[case["use"]])(x)


def greatest(case: Any, logits: Any) -> Any:
    allowed = chosen(case, logits.shape, 4) >= 4 * case["rate"]
    choices, total = jnp.where(allowed, logits, -jnp.inf), jax.nn.logsumexp(logits, axis=-1)
    order = jnp.argsort(-choices, axis=-1, stable=True)[..., :4]  # the first of equal ones first
    if case["use"] == "greedy":
        return order[..., 0], total
    return jnp.take_along_axis(choices, order, axis=-1), order, total


def _stack(case: Any) -> LayerStack:
    config = DecoderOnlyConfig(
        d_model=case["width"],
        d_ff=2 * case["width"],
        num_heads=2,
        num_kv_heads=case["groups"],
        num_decoder_layers=2,
        norm_order=case["use"],
        dropout_rate=0.0,
    )
    return LayerStack(config, config.stacks[0], case["remat"])


def layers(case: Any, x: Any, params: Any, kernels: Kernels = XLA_KERNELS) -> Any:
    """Apply a stack of layers, as for derivatives."""
    context = Context(deterministic=False, kernels=kernels)
    return _stack(case).apply({"params": params}, x, context, rngs={"dropout": jax.random.key(0)})


def updates(case: Any, kernels: Kernels = XLA_KERNELS, **gradients: Any) -> Any:
    """Update parameters four times, once with a loss that is not finite."""
    rate = case["rate"] or None
    options: Any = {"adam_epsilon": case["epsilon"], "clip_gradient_norm": rate, "ema_decay": rate}
    config = Config(training=TrainingConfig(optimizer=case["use"], **options))
    optimizer, zero = make_optimizer(config, {}), jnp.int32(0)
    params = jax.tree.map(lambda x: 0 * x + 0.5, gradients)
    average = None if rate is None else params
    state: Any = TrainState(zero, params, optimizer.init(params), zero, zero, average)
    for factor in (1, -2, jnp.nan, 0.5):
        scaled = jax.tree.map(lambda x, factor=factor: x * factor, gradients)
        sums = LossSums(*[jnp.float32(factor)] * 3)
        state, metrics = update(config, optimizer, state, scaled, sums, kernels.updates)
    return state, metrics
