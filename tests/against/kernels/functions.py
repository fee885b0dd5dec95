"""The kernels and the plain formulas: functions of a case and of arrays.

A function has the name of a formula in `part`, and annotations from which its arrays are drawn.
Plain formulas have the prefix `plain_`; where there is none, the function has the formula itself,
which it computes with `REFERENCE`. A case has more here than in `part`: the preset of kernels, the
arguments of dropout, and noise, a function that changes an array by as much as a rounding.
"""

from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as pallas
from jaxtyping import Array, Float, Float32

from t2t_jax import Context, LayerStack, functional, kernels
from t2t_jax.config import Config, DecoderOnlyConfig, ParallelConfig, TrainingConfig, tables
from t2t_jax.decoding.search import reductions
from t2t_jax.functional.masks import SegmentMask, distances
from t2t_jax.kernels import choice, reference
from t2t_jax.modules import named_functions
from t2t_jax.parallel import axes, mesh
from t2t_jax.training import recipe, state, step
from tests.against.kernels.part import EPSILON, KERNELS, NUM_DRAWS, OF_GPUS
from tests.against.programs import NotRun

# The interpreter of Pallas runs kernels for accelerators, in blocks that suit short rows.
kernels.blockwise._BLOCK, kernels.splash._MULTIPLE = 8, 128
pallas.make_splash_mha = partial(pallas.make_splash_mha, interpret=True)
kernels.short_rows.short_attention = partial(kernels.short_rows.short_attention, interpret=True)
# cuDNN computes where there is a GPU, and a processor all else.
jax.config.update("jax_platforms", None)
jax.config.update("jax_default_device", jax.devices("cpu")[0])

FUSED = kernels.attention.fused_attention
PRESETS = vars(choice) | vars(reference)
MESH = mesh.make_mesh(ParallelConfig(data=1))

X = Float[Array, "batch length width"]
Query = Float[Array, "batch length heads width"]
Key = Float[Array, "batch keys groups width"]
Value = Float[Array, "batch keys groups width_out"]
Vector = Float[Array, "heads width"]
Learned = Float32[Array, " width"]

INPUTS, DOCUMENTED = 0, 1
"""The kinds of noise: of inputs and the like, and the one rounding that a kernel is documented for.
"""


def compute(case: Any, folder: str) -> Any:
    """Return the results of the kernel, and of the formula: in float64 by each draw, and plainly.

    Of three draws, the first is exact. The second has inputs that differ by a rounding, and the
    third the rounding that the kernel is documented for.
    """
    kernel, is_of_gpu = case["kernel"], case["kernel"] in OF_GPUS
    if is_of_gpu and jax.default_backend() != "gpu":
        return NotRun("needs an NVIDIA GPU: cuDNN computes on no other device")
    name, own = KERNELS[kernel].formula, EPSILON[case["dtype"]]
    of_inputs = EPSILON["float32"] if name == "layer_norm" else own  # the dtype of its sums
    shares = (0.0, 0.0), (of_inputs, 0.0), (0.0, own)
    draws = [(*share, number) for number in range(1, NUM_DRAWS + 1) for share in shares]

    drop = functional.dropout.DropoutKey(jax.random.key(case["seed"]), case["seed"] % 7)
    case = case | {
        "keys": case["length"] if case["mask"] in ("self", "causal") else case["keys"],
        "width_out": case["width_out"] or case["width"],
        "dropout": (case["rate"], drop),
        "preset": PRESETS[kernel.split()[2]],
    }
    implementation = "cudnn" if is_of_gpu else "xla"
    kernels.attention.fused_attention = partial(FUSED, implementation=implementation)
    function = globals()[name]
    arrays = arrays_of(case, function.__annotations__)
    # Kernels that the compiler cannot split need to know the devices.
    devices = MESH if kernel.startswith(("long_rows", "short_rows")) else None
    with axes.on_mesh(devices), jax.default_device(jax.devices()[0] if is_of_gpu else None):
        found = values_and_gradients(function, case, arrays)[0]
    case |= {"preset": reference.REFERENCE}
    formula = partial(values_and_gradients, globals().get(f"plain_{name}", function), case, arrays)
    # Where the formulas say float32, they compute in float64, and drop the same elements.
    of_float64 = mock.patch.object(jnp, "float32", jnp.float64)
    of_words = mock.patch.object(jax.random, "bits", partial(jax.random.bits, dtype=np.uint32))
    with jax.enable_x64(True), of_float64, of_words:
        exact = formula(draws)
    # Layers take long to compile, and do not overflow.
    return found, exact, (exact if name == "layers" else formula())[0]


def values_and_gradients(
    function: Any, case: Any, arrays: Any, draws: Any = (None,)
) -> list[dict[str, np.ndarray]]:
    """Return results, and derivatives of a weighted sum of them, by their names, for each draw."""

    @jax.jit
    def named(arrays: Any, draw: Any) -> dict[str, Any]:
        noise = partial(_noise, draw)
        call = partial(function, case | {"noise": noise})
        arrays, derivatives = jax.tree.map(noise, arrays), {}
        # Only decoding has these, and their derivatives are refused: of products in bfloat16 by
        # XLA, and of attention to an odd number of keys by cuDNN.
        is_forward = case["use"] in ("transposed", "next_logits", "cudnn")
        if is_forward or KERNELS[case["kernel"]].formula in ("greatest", "updates"):
            results = jax.tree.leaves(call(**arrays))
        else:
            results, pull_back = jax.vjp(lambda x: jax.tree.leaves(call(**x)), arrays)
            exact = [jnp.arange(x.size).reshape(x.shape) * 37 % 17 / 8 - 1 for x in results]
            weights = [noise(w).astype(x.dtype) for w, x in zip(exact, results, strict=True)]
            (derivatives,) = pull_back(weights)
        names = {f"result {number}": x for number, x in enumerate(results)}
        return names | {f"derivative by {name}": x for name, x in derivatives.items()}

    return [jax.tree.map(np.atleast_1d, named(arrays, draw)) for draw in draws]


def _noise(draw: Any, x: Any, kind: int = INPUTS) -> Any:
    """Change an array by two shares, those of the kinds of noise, and the number of a draw."""
    if draw is None:
        return x
    # These cosines look random, and take less time to compile than random numbers.
    places = jnp.arange(1, x.size + 1).reshape(x.shape)
    return x * (1 + draw[kind] * jnp.cos(draw[2] * places**2))


def arrays_of(case: Any, annotations: Any) -> dict[str, Any]:
    """Return the arrays of a case: those that derivatives are by."""
    rng, arrays = np.random.default_rng(case["seed"]), {}
    given = {name: spec for name, spec in annotations.items() if hasattr(spec, "dim_str")}
    shapes = {name: [case[x] for x in spec.dim_str.split()] for name, spec in given.items()}
    if "params" in annotations:
        x = jax.ShapeDtypeStruct(shapes["x"], "float32")
        params = jax.eval_shape(_stack(case).init, jax.random.key(0), x)["params"]
        shapes |= {name: p.shape for name, p in flatten_dict(params, sep="/").items()}
    for name, shape in shapes.items():
        # Kernels take parameters in float32, and may round them.
        is_parameter = name not in given or given[name].dtypes == Learned.dtypes
        factor, dtype = (0.3, "float32") if is_parameter else (case["factor"], case["dtype"])
        x = np.round(rng.normal(size=shape) ** case["power"], case["decimals"]) + case["shift"]
        arrays[name] = np.clip(factor * x, -3e38, 3e38).astype(case["dtype"]).astype(dtype)
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
        mask[..., 0] |= case["use"] in (
            "cudnn",
            "xla",
        )  # this kernel promises nothing without a key
        return mask

    def segments(n: int) -> Any:
        numbers = np.sort(chosen(case, (rows, n), 3) + 1)
        return np.where(np.arange(n) < chosen(case, (rows, 1), n + 1), numbers, 0)

    mask = SegmentMask(*map(segments, lengths), case["mask"] == "causal", case["window"] or None)
    is_whole = not (mask.is_narrow or case["kernel"].startswith("long_rows"))
    return mask.dense() if is_whole else mask


def _learned(case: Any, vector: Any) -> Any:
    """Return the bias, as a function of distances, or None, and the score function."""
    slopes = vector[:, :1, None].astype(jnp.float32)
    bias = (lambda apart: slopes * apart) if case["score"] == "biased" else None
    additive = jax.tree_util.Partial(functional.attention.additive_scores, vector=vector)
    return bias, additive if case["score"] == "additive" else reference.SCALED_PRODUCT


def attention(case: Any, query: Query, key: Key, value: Value, vector: Vector) -> Any:
    mask, (bias, score), (rate, drop) = mask_of(case), _learned(case, vector), case["dropout"]
    options: Any = {"score": score, "dropout_rate": rate, "dropout_key": drop}
    heads, rows = case["preset"].attention(query, key, value, mask, bias, **options)
    return heads if rows is None else jnp.where(rows[..., None], heads, 0)


def cached(case: Any, query: Query, key: Key, value: Value, vector: Vector) -> Any:
    """Attend to what decoding keeps, as each layout of a cache does."""
    forms, mask, (bias, score) = kernels.cached_attention, mask_of(case), _learned(case, vector)
    if case["use"] in ("cudnn", "xla"):
        return forms.fused_cached_attention(query, key, value, mask, None, case["use"])
    at, dtype = key.shape[1] // 2, case["preset"].cache_dtype(case["dtype"])
    key, value = (x.astype(dtype).swapaxes(1, 2) for x in (key, value))
    added = None if bias is None else bias(distances(query.shape[1], key.shape[2]))
    if case["use"] == "stacked":
        pairs = ((x[:, :, at, None], x.at[:, :, at].set(7)) for x in (key, value))
        new, old = zip(*pairs, strict=True)
        return forms.attention_with_new(query, old, new, at, mask, bias=added, score=score)

    def part(*places: int | None) -> Any:
        at = slice(*places)
        arrays = key[:, :, at].swapaxes(2, 3), value[:, :, at], mask[..., at]
        return forms.CachedEntries(*arrays, None if bias is None else added[..., at])

    parts = [part(at), part(at, None)] if case["use"] == "in_parts" else [part(None)]
    return forms.cached_attention(query, parts, score)


def plain_attention(case: Any, query: Any, key: Any, value: Any, vector: Any) -> Any:
    equations, mask = functional.attention, mask_of(case)
    mask = mask.dense() if isinstance(mask, SegmentMask) else mask
    key, value = (equations.repeat_heads(x, case["heads"]) for x in (key, value))
    bias, score = _learned(case, vector)
    scores = score(query, key)
    scores += 0 if bias is None else bias(distances(query.shape[1], key.shape[1]))
    weights = equations.masked_softmax(scores, mask)
    weights = functional.dropout.dropout(weights, *case["dropout"])
    heads = equations.weighted_values(weights, value)
    # The derivative by a score subtracts its weight times the product of result and cotangent. Its
    # noise is the documented rounding of the result in this product, and that of the sum of
    # weights, which is 1 but for a rounding in float32. It is the same for all queries: of those
    # that attend to the same key only, results have the same roundings, which add up.
    total = jax.nn.logsumexp(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    zero = (total - jax.lax.stop_gradient(total)).swapaxes(1, 2)[..., None]
    one, noise = jnp.ones(heads.shape[2:]), case["noise"]
    of_weights = (noise(one) - 1) * (EPSILON["float32"] / EPSILON[case["dtype"]])
    return heads * (1 - (noise(one, DOCUMENTED) - 1 + of_weights) * zero)


plain_cached = plain_attention


def products(case: Any, x: X, matrix: Float[Array, "width width_out"]) -> Any:
    forms, use = case["preset"], case["use"]
    rows = jax.lax.optimization_barrier(matrix.T)  # outside of the product, as XLA refuses some
    if "logits" in use:
        return getattr(forms, use)(x, rows)
    weights = kernels.products.Transposed(rows) if use == "transposed" else matrix
    has_x = chosen(case, (*x.shape[:2], 1), 2) == 1 if use == "rows" else None
    return forms.linear(x, weights, matrix[0] if use == "bias" else None, has_x)


def plain_products(case: Any, x: Any, matrix: Any) -> Any:
    product = jnp.einsum("bti,io->bto", x, matrix, preferred_element_type=jnp.float32)
    product = product if "logits" in case["use"] else product.astype(x.dtype)
    has_x = chosen(case, (*x.shape[:2], 1), 2) == 1
    product = jnp.where(has_x, product, 0) if case["use"] == "rows" else product
    return product + matrix[0] if case["use"] == "bias" else product


def losses(case: Any, x: X, embedding: Float32[Array, "vocab width"]) -> Any:
    arrays = x, embedding, None, chosen(case, x.shape[:2], case["vocab"]), case["rate"]
    return case["preset"].losses(*arrays, is_training="training" in case["kernel"])


def plain_losses(case: Any, x: Any, embedding: Any) -> Any:
    targets, noise = chosen(case, x.shape[:2], case["vocab"]), case["noise"]
    logits = noise(reference.logits(x, embedding), DOCUMENTED)
    total = jax.nn.logsumexp(logits, axis=-1)
    # Probabilities are as exact as the logarithm of their sum, which is in float32, and at least
    # the greatest logit: none is above 1.
    error = (noise(total) - total) * (EPSILON["float32"] / EPSILON[case["dtype"]])
    most = np.log(case["vocab"])
    error = jax.lax.stop_gradient(jnp.clip(error, -most, most))
    error += jnp.expm1(error) * (total - jax.lax.stop_gradient(total))
    both = functional.loss.label_smoothed_cross_entropy(logits, targets, case["rate"])
    return tuple(one + error for one in both)


def layer_norm(case: Any, x: X, scale: Learned, bias: Learned) -> Any:
    noisy = case["noise"](x, DOCUMENTED)
    return case["preset"].layer_norm(noisy, scale, bias, case["epsilon"])


def activation(case: Any, x: X) -> Any:
    function = named_functions.elementwise(tables.ACTIVATIONS[case["use"]])
    return (case["preset"].relu if function is jax.nn.relu else function)(x)


def dropout(case: Any, x: X) -> Any:
    return case["preset"].dropout(x, *case["dropout"])


def greatest(case: Any, logits: Float[Array, "batch length vocab"]) -> Any:
    choices, form = _choices(case, logits), case["preset"]
    greedy = (form.greatest or reductions.argmax_and_logsumexp)(logits, choices)
    best = reductions.top_k(choices, min(4, case["vocab"]))
    return greedy, best, form.logsumexp(logits)


def plain_greatest(case: Any, logits: Any) -> Any:
    choices, total = _choices(case, logits), jax.nn.logsumexp(logits, axis=-1)
    order = jnp.argsort(-choices, axis=-1, stable=True)[..., :4]  # the first of equal ones first
    return (order[..., 0], total), (jnp.take_along_axis(choices, order, -1), order), total


def _choices(case: Any, logits: Any) -> Any:
    return jnp.where(chosen(case, logits.shape, 4) >= 4 * case["rate"], logits, -jnp.inf)


def _stack(case: Any) -> LayerStack:
    width = case["width"]
    sizes = {"d_model": width, "d_ff": 2 * width, "num_heads": 2, "num_kv_heads": case["groups"]}
    options: Any = {"num_decoder_layers": 2, "norm_order": case["use"], "dropout_rate": 0.0}
    config = DecoderOnlyConfig(**sizes, **options)
    return LayerStack(config, config.stacks[0], case["remat"])


def layers(case: Any, x: X, **params: Any) -> Any:
    """Apply a stack of layers, as for derivatives."""
    context = Context(deterministic=False, kernels=case["preset"])
    variables = {"params": unflatten_dict(params, sep="/")}
    return _stack(case).apply(variables, x, context, rngs={"dropout": jax.random.key(0)})


def updates(case: Any, x: X) -> Any:
    """Update parameters four times, once with a loss that is not finite."""
    rate, zero, params = case["rate"] or None, jnp.int32(0), jnp.full_like(x, 0.5)
    options: Any = {"adam_epsilon": case["epsilon"], "clip_gradient_norm": rate, "ema_decay": rate}
    config = Config(training=TrainingConfig(optimizer=case["use"], **options))
    optimizer, average = recipe.make_optimizer(config, {}), params if rate else None
    now: Any = state.TrainState(zero, params, optimizer.init(params), zero, zero, average)
    for factor in (1, -2, jnp.nan, 0.5):
        sums = step.StepSums(step.LossSums(*[jnp.float32(factor)] * 3), {})
        now, metrics = step.update(config, optimizer, now, factor * x, sums, case["preset"].finish)
    return now, metrics
