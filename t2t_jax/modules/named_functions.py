"""The functions that a config names, in the form for layers, with their learned parameters."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from t2t_jax.config.registry import Entry, Parameter
from t2t_jax.errors import UserError
from t2t_jax.functional.attention import Score
from t2t_jax.parallel.axes import named


def learned(
    module: nn.Module, entry: Entry, width: int, heads: int | None = None
) -> dict[str, Any]:
    """Make the learned parameters of a named function, as parameters of a module.

    Args:
      module: the module, in its `setup` or in its compact call.
      width: width of the vectors that the function takes.
      heads: the number of heads, each of which learns these parameters; None is no heads.
    """
    made = {}
    for name, declared in entry.parameters(width).items():
        axes = ["vector" if size == width and heads is None else None for size in declared.shape]
        of_heads = [] if heads is None else [heads]
        init = named(initializer(declared), *["heads" for _ in of_heads], *axes)
        made[name] = module.param(name, init, (*of_heads, *declared.shape))
    return made


def initializer(declared: Parameter) -> Any:
    """Return the initialiser of a learned parameter of a named function.

    Args:
      declared: the shape of the parameter, and mean and deviation of its first values.
    """
    if not declared.deviation:
        return nn.initializers.constant(declared.mean)
    normal = nn.initializers.normal(declared.deviation)
    if not declared.mean:
        return normal
    return lambda key, shape: declared.mean + normal(key, shape)


def call(
    entry: Entry, shape: Sequence[int], dtype: DTypeLike, *arrays: Array, **options: Any
) -> Array:
    """Call a named function on arrays, and check its result if a user registered the function.

    A registered function may do anything, so its mistakes become errors that users can fix.

    Args:
      shape: the required shape of the result.
      dtype: the dtype to convert the result to.
      options: the keyword arguments of the function.

    Raises:
      UserError: a registered function raised an error, or its result is not of floats and `shape`.
    """
    function = entry.load()
    if not entry.title:
        return function(*arrays, **options)
    try:
        made = jnp.asarray(function(*arrays, **options))
    except Exception as error:
        first = (str(error).strip() or "no reason").splitlines()[0][:300]
        given = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
        raise UserError(
            f"{entry.title} raised {type(error).__name__} for {given}: {first}; mend the function"
        ) from error
    if made.shape != tuple(shape) or not jnp.issubdtype(made.dtype, jnp.floating):
        raise UserError(
            f"{entry.title} made {made.dtype}{list(made.shape)} of arrays for which it has to make "
            f"floats{list(shape)}; mend the function"
        )
    return made.astype(dtype)


def elementwise(entry: Entry) -> Any:
    """Return the function of an activation."""

    def activation(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return call(entry, x.shape, x.dtype, x)

    return activation if entry.title else entry.load()


def score_function(entry: Entry, parameters: Mapping[str, Array]) -> Score | None:
    """Return the score function of attention; None means dot products.

    Args:
      parameters: the learned parameters of each head.
    """
    if entry.function is None:
        return None
    return jax.tree_util.Partial(partial(_scores, entry), **parameters)


def _scores(
    entry: Entry, query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"], **learned: Array
) -> Float[Array, "b h q k"]:
    batch, queries, heads, _ = query.shape
    shape = batch, heads, queries, key.shape[1]
    return call(entry, shape, jnp.float32, query, key, **learned)
