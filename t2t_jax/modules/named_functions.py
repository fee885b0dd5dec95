"""Load and check the functions that a config names, such as activations, norms and scores.

`function_problems` checks the functions that users register. Training computes many positions at
once; decoding computes one query at a time, over keys in a ring buffer. Therefore, a function that
depends on other positions, their number or their index would give different results in decoding.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, PyTree

from t2t_jax.config import AttentionConfig, Config, ModelConfig
from t2t_jax.config.attention_kinds import AttentionKind
from t2t_jax.config.registry import Entry
from t2t_jax.config.tables import TABLES
from t2t_jax.errors import UserError, reason_of, user_code
from t2t_jax.functional.attention import Score
from t2t_jax.functional.feed_forward import Activation


def call(
    entry: Entry,
    shape: Sequence[int],
    dtype: DTypeLike,
    *arrays: PyTree[Array | int],
    **options: Array | float,
) -> Array:
    """Call a named function on arrays; check and convert the result of a registered function.

    Args:
      shape: the required shape of the result.
    """
    function = entry.load()
    # Only a registered function has a title; the library's own functions need no check.
    if not entry.title:
        return function(*arrays, **options)
    leaves = jax.tree.leaves(arrays)
    types = [f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else str(x) for x in leaves]
    with user_code(f"{entry.title} for {', '.join(types)}", "fix the function"):
        output = jnp.asarray(function(*arrays, **options))
    if output.shape != tuple(shape) or not jnp.issubdtype(output.dtype, jnp.floating):
        raise UserError(
            f"{entry.title} returned {output.dtype}{list(output.shape)} instead of "
            f"floats{list(shape)}; fix the function"
        )
    return output.astype(dtype)


@cache
def elementwise(entry: Entry) -> Activation:
    """Return the activation function of an entry of `ACTIVATIONS`."""

    def activation(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return call(entry, x.shape, x.dtype, x)

    return activation if entry.title else entry.load()


def score_function(entry: Entry, parameters: Mapping[str, Array]) -> Score:
    """Return a score function of attention with its learned parameters.

    Args:
      entry: the score function, as in `AttentionConfig.scores`.
    """
    # `tree_util.Partial` is a pytree, so the parameters can pass through JAX transformations.
    return jax.tree_util.Partial(partial(_scores, entry), **parameters)


def _scores(
    entry: Entry, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"], **params: Array
) -> Float[Array, "b h q k"]:
    batch, num_queries, num_heads, _ = query.shape
    shape = batch, num_heads, num_queries, key.shape[1]
    return call(entry, shape, jnp.float32, query, key, **params)


_AXES = {
    "feed_forward": "btc,->btc",
    "norm": "btw,->btw",
    "query_key_norm": "bthd,->bthd",
    "attention_kind": "bqhd,bkhd,h->bhqk",
}
"""Axes of the arguments, of the learned parameters (without their declared axes) and of the result.
Axes w and d are whole vectors."""
_RULES = {
    "feed_forward": "an activation may depend only on its input number",
    "norm": "a norm may depend only on its input vector and its learned parameters",
    "attention_kind": (
        "a score may depend only on its query, its key and the learned parameters of its head (not "
        "on jnp.arange over keys or key.shape[1]; use model.position for positions)"
    ),
    "combine": (
        "combine may depend only on the heads and the gates of its position, on its parameters and "
        "on the layer"
    ),
}

# Float32 sums in another order differ by about 1e-6. A function that rounds to bfloat16 inside
# differs by more, but also when its inputs change by a millionth.
_TOLERANCE, _NUDGE, _ROUNDINGS = 1e-4, np.float32(1 + 1e-6), 4


def function_problems(config: Config, *, executes: bool = True) -> Iterator[str]:
    """Yield a message for each registered function that differs between training and decoding.

    The check compares results for small random arrays, computed at once and position by position.

    Args:
      executes: whether to execute the functions; False only traces and differentiates them.
    """
    rows = {name: table[getattr(config.model, name)] for name, table in TABLES.items()}
    for name, entry in (rows | {"attention_kind": config.model.attention.scores}).items():
        if not entry or not entry.title:
            continue
        has_heads = name == "norm" and config.model.query_key_norm
        for use in (name, "query_key_norm") if has_heads else (name,):
            if problem := _problem(entry, _AXES[use], _RULES[name], config.model, executes):
                yield problem
    attentions = (attention for stack in config.model.stacks for attention in stack.attentions)
    for attention in dict.fromkeys(attentions):
        if problem := _attention_problem(attention, attention.kind, executes):
            yield problem


@cache
def _attention_problem(config: AttentionConfig, kind: AttentionKind, executes: bool) -> str | None:
    """Return a message for the kind of a config; the cache of results needs `kind`, too."""
    from t2t_jax.modules.attention_checks import SEGMENTS, attention_results  # these call `call`

    if not config.combination or not config.combination.title:
        return None
    x = np.random.default_rng(1).standard_normal((*SEGMENTS.shape, 8), np.float32)
    results = jax.jit(partial(attention_results, config))
    return _difference(config.combination.title, _RULES["combine"], results, [x], {}, executes)


@cache
def _problem(entry: Entry, axes: str, rule: str, model: ModelConfig, executes: bool) -> str | None:
    *array_axes, parameter_axes, result_axes = axes.replace("->", ",").split(",")
    loop_axes = [axis for axis in result_axes if axis not in "wd"]
    sizes = _sizes(model)
    loop_sizes, shape = ([sizes[axis] for axis in group] for group in (loop_axes, result_axes))
    arrays, params = _random_arrays(entry, array_axes, parameter_axes, sizes)
    options = {"epsilon": model.norm_epsilon} if rule == _RULES["norm"] else {}

    def apply(shape: Sequence[int], arrays: Sequence[Array], params: Mapping[str, Array]) -> Array:
        return call(entry, shape, jnp.float32, *arrays, **params, **options)

    def apply_at(arrays: Sequence[Array], params: Mapping[str, Array], flat_index: Array) -> Array:
        indices = dict(zip(loop_axes, jnp.unravel_index(flat_index, loop_sizes), strict=True))
        slices = [_slice(x, axes, indices) for x, axes in zip(arrays, array_axes, strict=True)]
        params = {name: _slice(x, parameter_axes, indices) for name, x in params.items()}
        return apply([1 if a in loop_axes else sizes[a] for a in result_axes], slices, params)

    @jax.jit
    def results(arrays: Sequence[Array], params: Mapping[str, Array]) -> PyTree[Array]:
        values, pullback = jax.vjp(partial(apply, shape), arrays, params)
        # A loop instead of `vmap`, because a user's kernels may have no batching rule.
        slices = jax.lax.map(partial(apply_at, arrays, params), jnp.arange(math.prod(loop_sizes)))
        return values, slices.reshape(shape), pullback(jnp.ones_like(values))

    return _difference(entry.title, rule, results, arrays, params, executes)


def _difference(
    title: str,
    rule: str,
    results: Callable[..., PyTree[Array]],
    arrays: Sequence[np.ndarray],
    params: Mapping[str, np.ndarray],
    executes: bool,
) -> str | None:
    """Return a message if a function fails, or depends on other positions.

    Args:
      results: a function of arrays and parameters that returns the values of all positions computed
        together, the values of positions computed one by one, and gradients.
    """
    try:
        if not executes:
            jax.eval_shape(results, arrays, params)
            return None
        with jax.default_matmul_precision("highest"):
            values, slices, gradients = jax.device_get(results(arrays, params))
            nudged_values, *_ = jax.device_get(results([x * _NUDGE for x in arrays], params))
    except UserError as error:
        return str(error)
    except Exception as error:  # JAX cannot differentiate the function
        return f"{title} cannot be differentiated: {reason_of(error)}; fix it"
    if not all(np.isfinite(x).all() for x in jax.tree.leaves((values, gradients))):
        return f"{title} has values or gradients that are not finite; fix the function"
    differences = np.nan_to_num(abs(values - slices), nan=np.inf)
    worst = np.unravel_index(differences.argmax(), differences.shape)
    tolerance = _TOLERANCE * abs(values).max() + _ROUNDINGS * abs(values - nudged_values).max()
    if differences[worst] <= tolerance:
        return None
    return (
        f"{title} gives {values[worst]:.6g} if many positions are computed together, but "
        f"{slices[worst]:.6g} if one is computed alone, as in decoding; {rule}, and not on state "
        "or random numbers; fix the function"
    )


def _sizes(model: ModelConfig) -> dict[str, int]:
    """Return a size for each axis letter, all different, so that swapped axes change the shape."""
    large = {"w": model.d_model, "h": model.attention.num_maps, "d": model.attention.d_k}
    small = (size for size in itertools.count(2) if size not in large.values())
    return large | dict(zip("btcqk", small, strict=False))


def _random_arrays(
    entry: Entry, array_axes: Sequence[str], parameter_axes: str, sizes: Mapping[str, int]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Draw random inputs and parameters (by name) of a function.

    Parameters are initial means with noise, because a parameter 0 may have no effect. Without a
    `deviation`, the noise does not change the sign of a nonzero mean.

    Args:
      array_axes: axes of each input, one letter each.
      parameter_axes: axes before each declared shape.
    """
    rng, params = np.random.default_rng(0), {}
    arrays = [rng.standard_normal([sizes[a] for a in axes], np.float32) for axes in array_axes]
    for name, (shape, mean, deviation) in entry.learned(arrays[0].shape[-1]).items():
        noise = rng.uniform(-1, 1, (*[sizes[axis] for axis in parameter_axes], *shape))
        values = mean + (deviation or abs(mean) / 2 or 0.5) * noise
        params[name] = np.asarray(values, np.float32)
    return arrays, params


def _slice(x: Array, axes: str, indices: Mapping[str, Array]) -> Array:
    for axis in set(axes) & set(indices):
        x = jax.lax.dynamic_slice_in_dim(x, indices[axis], 1, axes.index(axis))
    return x
