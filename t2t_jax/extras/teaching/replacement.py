"""Put a student's functions into trained models."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array

from t2t_jax.errors import UserError, quote, user_code
from t2t_jax.functional.attention import SCALED_PRODUCT, ScaledProducts, repeat_heads
from t2t_jax.functional.masks import SegmentMask, distances
from t2t_jax.kernels.cached_attention import CachedEntries
from t2t_jax.modules.attention import DEFAULT_CONTEXT, Context, MultiHeadAttention
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
      function: the function; see `replace`.
      layout: the axes of the function's arrays.
    """

    function: Function
    layout: Layout = "bthd"

    def __post_init__(self) -> None:
        """Raise a `UserError` if the layout is unknown or the function is not callable."""
        if self.layout not in ("bthd", "bhtd"):
            raise UserError(f'layout={self.layout!r} is unknown; use "bthd" or "bhtd"')
        name_of(self.function)  # raises if it is not callable

    @property
    def takes_bias(self) -> bool:
        """Return whether the function has an argument named `bias`."""
        return "bias" in inspect.signature(self.function).parameters

    def __call__(self, query: Array, key: Array, value: Array, mask: Any, bias: Any = None) -> Any:
        """Call the function in its layout."""
        options = {"bias": bias} if self.takes_bias else {}
        if self.layout == "bthd":
            return self.function(query, key, value, mask, **options)
        arrays = (x.swapaxes(1, 2) for x in (query, key, value))
        return jnp.asarray(self.function(*arrays, mask, **options)).swapaxes(1, 2)

    def attend(
        self, query: Array, key: Array, value: Array, mask: Any, scale: Any = None, bias: Any = None
    ) -> Array:
        """Compute `Kernels.fused_cached_attention`, in float32, and also with a bias."""
        name, (batch, queries, heads, d_k) = name_of(self.function), query.shape
        if bias is not None and not self.takes_bias:
            raise UserError(
                f"this model adds a bias to the scores; write {name}(query, key, value, mask, "
                "bias), and add the bias to the scores [batch, heads, queries, keys]"
            )
        key, value = repeat_heads(key, heads), repeat_heads(value, heads)
        shape = batch, heads, queries, key.shape[1]
        mask, bias = (None if x is None else jnp.broadcast_to(x, shape) for x in (mask, bias))
        factor = 1.0 if scale is None else scale * d_k**0.5  # the function divides by sqrt(d_k)
        scaled, key, value = (x.astype(jnp.float32) for x in (factor * query, key, value))
        with user_code(name, "compute with jax.numpy, and check it with check_attention"):
            result = jnp.asarray(self(scaled, key, value, mask, bias))
        _check_shape(name, result, (batch, queries, heads, value.shape[3]))
        return result.astype(query.dtype)

    def attention(
        self, query: Array, key: Array, value: Array, mask: Any, bias: Any, *, score: Any, **_: Any
    ) -> tuple[Array, None]:
        """Compute `Kernels.attention` without its dropout."""
        dense = mask.dense() if isinstance(mask, SegmentMask) else True if mask is None else mask
        score_bias = None if bias is None else bias(distances(query.shape[1], key.shape[1]))
        return self.attend(query, key, value, dense, _scale_of(score), score_bias), None

    def cached_attention(
        self, query: Array, parts: Sequence[CachedEntries], score: Any = SCALED_PRODUCT
    ) -> Array:
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
        return self.attend(query, keys, values, mask, _scale_of(score), bias if has_bias else None)


def _scale_of(score: Any) -> float | None:
    if not isinstance(score, ScaledProducts):
        raise UserError("this model has other scores than dot products; use another model")
    return score.scale


def name_of(function: Function) -> str:
    """Return the name of a function, or of the class of a callable object.

    Raises:
      UserError: the object is not callable.
    """
    if not callable(function):
        raise UserError(f"{quote(function)} is not a function; pass the function itself")
    return str(getattr(function, "__name__", type(function).__name__))


@contextmanager
def replace(
    *, attention: Function | None = None, positions: Function | None = None, layout: Layout = "bthd"
) -> Iterator[None]:
    """Run all models of this thread with a student's functions within the context.

    This includes `apply` of modules, `t2t_jax.train`, `t2t_jax.score`, and `translate` of a model,
    which compile the model anew. Functions that you have compiled with `jax.jit` stay as they are.
    `t2t_jax.attention_maps` shows the package's weights, training does not drop weights, and a run
    does not record the replacement. NaN in a result is reported as a diverged model.

    Args:
      attention: `attention(query, key, value, mask)` computes equation 1 in all self-attention and
        cross-attention, from float32 arrays of all heads. The mask is bool `[batch, heads, queries,
        keys]`, True where a query may attend to a key. Models with relative positions need an
        argument named `bias`: None, or an array of the mask's shape to add to the scores. In
        decoding, each hypothesis has one query.
      positions: `positions(length, d_model)` returns the vectors `[length, d_model]` that are added
        to the embeddings.
      layout: the axes of queries, keys, values and heads of `attention`: "bthd" is batch, time,
        heads and width; "bhtd" has the heads before the time.

    Raises:
      UserError: `layout` is unknown; or, within the context, a function fails, or the model has
        other scores or another kind of positions.
    """
    # A new interceptor compiles anew, as a function may read variables that have changed.
    with nn.intercept_methods(_interceptor(attention, positions, layout)):
        yield


def _interceptor(attention: Function | None, positions: Function | None, layout: Layout) -> Any:
    kernels: dict[str, Any] = {}
    if attention is not None:
        student = StudentAttention(attention, layout)
        kernels = {"attention": student.attention, "cached_attention": student.cached_attention}
        kernels["fused_cached_attention"] = student.attend

    def with_kernels(argument: Any) -> Any:
        if not isinstance(argument, Context):
            return argument
        new_kernels = dataclasses.replace(argument.kernels, **kernels)
        return dataclasses.replace(argument, kernels=new_kernels)

    def intercept(method: Function, arguments: Any, options: Any, context: Any) -> Any:
        is_position = isinstance(context.module, PositionEncoding)
        if positions and is_position and context.method_name == "__call__":
            return _add_positions(positions, context.module.config, *arguments)
        if isinstance(context.module, MultiHeadAttention) and context.method_name == "__call__":
            options = options if len(arguments) > 1 else {"context": DEFAULT_CONTEXT, **options}
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
    indices = indices + config.first_position
    return x + jnp.take(table, indices, axis=0, mode="clip").astype(x.dtype)


def _check_shape(name: str, result: Array, shape: tuple[int, ...]) -> None:
    if result.shape != shape:
        raise UserError(f"{name} returned an array {list(result.shape)}; return {list(shape)}")
