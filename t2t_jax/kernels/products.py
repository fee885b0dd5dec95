"""Matmuls: with fast derivatives for training, and with other forms of matrices for decoding."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Int

from t2t_jax.kernels.int8 import Int8Matrix

MATMUL_NAME = "product"
"""Name of matmul results for the policies of `jax.checkpoint`, which cannot see the matmuls inside
functions with a custom derivative."""


class Transposed(NamedTuple):
    """A matrix stored transposed: one row for each output."""

    rows: Float[Array, "d_out d_in"]

    def astype(self, dtype: DTypeLike) -> "Transposed":
        """Return the matrix in another dtype."""
        return Transposed(self.rows.astype(dtype))


Matrix: TypeAlias = Float[Array, "d_in d_out"] | Transposed | Int8Matrix
"""A matrix as in training, or in a form for decoding."""

Einsum: TypeAlias = Callable[[str, Array, Array], Float32[Array, "..."]]
"""A function `einsum(equation, a, b)` that sums in float32."""

summed_in_float32: Einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)
"""`jnp.einsum` that sums and returns float32, with JAX's own derivative."""

_Operands = tuple[Float[Array, "..."], Float[Array, "..."]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum_float32(
    equation: str, a: Float[Array, "..."], b: Float[Array, "..."]
) -> Float32[Array, "..."]:
    """Compute `jnp.einsum(equation, a, b)` with float32 sums.

    The derivative uses the dtype of the operands. JAX's own derivative uses float32, which takes
    several times as long for bfloat16 operands.
    """
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _einsum_gradient(
    equation: str, operands: _Operands, cotangent: Float32[Array, "..."]
) -> _Operands:
    _, pull_back = jax.vjp(partial(jnp.einsum, equation), *operands)
    return pull_back(cotangent.astype(operands[0].dtype))


einsum_float32.defvjp(
    lambda equation, a, b: (einsum_float32(equation, a, b), (a, b)), _einsum_gradient
)


def target_logits(
    x: Float[Array, "b t d_model"],
    targets: Int[Array, "b t"],
    embedding: Float[Array, "vocab d_model"],
) -> Float32[Array, "b t"]:
    """Compute the logits of the targets only."""
    rows = jnp.take(embedding, targets, axis=0).astype(x.dtype)
    return (x.astype(jnp.float32) * rows.astype(jnp.float32)).sum(-1)


def for_cpus(
    multiply: Callable[[str, Array, Array], Array],
    outer: Callable[[Array, Array], Array],
    transpose: Callable[[Array], Array],
) -> tuple[Callable[[Array, Array], Array], Callable[[Array, Array], Float32[Array, "b t v"]]]:
    """Return functions for x W and the output projection, with derivatives that are fast on CPUs.

    Args:
      multiply: an `einsum` in the dtype of its operands.
      outer: sums the outer products of vectors `[b, t, m]` and `[b, t, n]` to a matrix `[m, n]`.
      transpose: transposes a matrix.
    """

    @jax.custom_vjp
    def linear(x: Float[Array, "b t i"], kernel: Float[Array, "i o"]) -> Float[Array, "b t o"]:
        return multiply("bti,io->bto", x, kernel)

    def linear_gradient(operands: _Operands, cotangent: Float[Array, "b t o"]) -> _Operands:
        x, kernel = operands
        # The barrier makes both matmuls read one copy of the cotangent. Otherwise XLA computes and
        # writes it twice, once transposed, which takes as long as a matmul.
        cotangent = jax.lax.optimization_barrier(cotangent)
        x_bar = multiply("bto,io->bti", cotangent, kernel)
        return x_bar, outer(x, cotangent).astype(kernel.dtype)

    @jax.custom_vjp
    def logits(x: Float[Array, "b t d"], table: Float[Array, "v d"]) -> Float32[Array, "b t v"]:
        return summed_in_float32("btd,vd->btv", x, table.astype(x.dtype))

    def logits_gradient(operands: _Operands, cotangent: Float32[Array, "b t v"]) -> _Operands:
        x, table = operands
        # One copy of the cotangent, as in `linear_gradient`: it is the largest array of a step. The
        # second matmul returns [d, v], because transposing its result moves fewer bytes than
        # transposing the cotangent.
        cotangent = jax.lax.optimization_barrier(cotangent.astype(x.dtype))
        x_bar = multiply("btv,vd->btd", cotangent, table.astype(x.dtype))
        table_bar = jax.lax.optimization_barrier(outer(x, cotangent))
        return x_bar, transpose(table_bar).astype(x.dtype).astype(table.dtype)

    linear.defvjp(lambda x, kernel: (linear(x, kernel), (x, kernel)), linear_gradient)
    logits.defvjp(lambda x, table: (logits(x, table), (x, table)), logits_gradient)
    return linear, logits


_outer = partial(jnp.einsum, "bti,bto->io")
linear_on_cpus, logits_on_cpus = for_cpus(jnp.einsum, _outer, jnp.transpose)
"""Functions for x W in the dtype of its operands, and the output projection in float32."""


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def logits_on_accelerators(
    x: Float[Array, "b t d_model"],
    embedding: Float[Array, "vocab d_model"],
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "b t vocab"]:
    """Compute the output projection, with a derivative that is fast on GPUs and TPUs.

    Args:
      x: output of the decoder.
      embedding: matrix of the output projection.
      dtype: dtype of the logits; the sums are float32.
    """
    embedding = embedding.astype(x.dtype)
    return jnp.einsum("btd,vd->btv", x, embedding, preferred_element_type=dtype)


def _fused_logits_gradient(
    dtype: DTypeLike, operands: _Operands, cotangent: Float[Array, "b t vocab"]
) -> _Operands:
    x, embedding = operands
    cotangent = cotangent.astype(x.dtype)
    x_bar = jnp.einsum("btv,vd->btd", cotangent, embedding.astype(x.dtype))
    # "vd" is the memory order of the matrix. With another order, XLA for TPUs would transpose the
    # matrix and the optimizer state for the update, and back. With float32 logits the gradient is
    # float32 too: it is added to the gradient of the embeddings before the all-reduce, not after.
    embedding_bar = jnp.einsum("btv,btd->vd", cotangent, x, preferred_element_type=dtype)
    return x_bar, embedding_bar.astype(embedding.dtype)


logits_on_accelerators.defvjp(
    lambda x, embedding, dtype: (logits_on_accelerators(x, embedding, dtype), (x, embedding)),
    _fused_logits_gradient,
)

_MAX_VECTORS = 64


def rows_product_on_cpus(
    x: Float[Array, "b k d_in"],
    rows: Float[Array, "d_out d_in"],
    dtype: DTypeLike,
    sums_in_float32: bool = False,
) -> Float[Array, "b k d_out"]:
    """Compute the dot product of every vector with every row of a matrix.

    Args:
      sums_in_float32: whether to sum in float32 even if `dtype` is the dtype of the vectors.
    """
    einsum = einsum_float32 if sums_in_float32 or dtype != x.dtype else jnp.einsum
    if x.shape[0] * x.shape[1] > _MAX_VECTORS:
        return einsum("btd,vd->btv", x, rows).astype(dtype)
    # XLA for CPUs splits the rows of a result among threads. For few vectors, it is faster to make
    # the matrix rows the rows of the result, and to transpose the result.
    product = einsum("vd,bkd->vbk", rows, x).astype(dtype)
    return jax.lax.optimization_barrier(product).transpose(1, 2, 0)
