"""Matrix products: in training with fast derivatives, in decoding with matrices in other forms."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Int

from t2t_jax.kernels.int8 import Int8Matrix

MATMUL_NAME = "product"
"""The name that products with plain matrices have for the policies of `jax.checkpoint`, which do
not see into derivatives that are written out."""


class Transposed(NamedTuple):
    """A matrix that lies in memory with one row for every output."""

    rows: Float[Array, "d_out d_in"]

    def astype(self, dtype: DTypeLike) -> "Transposed":
        """Return the matrix in the dtype of its products."""
        return Transposed(self.rows.astype(dtype))


Matrix: TypeAlias = Float[Array, "d_in d_out"] | Transposed | Int8Matrix
"""A matrix as training has it, or in one of the forms that decoding holds it in."""

Einsum: TypeAlias = Callable[[str, Array, Array], Float32[Array, "..."]]
"""A function `einsum(equation, a, b)` that sums in float32."""

summed_in_float32: Einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)
"""`jnp.einsum` that sums and returns in float32, with the derivatives that JAX finds."""

_Operands = tuple[Float[Array, "..."], Float[Array, "..."]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum_float32(
    equation: str, a: Float[Array, "..."], b: Float[Array, "..."]
) -> Float32[Array, "..."]:
    """Compute `jnp.einsum(equation, a, b)`, accumulated and returned in float32.

    Its derivative multiplies in the operands' dtype. Left to itself, JAX would carry the float32 of
    the result back into both products of the derivative, which at bfloat16 are the largest of a
    training step (the output projection's) and run several times slower in float32.
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
    """Compute only the logits of the targets, not those of the whole vocabulary."""
    rows = jnp.take(embedding, targets, axis=0).astype(x.dtype)
    return (x.astype(jnp.float32) * rows.astype(jnp.float32)).sum(-1)


def for_cpus(
    multiply: Callable[[str, Array, Array], Array],
    outer: Callable[[Array, Array], Array],
    transpose: Callable[[Array], Array],
) -> tuple[Callable[[Array, Array], Array], Callable[[Array, Array], Float32[Array, "b t v"]]]:
    """Return x W and the output projection, with derivatives that XLA for CPUs runs fast.

    Args:
      multiply: `einsum`, in the dtype of its operands.
      outer: the matrix `[m, n]` of vectors `[b, t, m]` and `[b, t, n]`: the sum of outer products.
      transpose: the transposition of a matrix.
    """

    @jax.custom_vjp
    def linear(x: Float[Array, "b t i"], kernel: Float[Array, "i o"]) -> Float[Array, "b t o"]:
        return multiply("bti,io->bto", x, kernel)

    def linear_gradient(operands: _Operands, cotangent: Float[Array, "b t o"]) -> _Operands:
        x, kernel = operands
        # Both products read the cotangent, in one layout. Left to itself, XLA computes and writes
        # it once for each, and transposed for the kernel, which takes as long as the product.
        cotangent = jax.lax.optimization_barrier(cotangent)
        x_bar = multiply("bto,io->bti", cotangent, kernel)
        return x_bar, outer(x, cotangent).astype(kernel.dtype)

    @jax.custom_vjp
    def logits(x: Float[Array, "b t d"], table: Float[Array, "v d"]) -> Float32[Array, "b t v"]:
        return summed_in_float32("btd,vd->btv", x, table.astype(x.dtype))

    def logits_gradient(operands: _Operands, cotangent: Float32[Array, "b t v"]) -> _Operands:
        x, table = operands
        # There is one copy of the largest array of a step, as in `linear`. The product whose wide
        # side is that array is transposed afterwards: the result is a fraction of the size.
        cotangent = jax.lax.optimization_barrier(cotangent.astype(x.dtype))
        x_bar = multiply("btv,vd->btd", cotangent, table.astype(x.dtype))
        transposed = jax.lax.optimization_barrier(outer(x, cotangent))
        return x_bar, transpose(transposed).astype(x.dtype).astype(table.dtype)

    linear.defvjp(lambda x, kernel: (linear(x, kernel), (x, kernel)), linear_gradient)
    logits.defvjp(lambda x, table: (logits(x, table), (x, table)), logits_gradient)
    return linear, logits


_outer = partial(jnp.einsum, "bti,bto->io")
linear_on_cpus, logits_on_cpus = for_cpus(jnp.einsum, _outer, jnp.transpose)
"""x W and the output projection, in the dtypes that CPUs have always computed in."""


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def logits_on_accelerators(
    x: Float[Array, "b t d_model"],
    embedding: Float[Array, "vocab d_model"],
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "b t vocab"]:
    """Compute the output projection, with a derivative that accelerators run fast.

    Args:
      x: the decoder's output.
      embedding: the matrix of the output projection.
      dtype: the dtype of the logits, which are summed in float32.
    """
    embedding = embedding.astype(x.dtype)
    return jnp.einsum("btd,vd->btv", x, embedding, preferred_element_type=dtype)


def _fused_logits_gradient(
    dtype: DTypeLike, operands: _Operands, cotangent: Float[Array, "b t vocab"]
) -> _Operands:
    x, embedding = operands
    cotangent = cotangent.astype(x.dtype)
    x_bar = jnp.einsum("btv,vd->btd", cotangent, embedding.astype(x.dtype))
    # The gradient is in the matrix's order: otherwise XLA for TPUs updates the matrix transposed,
    # and copies it and the optimiser's state into that order and back. It is float32 if logits are:
    # then it joins the gradient of the embeddings before devices add up their parts, and not after.
    embedding_bar = jnp.einsum("btv,btd->vd", cotangent, x, preferred_element_type=dtype)
    return x_bar, embedding_bar.astype(embedding.dtype)


logits_on_accelerators.defvjp(
    lambda x, embedding, dtype: (logits_on_accelerators(x, embedding, dtype), (x, embedding)),
    _fused_logits_gradient,
)

_FEW_VECTORS = 64


def rows_product_on_cpus(
    x: Float[Array, "b k d_in"],
    rows: Float[Array, "d_out d_in"],
    dtype: DTypeLike,
    is_summed_wide: bool = False,
) -> Float[Array, "b k d_out"]:
    """Compute the products of every vector with every row of a matrix.

    The rows of the matrix become rows of the product, which XLA's threads on CPUs share, and the
    result is transposed. For many vectors that would cost more than it gains.

    Args:
      is_summed_wide: whether the product is float32 before it is rounded to `dtype`; otherwise
        that holds only if it is not the dtype of the vectors.
    """
    einsum = einsum_float32 if is_summed_wide or dtype != x.dtype else jnp.einsum
    if x.shape[0] * x.shape[1] > _FEW_VECTORS:
        return einsum("btd,vd->btv", x, rows).astype(dtype)
    product = einsum("vd,bkd->vbk", rows, x).astype(dtype)
    return jax.lax.optimization_barrier(product).transpose(1, 2, 0)
