"""Matmuls of bfloat16 matrices for CPUs with bfloat16 instructions.

XLA for CPUs uses these instructions only if a matmul returns float32 and reads its operands in
memory order. XLA converts the operands of other matmuls to float32, which takes two to five times
as long (`benchmarks/products.py` measures both). So each matmul here returns float32, rounded
afterwards, and reads a transposed matrix from a transposed copy.
"""

from functools import cache

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float, Float32

from t2t_jax.kernels.products import for_cpus, summed_in_float32

_BLOCK = 16
"""Rows and columns of the blocks in which `transpose` copies a matrix."""
_Operands = tuple[Float[Array, "..."], Float[Array, "..."]]


@jax.custom_vjp
def add_bias(x: BFloat16[Array, "b t d"], bias: BFloat16[Array, " d"]) -> BFloat16[Array, "b t d"]:
    """Add a bias to x at every position, with a fast derivative."""
    return x + bias


def _add_bias_gradient(_: None, cotangent: Float[Array, "b t d"]) -> _Operands:
    rows = _rows(cotangent)
    # A matmul sums the rows: XLA's own sum takes up to ten times as long. The matmul needs two rows
    # of ones, because XLA does not multiply a single row in bfloat16.
    ones = jnp.ones((2, len(rows)), rows.dtype)
    return cotangent, summed_in_float32("or,rd->od", ones, rows)[0].astype(rows.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), None), _add_bias_gradient)


def transpose(matrix: Float[Array, "m n"]) -> Float[Array, "n m"]:
    """Transpose a matrix in memory, so that XLA does not merge the transposition into a matmul.

    If n is not a multiple of 16, XLA may merge the transposition into the matmul and convert the
    matmul to float32.
    """
    m, n = matrix.shape
    if n % _BLOCK:
        return matrix.T
    # XLA merges a plain transposition, but not one of blocks.
    block_rows = _BLOCK if m % _BLOCK == 0 else 1
    blocks = matrix.reshape(m // block_rows, block_rows, n // _BLOCK, _BLOCK)
    return blocks.transpose(2, 3, 0, 1).reshape(n, m)


def _multiply(equation: str, a: Float[Array, "..."], b: Float[Array, "..."]) -> Array:
    return summed_in_float32(equation, a, b).astype(a.dtype)


def _outer(x: Float[Array, "b t m"], y: Float[Array, "b t n"]) -> Float32[Array, "m n"]:
    return summed_in_float32("ir,ro->io", transpose(_rows(x)), _rows(y))


linear, pre_softmax_logits = for_cpus(_multiply, _outer, transpose)
"""x W at every position, and the output projection (section 3.4)."""


@cache
def is_supported() -> bool:
    """Return whether this CPU can run the bfloat16 matmuls defined here, and their derivatives.

    Run a small example once to find out, as XLA may refuse a bfloat16 matmul at run time.
    """

    def loss(x: Array, kernel: Array, bias: Array) -> Array:
        return pre_softmax_logits(add_bias(linear(x, kernel), bias), kernel).sum()

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        matrix = jnp.ones((_BLOCK, _BLOCK), jnp.bfloat16)
        grad_function = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
        try:
            jax.block_until_ready(grad_function(matrix[None], matrix, matrix[0]))
        except jax.errors.JaxRuntimeError:
            return False
    return True


def _rows(x: Float[Array, "b t d"]) -> Float[Array, "r d"]:
    return x.reshape(-1, x.shape[-1])
