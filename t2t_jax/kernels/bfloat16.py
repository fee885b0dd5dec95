"""Products of bfloat16 matrices in the forms that CPUs with instructions for them run fast.

XLA multiplies in bfloat16 on CPUs only if the product's result is float32 and its operands lie in
memory as the product runs through them. XLA converts all else to float32 first, which takes two to
five times as long (`benchmarks/products.py` measures the forms). So here every product has a
float32 result, which is then rounded, and a matrix that is needed transposed is really transposed:
through blocks, because XLA takes a plain transposition back into the product.
"""

from functools import cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float, Float32

from t2t_jax.kernels.products import summed_in_float32

_BLOCK = 16
"""Rows and columns of the blocks of a transposition."""
_Operands = tuple[Float[Array, "..."], Float[Array, "..."]]


@jax.custom_vjp
def linear(
    x: BFloat16[Array, "b t d_in"], kernel: BFloat16[Array, "d_in d_out"]
) -> BFloat16[Array, "b t d_out"]:
    """Compute the product x W at every position."""
    return summed_in_float32("bti,io->bto", x, kernel).astype(x.dtype)


def _linear_gradient(operands: _Operands, cotangent: Float[Array, "b t d_out"]) -> _Operands:
    x, kernel = operands
    cotangent = jax.lax.optimization_barrier(cotangent)  # written once, for both products
    x_bar = summed_in_float32("bto,io->bti", cotangent, kernel).astype(x.dtype)
    kernel_bar = summed_in_float32("ir,ro->io", transpose(_rows(x)), _rows(cotangent))
    return x_bar, kernel_bar.astype(kernel.dtype)


linear.defvjp(lambda x, kernel: (linear(x, kernel), (x, kernel)), _linear_gradient)


@jax.custom_vjp
def add_bias(x: BFloat16[Array, "b t d"], bias: BFloat16[Array, " d"]) -> BFloat16[Array, "b t d"]:
    """Add the same bias to x at every position."""
    return x + bias


def _add_bias_gradient(_: None, cotangent: Float[Array, "b t d"]) -> _Operands:
    rows = _rows(cotangent)
    # Two rows of ones, as XLA does not multiply a single row in bfloat16. XLA's own sum over the
    # rows takes up to ten times as long.
    ones = jnp.ones((2, len(rows)), rows.dtype)
    return cotangent, summed_in_float32("or,rd->od", ones, rows)[0].astype(rows.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), None), _add_bias_gradient)


@jax.custom_vjp
def pre_softmax_logits(
    x: BFloat16[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float32[Array, "b t vocab"]:
    """Compute the pre-softmax linear transformation (section 3.4), summed in float32."""
    return summed_in_float32("btd,vd->btv", x, embedding.astype(x.dtype))


def _logits_gradient(operands: _Operands, cotangent: Float32[Array, "b t vocab"]) -> _Operands:
    x, embedding = operands
    cotangent = jax.lax.optimization_barrier(cotangent.astype(x.dtype))
    x_bar = summed_in_float32("btv,vd->btd", cotangent, embedding.astype(x.dtype)).astype(x.dtype)
    # The smaller operand and the result are transposed: the cotangent is the largest of all.
    transposed = summed_in_float32("dr,rv->dv", transpose(_rows(x)), _rows(cotangent))
    embedding_bar = transpose(jax.lax.optimization_barrier(transposed)).astype(x.dtype)
    return x_bar, embedding_bar.astype(embedding.dtype)


pre_softmax_logits.defvjp(
    lambda x, embedding: (pre_softmax_logits(x, embedding), (x, embedding)), _logits_gradient
)


@cache
def is_supported() -> bool:
    """Return whether XLA computes these products, and their derivatives, on the CPU at hand.

    XLA can refuse a product of bfloat16 matrices when it runs. No version at hand refuses one of
    these forms; with one that does, programs multiply as JAX writes products.
    """

    def loss(x: Array, kernel: Array, bias: Array) -> Array:
        return pre_softmax_logits(add_bias(linear(x, kernel), bias), kernel).sum()

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        matrix = jnp.ones((_BLOCK, _BLOCK), jnp.bfloat16)
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        try:
            jax.block_until_ready(gradient(matrix[None], matrix, matrix[0]))
        except jax.errors.JaxRuntimeError:
            return False
    return True


def transpose(matrix: Float[Array, "m n"]) -> Float[Array, "n m"]:
    """Transpose a matrix in memory, so that XLA does not merge the transposition into a product.

    Args:
      matrix: the matrix; if its width is no multiple of 16, XLA may convert products to float32.
    """
    m, n = matrix.shape
    if n % _BLOCK:
        return matrix.T
    rows = _BLOCK if m % _BLOCK == 0 else 1
    blocks = matrix.reshape(m // rows, rows, n // _BLOCK, _BLOCK)
    return blocks.transpose(2, 3, 0, 1).reshape(n, m)


def _rows(x: Float[Array, "b t d"]) -> Float[Array, "r d"]:
    return x.reshape(-1, x.shape[-1])
