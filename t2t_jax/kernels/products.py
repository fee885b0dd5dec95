"""Matrix products: in training with fast derivatives, in decoding with matrices in other forms."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, Int

from t2t_jax.kernels import bfloat16, choice, int8

PRODUCT = "product"
"""The name that products with plain matrices have for the policies of `jax.checkpoint`, which do
not see into derivatives that are written out."""


def has_form(x: Float[Array, "..."], form: choice.ProductForm) -> bool:
    """Return whether products of an array have the form of `kernels.bfloat16`.

    Args:
      form: the form of products, from `kernels_of`.
    """
    return _form_of(x, form) == "float32_results"


def _form_of(x: Float[Array, "..."], form: choice.ProductForm) -> choice.ProductForm:
    """Return the form of products with an array; the one for bfloat16 takes no other dtype."""
    return "plain" if form == "float32_results" and x.dtype != jnp.bfloat16 else form


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


_Operands = tuple[Float[Array, "..."], Float[Array, "..."]]


def _einsum_gradient(
    equation: str, operands: _Operands, cotangent: Float32[Array, "..."]
) -> _Operands:
    _, pull_back = jax.vjp(partial(jnp.einsum, equation), *operands)
    return pull_back(cotangent.astype(operands[0].dtype))


einsum_float32.defvjp(
    lambda equation, a, b: (einsum_float32(equation, a, b), (a, b)), _einsum_gradient
)


class Transposed(NamedTuple):
    """A matrix that lies in memory with one row for every output."""

    rows: Float[Array, "d_out d_in"]

    def astype(self, dtype: DTypeLike) -> "Transposed":
        """Return the matrix in the dtype of its products."""
        return Transposed(self.rows.astype(dtype))


def linear(
    x: Float[Array, "b t d_in"],
    kernel: Float[Array, "d_in d_out"] | Transposed | int8.Int8Matrix,
    bias: Float[Array, " d_out"] | None = None,
    form: choice.ProductForm = "plain",
    rows: Bool[Array, "b t 1"] | None = None,
) -> Float[Array, "b t d_out"]:
    """Compute the product x W, or x W + b, at every position.

    Args:
      kernel: the matrix W. If it is a plain array, as in training, the derivative is written for
        speed; the other forms are for decoding.
      bias: the vector b; None means none.
      form: the form of products, from `kernels_of`.
      rows: True for the positions that have an x; the product of the others is zero. None means
        that all have one.
    """
    if isinstance(kernel, int8.Int8Matrix):
        product = int8.int8_product(x, kernel, axis=0).astype(x.dtype)
    elif isinstance(kernel, Transposed):
        product = _product_with_rows(x, kernel.rows, x.dtype, form)
    else:
        product = checkpoint_name(_LINEAR[_form_of(x, form)](x, kernel), PRODUCT)
    if rows is not None:
        product = jnp.where(rows, product, 0)
    if bias is None:
        return product
    return bfloat16.add_bias(product, bias) if has_form(x, form) else product + bias


@jax.custom_vjp
def _linear(
    x: Float[Array, "b t d_in"], kernel: Float[Array, "d_in d_out"]
) -> Float[Array, "b t d_out"]:
    return x @ kernel


def _linear_gradient(operands: _Operands, cotangent: Float[Array, "b t d_out"]) -> _Operands:
    x, kernel = operands
    # Both products read the cotangent, in one layout. Left to itself, XLA computes and writes it
    # once for each, and transposed for the kernel, which takes as long as the product.
    cotangent = jax.lax.optimization_barrier(cotangent)
    x_bar = jnp.einsum("bto,io->bti", cotangent, kernel)
    kernel_bar = jnp.einsum("bti,bto->io", x, cotangent)
    return x_bar, kernel_bar


_linear.defvjp(lambda x, kernel: (_linear(x, kernel), (x, kernel)), _linear_gradient)

_LINEAR: dict[choice.ProductForm, Callable[..., Array]] = {
    "plain": _linear,
    "fused": jnp.matmul,
    "float32_results": bfloat16.linear,
}


def pre_softmax_logits(
    x: Float[Array, "b t d_model"],
    embedding: Float[Array, "vocab d_model"],
    form: choice.ProductForm = "plain",
) -> Float32[Array, "b t vocab"]:
    """Compute pre-softmax logits (section 3.4) by products in `x`'s dtype, summed in float32.

    Args:
      form: the form of products, from `kernels_of`.
    """
    return _LOGITS[_form_of(x, form)](x, embedding)


def rounded_logits(
    x: Float[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float[Array, "b t vocab"]:
    """Compute `pre_softmax_logits`, summed in float32 and rounded to the dtype of `x`.

    This suits devices whose memory is the bound: logits are the largest array of a training step.
    """
    return _fused_logits(x, embedding, x.dtype)


def target_logits(
    x: Float[Array, "b t d_model"],
    targets: Int[Array, "b t"],
    embedding: Float[Array, "vocab d_model"],
) -> Float32[Array, "b t"]:
    """Compute only the logits of the targets, not those of the whole vocabulary."""
    rows = jnp.take(embedding, targets, axis=0).astype(x.dtype)
    return (x.astype(jnp.float32) * rows.astype(jnp.float32)).sum(-1)


@jax.custom_vjp
def _logits(
    x: Float[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float32[Array, "b t vocab"]:
    return einsum_float32("btd,vd->btv", x, embedding.astype(x.dtype))


def _logits_gradient(operands: _Operands, cotangent: Float32[Array, "b t vocab"]) -> _Operands:
    x, embedding = operands
    # There is one copy of the largest array of a step, as in `linear`. The product whose wide side
    # is that array is transposed afterwards: the result is a fraction of the size.
    cotangent = jax.lax.optimization_barrier(cotangent.astype(x.dtype))
    x_bar = jnp.einsum("btv,vd->btd", cotangent, embedding.astype(x.dtype))
    transposed = jax.lax.optimization_barrier(jnp.einsum("btd,btv->dv", x, cotangent))
    return x_bar, transposed.T.astype(embedding.dtype)


_logits.defvjp(lambda x, embedding: (_logits(x, embedding), (x, embedding)), _logits_gradient)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fused_logits(
    x: Float[Array, "b t d_model"],
    embedding: Float[Array, "vocab d_model"],
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "b t vocab"]:
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


_fused_logits.defvjp(
    lambda x, embedding, dtype: (_fused_logits(x, embedding, dtype), (x, embedding)),
    _fused_logits_gradient,
)

_LOGITS: dict[choice.ProductForm, Callable[..., Array]] = {
    "plain": _logits,
    "fused": _fused_logits,
    "float32_results": bfloat16.pre_softmax_logits,
}


def next_token_logits(
    x: Float[Array, "b k d_model"],
    embedding: Float[Array, "vocab d_model"] | int8.Int8Matrix,
    form: choice.ProductForm = "plain",
) -> Float32[Array, "b k vocab"]:
    """Compute the pre-softmax logits (section 3.4) of decoding, summed in float32.

    Args:
      form: the form of products, from `kernels_of`.
    """
    if isinstance(embedding, int8.Int8Matrix):
        return jax.lax.optimization_barrier(int8.int8_product(x, embedding, axis=1))
    return _product_with_rows(x, embedding.astype(x.dtype), jnp.float32, form)


_FEW_VECTORS = 64


def _product_with_rows(
    x: Float[Array, "b k d_in"],
    rows: Float[Array, "d_out d_in"],
    dtype: DTypeLike,
    form: choice.ProductForm,
) -> Float[Array, "b k d_out"]:
    """Compute the products of every vector with every row of a matrix, by `_einsum`.

    The rows of the matrix become rows of the product, which XLA's threads on CPUs share, and the
    result is transposed. For many vectors that would cost more than it gains.
    """
    if form == "fused" or x.shape[0] * x.shape[1] > _FEW_VECTORS:
        return _einsum("btd,vd->btv", x, rows, dtype, form)
    product = _einsum("vd,bkd->vbk", rows, x, dtype, form)
    return jax.lax.optimization_barrier(product).transpose(1, 2, 0)


def _einsum(
    equation: str,
    a: Float[Array, "..."],
    b: Float[Array, "..."],
    dtype: DTypeLike,
    form: choice.ProductForm,
) -> Float[Array, "..."]:
    """Compute `jnp.einsum`, summed in float32, with a result in the operands' dtype or float32."""
    if dtype == a.dtype and not has_form(a, form):
        return jnp.einsum(equation, a, b)
    return einsum_float32(equation, a, b).astype(dtype)
