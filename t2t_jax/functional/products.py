"""Matrix products whose result is float32, whatever the operands are."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum_float32(
    equation: str, a: Float[Array, "..."], b: Float[Array, "..."]
) -> Float32[Array, "..."]:
    """`jnp.einsum(equation, a, b)`, accumulated and returned in float32.

    Its derivative multiplies in the operands' dtype. Left to itself, JAX would carry the float32 of
    the result back into both products of the derivative, which at bfloat16 are the largest of a
    training step (the output projection's) and run several times slower in float32.
    """
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


_Operands = tuple[Float[Array, "..."], Float[Array, "..."]]


def _forward(
    equation: str, a: Float[Array, "..."], b: Float[Array, "..."]
) -> tuple[Float32[Array, "..."], _Operands]:
    return einsum_float32(equation, a, b), (a, b)


def _backward(equation: str, operands: _Operands, cotangent: Float32[Array, "..."]) -> _Operands:
    a_bar, b_bar = jax.vjp(partial(jnp.einsum, equation), *operands)[1](
        cotangent.astype(operands[0].dtype)
    )
    return a_bar, b_bar


einsum_float32.defvjp(_forward, _backward)


def pre_softmax_logits(
    x: Float[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float32[Array, "b t vocab"]:
    """The pre-softmax linear transformation (section 3.4), in the dtype of `x`, summed in float32.

    Args:
      x: the decoder's output.
      embedding: one row for every entry of the vocabulary.
    """
    return einsum_float32("btd,vd->btv", x, embedding.astype(x.dtype))
