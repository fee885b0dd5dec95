"""Put a student's functions into trained models."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from t2t_jax.errors import UserError, user_code
from t2t_jax.functional.attention import repeat_heads
from t2t_jax.functional.masks import SegmentMask, distances
from t2t_jax.kernels.cached_attention import CachedEntries
from t2t_jax.modules.attention import Context
from t2t_jax.modules.embedding import PositionEncoding

Function: TypeAlias = Callable[..., Any]
"""A student's function."""
Layout: TypeAlias = Literal["bthd", "bhtd"]
"""Axes of queries, keys, values and heads: batch, time, heads and width, or heads before time."""


@dataclass(frozen=True)
class StudentAttention:
    """A student's `attention(query, key, value, mask)`, as an implementation of `Kernels`.

    All arrays of the methods are in the layout "bthd".

    Attributes:
      function: the function. Models with relative positions need a fifth argument: the bias to add
        to the scores, or None.
      layout: the axes of the function's arrays.
    """

    function: Function
    layout: Layout = "bthd"

    def __post_init__(self) -> None:
        """Raise a `UserError` if the layout is unknown."""
        if self.layout not in ("bthd", "bhtd"):
            raise UserError(f'layout={self.layout!r} is unknown; use "bthd" or "bhtd"')

    @property
    def takes_bias(self) -> bool:
        """Return whether the function has a fifth argument."""
        return len(inspect.signature(self.function).parameters) > 4

    def __call__(self, query: Array, key: Array, value: Array, mask: Array, *bias: Any) -> Array:
        """Call the function in its layout."""
        extra = (mask, *(bias or [None])) if self.takes_bias else (mask,)
        if self.layout == "bthd":
            return jnp.asarray(self.function(query, key, value, *extra))
        heads = self.function(*(x.swapaxes(1, 2) for x in (query, key, value)), *extra)
        return jnp.asarray(heads).swapaxes(1, 2)

    def attend(self, query: Array, key: Array, value: Array, mask: Array, bias: Any) -> Array:
        """Call the function with keys and values of all heads, and check its result."""
        name = name_of(self.function)
        if bias is not None and not self.takes_bias:
            raise UserError(
                f"this model adds a bias to the scores; write {name}(query, key, value, mask, "
                "bias), and add the bias to the scores [batch, heads, queries, keys]"
            )
        key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
        mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
        with user_code(name, "compute with jax.numpy, and check it with check_attention"):
            heads = self(query, key, value, mask, bias)
        _check_shape(name, heads, (*query.shape[:3], value.shape[3]))
        return heads.astype(query.dtype)

    def attention(
        self, query: Array, key: Array, value: Array, mask: Any, bias: Any, **_: object
    ) -> tuple[Array, None]:
        """Compute `Kernels.attention` without its dropout."""
        dense = mask.dense() if isinstance(mask, SegmentMask) else mask
        dense = jnp.ones((1, 1, 1, 1), bool) if dense is None else dense
        score_bias = None if bias is None else bias(distances(query.shape[1], key.shape[1]))
        return self.attend(query, key, value, dense, score_bias), None

    def cached_attention(self, query: Array, parts: Sequence[CachedEntries], _: object) -> Array:
        """Compute `Kernels.cached_attention`."""
        keys = jnp.concatenate([part.key.transpose(0, 3, 1, 2) for part in parts], 1)
        values = jnp.concatenate([part.value.swapaxes(1, 2) for part in parts], 1)
        shapes = [(*query.shape[:3:2], query.shape[1], part.mask.shape[3]) for part in parts]
        biases = [0.0 if part.bias is None else part.bias for part in parts]
        mask, bias = (
            jnp.concatenate(list(map(jnp.broadcast_to, arrays, shapes)), -1)  # [b, h, q, slots]
            for arrays in ([part.mask for part in parts], biases)
        )
        has_bias = any(part.bias is not None for part in parts)
        return self.attend(query, keys, values, mask, bias if has_bias else None)

    def fused_cached_attention(self, query: Array, key: Array, value: Array, *mask: Any) -> Array:
        """Compute `Kernels.fused_cached_attention` without its scale, which follows the mask."""
        return self.attend(query, key, value, mask[0], None)


def name_of(function: Function) -> str:
    """Return the name of a function, or of the class of a callable object."""
    return str(getattr(function, "__name__", type(function).__name__))


@contextmanager
def replace(
    *, attention: Function | None = None, positions: Function | None = None, layout: Layout = "bthd"
) -> Iterator[None]:
    """Compute all models with a student's functions within the context.

    This includes `apply` of modules, `t2t_jax.score` and `translate`, which compile the model
    again; a function that you have compiled with `jax.jit` before stays as it is. Attention weights
    are not dropped in training.

    Args:
      attention: `attention(query, key, value, mask)` computes equation 1 in all self-attention and
        cross-attention. The mask is bool, [batch or 1, heads or 1, queries, keys], True where a
        query may attend to a key. Models with relative positions need a fifth argument: the bias to
        add to the scores, or None. In decoding, each hypothesis has one query.
      positions: `positions(length, d_model)` returns the vectors `[length, d_model]` that are added
        to the embeddings.
      layout: the axes of queries, keys, values and heads of `attention`: "bthd" is batch, time,
        heads and width; "bhtd" has the heads before the time.

    Raises:
      UserError: `layout` is unknown; or, within the context, a function fails, or the model has
        another kind of positions.
    """
    with nn.intercept_methods(_interceptor(attention, positions, layout)):
        yield


@lru_cache(maxsize=32)  # compiled programs belong to an interceptor: equal functions share them
def _interceptor(attention: Function | None, positions: Function | None, layout: Layout) -> Any:
    names = "attention", "cached_attention", "fused_cached_attention"
    student = StudentAttention(attention, layout) if attention else None
    kernels: Any = {name: getattr(student, name) for name in names if student}

    def with_kernels(argument: Any) -> Any:
        if not isinstance(argument, Context):
            return argument
        new_kernels = dataclasses.replace(argument.kernels, **kernels)
        return dataclasses.replace(argument, kernels=new_kernels)

    def intercept(method: Function, arguments: Any, options: Any, context: Any) -> Any:
        is_position = isinstance(context.module, PositionEncoding)
        if positions and is_position and context.method_name == "__call__":
            return _add_positions(positions, context.module.config, *arguments)
        arguments = map(with_kernels, arguments)
        options = {name: with_kernels(argument) for name, argument in options.items()}
        return method(*arguments, **options)

    return intercept


def _add_positions(function: Function, config: Any, x: Array, indices: Array, length: int) -> Array:
    if config.positions.sinusoids is None and not config.positions.has_table:
        raise UserError(
            f"the model has model.position={config.position!r}, which adds no vectors to the "
            "embeddings; use a model with sinusoids"
        )
    length += config.first_position
    with user_code(name_of(function), "compute with jax.numpy, and check it with check_positions"):
        table = jnp.asarray(function(length, config.d_model))
    _check_shape(name_of(function), table, (length, config.d_model))
    indices += config.first_position
    return x + jnp.take(table, indices, axis=0, mode="clip").astype(x.dtype)


def _check_shape(name: str, result: Array, shape: tuple[int, ...]) -> None:
    if result.shape != shape:
        raise UserError(f"{name} returned an array {list(result.shape)}; return {list(shape)}")
