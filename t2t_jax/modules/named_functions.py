"""Load and check the functions that a config names, such as activations, norms and scores.

Users can register functions, which `function_problems` checks. Training computes many positions at
once. Decoding computes one query at a time, over keys in a ring buffer, and separates heads that
share keys. A function that depends on other positions, their number or their index would therefore
give different results in training and in decoding.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PyTree

from t2t_jax.config import Config, ModelConfig
from t2t_jax.config.registry import Entry
from t2t_jax.config.tables import named_entries
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.functional.feed_forward import Activation
from t2t_jax.kernels.reference import Score


def call(
    entry: Entry, shape: Sequence[int], dtype: DTypeLike, *arrays: Array, **options: Array | float
) -> Array:
    """Call a named function on arrays, and check the result of a function that a user registered.

    Args:
      dtype: the dtype to convert the result to.
    """
    function = entry.load()
    # Only a registered function has a title; the library's own functions need no check.
    if not entry.title:
        return function(*arrays, **options)
    try:
        output = jnp.asarray(function(*arrays, **options))
    except Exception as error:
        first = (str(error).strip() or "no reason").splitlines()[0][:300]
        inputs = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
        raise UserError(
            f"{entry.title} raised {type(error).__name__} for {inputs}: {first}; mend the function"
        ) from error
    if output.shape != tuple(shape) or not jnp.issubdtype(output.dtype, jnp.floating):
        raise UserError(
            f"{entry.title} made {output.dtype}{list(output.shape)} of arrays for which it has to "
            f"make floats{list(shape)}; mend the function"
        )
    return output.astype(dtype)


@cache
def elementwise(entry: Entry) -> Activation:
    """Return an activation function."""

    def activation(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return call(entry, x.shape, x.dtype, x)

    return activation if entry.title else entry.load()


def score_function(entry: Entry, parameters: Mapping[str, Array]) -> Score:
    """Return a score function of attention other than the dot product.

    Args:
      entry: the row of `SCORE_FUNCTIONS`.
      parameters: the learned parameters of the function.
    """
    # `tree_util.Partial` is a pytree, so the parameters can pass through JAX transformations.
    return jax.tree_util.Partial(partial(_scores, entry), **parameters)


def _scores(
    entry: Entry, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"], **params: Array
) -> Float[Array, "b h q k"]:
    batch, queries, heads, _ = query.shape
    shape = batch, heads, queries, key.shape[1]
    return call(entry, shape, jnp.float32, query, key, **params)


_AXES = {
    "feed_forward": "btc,->btc",
    "norm": "btw,->btw",
    "query_key_norm": "bthd,->bthd",
    "score_function": "bqhd,bkhd,h->bhqk",
}
"""The axes of the arguments, of the learned arrays and of the result. Declared axes of learned
arrays are omitted. Axes w and d are whole vectors."""
_RULES = {
    "feed_forward": "an activation may depend only on the number that it is applied to",
    "norm": "a norm may depend only on the vector that it normalises and on what it learns",
    "score_function": (
        "a score may depend only on its query, its key and what its head learns (not on jnp.arange "
        "over keys or on key.shape[1], for which there is model.position)"
    ),
}

# Float32 sums in another order differ by about 1e-6. A function that rounds to bfloat16 inside
# differs by more, but also when its inputs change by a millionth.
_TOLERANCE, _NUDGE, _ROUNDINGS = 1e-4, np.float32(1 + 1e-6), 4


def function_problems(config: Config, *, is_run: bool = True) -> Iterator[str]:
    """Yield a message for each registered function that differs between training and decoding.

    The check computes small random arrays at once and position by position, and compares the
    results. A process checks each function once per model config.

    Args:
      is_run: whether to run the functions; False only traces and differentiates them.
    """
    for name, entry in named_entries(config).items():
        of_heads = name == "norm" and config.model.query_key_norm
        for use in (name, "query_key_norm") if of_heads else (name,):
            if problem := _problem(entry, _AXES[use], _RULES[name], config.model, is_run=is_run):
                yield problem


@cache
def _problem(entry: Entry, axes: str, rule: str, model: ModelConfig, *, is_run: bool) -> str | None:
    *of_arrays, of_learned, of_result = axes.replace("->", ",").split(",")
    separate = [axis for axis in of_result if axis not in "wd"]
    sizes = _sizes(model)
    counts, shape = ([sizes[axis] for axis in group] for group in (separate, of_result))
    arrays, learned = _random_arrays(entry, of_arrays, of_learned, sizes)
    options = {"epsilon": model.norm_epsilon} if rule == _RULES["norm"] else {}

    def apply(shape: Sequence[int], arrays: Sequence[Array], learned: Mapping[str, Array]) -> Array:
        return call(entry, shape, jnp.float32, *arrays, **learned, **options)

    def one(arrays: Sequence[Array], learned: Mapping[str, Array], number: Array) -> Array:
        indices = dict(zip(separate, jnp.unravel_index(number, counts), strict=True))
        parts = [_part(x, own, indices) for x, own in zip(arrays, of_arrays, strict=True)]
        of_part = {name: _part(x, of_learned, indices) for name, x in learned.items()}
        return apply([1 if a in separate else sizes[a] for a in of_result], parts, of_part)

    @jax.jit
    def results(arrays: Sequence[Array], learned: Mapping[str, Array]) -> PyTree[Array]:
        values, pullback = jax.vjp(partial(apply, shape), arrays, learned)
        # A loop instead of `vmap`, because a user's kernels may have no batching rule.
        parts = jax.lax.map(partial(one, arrays, learned), jnp.arange(math.prod(counts)))
        return values, parts.reshape(shape), pullback(jnp.ones_like(values))

    try:
        if not is_run:
            jax.eval_shape(results, arrays, learned)
            return None
        with jax.default_matmul_precision("highest"):
            values, parts, gradients = jax.device_get(results(arrays, learned))
            nudged, *_ = jax.device_get(results([x * _NUDGE for x in arrays], learned))
    except UserError as error:
        return str(error)
    except Exception as error:  # of JAX, which may be unable to differentiate the function
        return f"{entry.title} cannot be differentiated: {in_one_line(error)[:300]}; mend it"
    if not all(np.isfinite(x).all() for x in jax.tree.leaves((values, gradients))):
        return f"{entry.title} has values or gradients that are not finite; mend the function"
    differences = np.nan_to_num(abs(values - parts), nan=np.inf)
    worst = np.unravel_index(differences.argmax(), differences.shape)
    allowed = _TOLERANCE * abs(values).max() + _ROUNDINGS * abs(values - nudged).max()
    if differences[worst] <= allowed:
        return None
    return (
        f"{entry.title} gives {values[worst]:.6g} where it is computed together with others, and "
        f"{parts[worst]:.6g} where it is computed by itself, as in decoding; {rule}, and not on a "
        "state or random numbers; mend the function"
    )


def _sizes(model: ModelConfig) -> dict[str, int]:
    """Return the size of each axis. All sizes differ, so that swapped axes change the shape."""
    large = {"w": model.d_model, "h": model.attention.num_heads, "d": model.attention.d_k}
    small = (size for size in itertools.count(2) if size not in large.values())
    return large | dict(zip("btcqk", small, strict=False))


def _random_arrays(
    entry: Entry, of_arrays: Sequence[str], of_learned: str, sizes: Mapping[str, int]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Draw random inputs of a function, and parameters around their initial means.

    A parameter that is 0 may have no effect, so every parameter gets noise. Noise around a
    constant is smaller than the constant, whose sign may matter.
    """
    rng, learned = np.random.default_rng(0), {}
    arrays = [rng.standard_normal([sizes[a] for a in axes], np.float32) for axes in of_arrays]
    for name, (shape, mean, deviation) in entry.learned(arrays[0].shape[-1]).items():
        drawn = rng.uniform(-1, 1, (*[sizes[axis] for axis in of_learned], *shape))
        drawn = mean + (deviation or abs(mean) / 2 or 0.5) * drawn
        learned[name] = np.asarray(drawn, np.float32)
    return arrays, learned


def _part(x: Array, axes: str, indices: Mapping[str, Array]) -> Array:
    for axis in set(axes) & set(indices):
        x = jax.lax.dynamic_slice_in_dim(x, indices[axis], 1, axes.index(axis))
    return x
