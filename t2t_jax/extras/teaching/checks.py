"""Check a student's attention, positions and multi-head attention, with hints on mistakes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t2t_jax.errors import UserError
from t2t_jax.extras.teaching.replacement import Function, Layout, StudentAttention, name_of
from t2t_jax.extras.teaching.report import Report, difference
from t2t_jax.functional.attention import merge_heads, split_heads
from t2t_jax.functional.attention import scaled_dot_product_attention as attend
from t2t_jax.functional.position import sinusoidal_positions, tensor2tensor_sinusoids

_SIZES = (2, 3, 5, 2, 4, 6), (1, 4, 4, 3, 9, 9), (2, 1, 7, 1, 2, 3)
"""Batch, queries, keys, heads, d_k and d_v; all different at first, so that mixed axes show."""


def check_attention(function: Function, *, layout: Layout = "bthd", seed: int = 0) -> Report:
    """Check a function `attention(query, key, value, mask)` on random arrays (equation 1).

    The checks are values without and with a mask, queries that may attend to no key (whose result
    is zero), large scores, other shapes, `jax.jit`, and gradients. A function with an argument
    `bias` is also checked with a bias of the scores.

    Args:
      function: the function; see `replace`.
      layout: the axes of its arrays.
      seed: seed of the random arrays.

    Returns:
      A report, which also says if the function is right in the other layout.

    Raises:
      UserError: the layout is unknown, or `function` is not a function.
    """
    student = StudentAttention(function, layout)
    arrays, *other_arrays = (_attention_arrays(sizes, seed) for sizes in _SIZES)
    every_key, no_key = jnp.ones_like(arrays[3]), arrays[3].at[:, :, 0].set(False)
    compare = partial(difference, student, attend, mistakes=_ATTENTION_MISTAKES)
    hints = {
        "all keys": compare([*arrays[:3], every_key]),
        "mask": compare(arrays),
        "queries without a key": compare([*arrays[:3], no_key]),
        "large scores": compare([300 * arrays[0], *arrays[1:]]),
        "other shapes": next(filter(None, map(compare, other_arrays)), ""),
        "jax.jit": difference(jax.jit(lambda *x: student(*x)), attend, arrays, _ATTENTION_MISTAKES),
        "gradients": difference(partial(_gradients, student), partial(_gradients, attend), arrays),
    }
    if hints["queries without a key"] and not hints["mask"]:
        hints["queries without a key"] = (
            "differs only for queries that may attend to no key, such as padding; return zeros"
        )
    if student.takes_bias:
        sentence = [x[:1] for x in arrays]
        bias = jax.random.normal(jax.random.key(seed), sentence[3].shape)
        biased = lambda q, k, v, mask, bias: attend(q, k, v, mask, bias[0])  # noqa: E731
        mistakes = {"the bias is not added to the scores": lambda *x: attend(*x[:4])}
        hints["bias"] = difference(student, biased, [*sentence, bias], mistakes)
    swapped = StudentAttention(function, "bhtd" if layout == "bthd" else "bthd")
    if hints["all keys"] and not difference(swapped, attend, [*arrays[:3], every_key]):
        hints["all keys"] = f"the function has the other layout; pass layout={swapped.layout!r}"
    return Report(name_of(function), hints)


def check_positions(function: Function) -> Report:
    """Check a function `positions(length, d_model)` against the sinusoids of section 3.5.

    Args:
      function: the function.

    Raises:
      UserError: `function` is not a function.
    """
    compare = partial(difference, function, sinusoidal_positions, mistakes=_POSITION_MISTAKES)
    sizes = (10, 8), (7, 4), (300, 64)
    hints = {f"length {length}, d_model {d}": compare([length, d]) for length, d in sizes}
    return Report(name_of(function), hints)


def check_multi_head(function: Function, params: Any = None, num_heads: int = 4) -> Report:
    """Check a function `multi_head(x, encoded, mask, params, num_heads)` (section 3.2.2).

    It returns `[batch, queries, d_model]`: the queries are of `x`, and the keys and values of
    `encoded`, both `[batch, time, d_model]`. `params` has the matrices "W_Q", "W_K", "W_V" and
    "W_O", and the mask is `[batch, 1, queries, keys]`.

    Args:
      function: the function.
      params: the four matrices, such as those of `t2t_jax.named_arrays`; None makes random ones.
      num_heads: number of heads.

    Raises:
      UserError: `params` are not four matrices whose sizes `num_heads` divides.
    """
    rng, names, width = np.random.default_rng(0), ("W_Q", "W_K", "W_V", "W_O"), 8 * num_heads
    if params is None:
        params = {name: rng.normal(size=(width, width)) / width**0.5 for name in names}
    matrices = {name: jnp.asarray(params.get(name, ()), jnp.float32) for name in names}
    for name, matrix in matrices.items():
        if matrix.ndim != 2 or matrix.shape[name != "W_O"] % num_heads:
            give = f"the four matrices of a layer with num_heads={num_heads} heads"
            raise UserError(f"params[{name!r}] has shape {[*matrix.shape]}; give {give}")
    inputs = rng.normal(size=(2, 8, len(matrices["W_Q"])))
    x, encoded = jnp.float32(inputs[:, :3]), jnp.float32(inputs[:, 3:])
    mask = jnp.asarray(rng.random((2, 1, 3, 5)) < 0.6).at[..., 0].set(True)
    cases = {
        "self-attention": (x, x, mask[..., :3] | True),
        "self-attention with a mask": (x, x, mask[..., :3]),
        "cross-attention": (x, encoded, mask),
    }

    def student(x: Array, encoded: Array, mask: Array, params: Any, num_heads: int) -> Any:
        return function(x, encoded, mask, dict(params), num_heads)  # it may change the dictionary

    compare = partial(difference, student, _multi_head(), mistakes=_MULTI_HEAD_MISTAKES)
    hints = {name: compare([*arrays, matrices, num_heads]) for name, arrays in cases.items()}
    return Report(name_of(function), hints)


def _attention_arrays(sizes: tuple[int, ...], seed: int) -> list[Array]:
    batch, queries, keys, heads, d_k, d_v = sizes
    *random_keys, mask_key = jax.random.split(jax.random.key(seed), 4)
    shapes = (batch, queries, heads, d_k), (batch, keys, heads, d_k), (batch, keys, heads, d_v)
    arrays = [jax.random.normal(*pair) for pair in zip(random_keys, shapes, strict=True)]
    mask = jax.random.bernoulli(mask_key, 0.6, (batch, heads, queries, keys))
    return [*arrays, mask.at[..., -1].set(True)]  # each query has a key, and not only early ones


def _gradients(function: Function, *arrays: Array) -> Array:
    *inputs, mask = arrays
    gradients = jax.grad(lambda *x: jnp.sin(function(*x, mask)).sum(), (0, 1, 2))(*inputs)
    return jnp.concatenate([x.ravel() for x in gradients])


def _mistaken(
    power: float = -0.5, axis: int = -1, mask_of: Function = jnp.array, *, is_late: bool = False
) -> Function:
    """Return equation 1 with a mistake.

    Args:
      power: exponent of d_k in the factor on the scores.
      axis: axis of the softmax.
      mask_of: changes the mask.
      is_late: whether to mask after the softmax.
    """

    def attention(query: Array, key: Array, value: Array, mask: Array) -> Array:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** power
        scores = scores if is_late else jnp.where(mask_of(mask), scores, -1e9)
        weights = jax.nn.softmax(scores, axis) * (mask if is_late else 1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    return attention


_ATTENTION_MISTAKES: dict[str, Function] = {
    "the scores are not divided by sqrt(d_k)": _mistaken(power=0),
    "the scores are divided by d_k, not by sqrt(d_k)": _mistaken(power=-1),
    "the softmax is over queries; sum over keys, the last axis": _mistaken(axis=-2),
    "the softmax is over heads; sum over keys, the last axis": _mistaken(axis=1),
    "the mask has no effect": _mistaken(mask_of=jnp.ones_like),
    "the mask is inverted; True means that a query may attend": _mistaken(mask_of=jnp.logical_not),
    "the function adds a causal mask; use only the caller's mask": _mistaken(mask_of=jnp.tril),
    "the mask is applied after the softmax; mask the scores before": _mistaken(is_late=True),
}


def _positions(exponents: Function, first: int = 0) -> Function:
    """Return sinusoids with an exponent for each column, from a position."""

    def positions(length: int, d_model: int) -> np.ndarray:
        columns = np.arange(d_model)
        rates = 10_000.0 ** (-exponents(columns) / d_model)
        angles = np.arange(first, first + length)[:, None] * rates
        return np.where(columns % 2 == 0, np.sin(angles), np.cos(angles))

    return positions


_POSITION_MISTAKES: dict[str, Function] = {
    "sines and cosines are in two halves; interleave them": lambda length, d_model: jnp.hstack(
        [sinusoidal_positions(length, d_model)[:, k::2] for k in (0, 1)]
    ),
    "the exponent is twice too large: 2i is the column": _positions(lambda n: n // 2 * 4),
    "positions start at 1; start at 0": _positions(lambda n: n // 2 * 2, first=1),
    "these are the positions of tensor2tensor, not of the paper": tensor2tensor_sinusoids,
}


def _multi_head(scale: float | None = None, *, mixes: bool = False, **sources: str) -> Function:
    """Return multi-head attention, with a mistake if there are arguments.

    Args:
      scale: factor on the scores; None is 1 / sqrt(d_k).
      mixes: whether to merge heads without a transposition.
      sources: the matrix to use instead of a matrix; "" is the identity.
    """

    def multi_head(x: Array, encoded: Array, mask: Array, params: Any, num_heads: int) -> Array:
        params = params | {"": jnp.eye(*params["W_O"].shape)}
        matrices = params | {name: params[source] for name, source in sources.items()}
        query = split_heads(x @ matrices["W_Q"], num_heads)
        key, value = (split_heads(encoded @ matrices[name], num_heads) for name in ("W_K", "W_V"))
        attended = attend(query, key, value, mask, scale=scale)
        attended = attended.swapaxes(1, 2).reshape(attended.shape) if mixes else attended
        return merge_heads(attended) @ matrices["W_O"]

    return multi_head


_MULTI_HEAD_MISTAKES: dict[str, Function] = {
    "the output matrix is missing": _multi_head(W_O=""),
    "the matrices of keys and values are exchanged": _multi_head(W_K="W_V", W_V="W_K"),
    "heads and time are mixed; transpose before you reshape": _multi_head(mixes=True),
    "the scores are not divided by sqrt(d_k)": _multi_head(scale=1.0),
}
