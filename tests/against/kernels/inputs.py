"""The arrays and masks of a case, the programs that both sides run, and how they are computed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from t2t_jax.config import Config, TrainingConfig
from t2t_jax.config.families import DecoderOnlyConfig
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.choice import Kernels
from t2t_jax.modules.context import Context
from t2t_jax.modules.layers import LayerStack
from t2t_jax.training.recipe import make_optimizer
from t2t_jax.training.state import TrainState
from t2t_jax.training.step import LossSums, update

_VECTORS = {"x": "batch length width"}
_OF_ATTENTION = {
    "query": "batch length heads width",
    "key": "batch keys groups width",
    "value": "batch keys groups width_out",
    "slopes": "heads",
    "vector": "heads width",
}
_SHAPES = {
    "attention": _OF_ATTENTION,
    "cached_attention": _OF_ATTENTION,
    "products": _VECTORS
    | {"matrix": "width width_out", "rows": "width_out width", "added": "width_out"},
    "loss": _VECTORS | {"embedding": "vocab width"},
    "norm": _VECTORS | {"scale": "width", "bias": "width"},
    "greatest": {"logits": "batch length vocab"},
    "updates": {"matrix": "length width", "vector": "width"},
}
"""The axes of the arrays of each formula; those of others are vectors."""
_FLOAT32 = "embedding", "scale", "bias", "slopes"
"""Parameters that kernels take in float32."""


def arrays_of(case: Any, formula: str) -> dict[str, Any]:
    """Return the arrays of a case: those that derivatives are by."""
    rng, arrays = np.random.default_rng(case["seed"]), {}
    for name, axes in _SHAPES.get(formula, _VECTORS).items():
        x = rng.normal(size=[case[axis] for axis in axes.split()])
        match case["values"]:
            case "equal":
                x = np.full_like(x, x.flat[0])
            case "rows":
                x = np.broadcast_to(x[..., :1], x.shape)
            case "integers":
                x = np.round(x)
            case "outliers":
                x = np.where(rng.random(x.shape) < 1 / 16, 100 * x, x)
            case "far":
                x = 100 + x
        x = x if name in _FLOAT32 else x * case["factor"]
        arrays[name] = x.astype("float32" if name in _FLOAT32 else jnp.dtype(case["dtype"]))
    if formula == "layers":
        params = jax.eval_shape(_stack(case).init, jax.random.key(0), arrays["x"])["params"]
        draw = partial(rng.normal, scale=0.3)
        arrays["params"] = jax.tree.map(lambda p: draw(size=p.shape).astype("float32"), params)
    return arrays


def mask_of(case: Any) -> Any:
    """Return a mask: of sentences one after the other and padding, or of random pairs."""
    rng = np.random.default_rng(case["seed"] + 1)
    rows, lengths = case["batch"], (case["length"], case["keys"])
    if case["mask"] in ("whole", "of_heads"):
        heads = case["heads"] if case["mask"] == "of_heads" else 1
        mask = rng.random((rows, heads, *lengths)) < 0.5
        mask[..., 0] |= case["use"] == "fused"  # the caller of this kernel zeroes other values
        return mask
    first, other = (
        np.where(np.arange(n) < rng.integers(n + 1, size=(rows, 1)), np.sort(numbers), 0)
        for n in lengths
        for numbers in [rng.integers(1, 4, (rows, n))]
    )
    other = first if case["mask"] == "self" else other
    return SegmentMask(first, other, case["causal"], case["window"] or None)


def chosen(case: Any, shape: tuple[int, ...], most: Any = 2) -> np.ndarray:
    """Return random integers below a number."""
    return np.random.default_rng(case["seed"] + 2).integers(most, size=shape)


def dropout_key(case: Any) -> DropoutKey:
    """Return a key, and a first row that is often not 0."""
    return DropoutKey(jax.random.key(case["seed"]), case["seed"] % 7)


def _stack(case: Any) -> LayerStack:
    config = DecoderOnlyConfig(
        d_model=case["width"],
        d_ff=2 * case["width"],
        num_heads=2,
        num_kv_heads=case["groups"],
        num_decoder_layers=case["depth"],
        norm_order=case["norm_order"],
        prefix_attention=not case["causal"],
        dropout_rate=0.0,
    )
    return LayerStack(config, config.stacks[0], case["remat"])


def layers(case: Any, kernels: Kernels, x: Any, params: Any) -> Any:
    """Apply a stack of layers, as for derivatives."""
    context = Context(deterministic=False, kernels=kernels)
    return _stack(case).apply({"params": params}, x, context, rngs={"dropout": jax.random.key(0)})


def updates(case: Any, kernels: Kernels, **gradients: Any) -> Any:
    """Update parameters four times, once with a loss that is not finite."""
    training = TrainingConfig(
        optimizer=case["optimizer"],
        adam_epsilon=case["epsilon"],
        clip_gradient_norm=1.0 if case["rate"] else None,
        ema_decay=case["rate"] or None,
    )
    config, optimizer = Config(training=training), make_optimizer(Config(training=training), {})
    params = jax.tree.map(lambda x: 0 * x + 0.5, gradients)
    zero, average = jnp.int32(0), params if case["rate"] else None
    state: Any = TrainState(zero, params, optimizer.init(params), zero, zero, average)
    for factor in (1, -2, jnp.nan, 0.5):
        scaled = jax.tree.map(lambda x, factor=factor: x * factor, gradients)
        sums = LossSums(*[jnp.float32(factor)] * 3)
        state, metrics = update(config, optimizer, state, scaled, sums, kernels.updates)
    return state, metrics


def values_and_gradients(function: Callable[..., Any]) -> Callable[[Any], dict[str, np.ndarray]]:
    """Return a function of arrays: results, and the derivatives of a weighted sum of them."""

    @jax.jit
    def both(arrays: Any) -> Any:
        results = jax.tree.leaves(jax.eval_shape(lambda: function(**arrays)))
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in results):
            return jax.tree.leaves(function(**arrays)), {}
        results, pull_back = jax.vjp(lambda x: jax.tree.leaves(function(**x)), arrays)
        # Weights that every dtype holds exactly.
        weights = [(np.arange(x.size) * 37 % 17 / 8 - 1).reshape(x.shape) for x in results]
        return results, *pull_back(
            [w.astype(x.dtype) for w, x in zip(weights, results, strict=True)]
        )

    def named(arrays: Any) -> dict[str, np.ndarray]:
        paths, _ = jax.tree_util.tree_flatten_with_path(both(arrays))
        return {jax.tree_util.keystr(path): np.asarray(x, np.float64) for path, x in paths}

    return named
