"""`Kernels`: the functions that a network computes with, by default in plain JAX for any devices.

Every transform of JAX works on the functions of this file, which document their arguments. A preset
for a kind of device replaces some of them (`kernels.choice`). All presets compute the same
formulas: those of `functional`, with roundings in other places.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, Int, PyTree

from t2t_jax.functional import loss, masks, normalization
from t2t_jax.functional.attention import (
    ScaledProducts,
    masked_softmax,
    repeat_heads,
    weighted_values,
)
from t2t_jax.functional.dropout import DropoutKey, dropout
from t2t_jax.kernels.int8 import Int8Matrix, int8_product
from t2t_jax.kernels.products import MATMUL_NAME, Matrix, Transposed

Score: TypeAlias = Callable[
    [Float[Array, "b q h d_k"], Float[Array, "b k h d_k"]], Float32[Array, "b h q k"]
]
"""A score function of queries and keys: a pytree whose leaves are what the heads learn."""
SCALED_PRODUCT: Score = ScaledProducts()
"""The score function of the paper."""

DistanceBias: TypeAlias = Callable[[Int[Array, "q k"]], Float32[Array, "h q k"]]
"""The function of `masks.distances` that relative positions add to the scores of each head."""

Heads: TypeAlias = tuple[Float[Array, "b q h d_v"], Bool[Array, "b q 1"] | None]
"""The weighted values, and a mask that is True for each query that may attend to a key, or None.
If the mask is None, the other queries have values of zero. Otherwise their values are finite but
arbitrary. `Kernels.linear` takes the mask as `query_mask` and sets their outputs to zero, which is
cheaper than setting the values to zero."""

Losses: TypeAlias = tuple[Float[Array, "b t"], Float[Array, "b t"]]
"""The smoothed loss and the negative log-likelihood of every token, in nats."""

CacheLayout: TypeAlias = Literal["turned", "in_order", "stacked"]
"""The layout of keys and values in decoding; see `modules.cache`."""


def attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    value: Float[Array, "b k groups d_v"],
    mask: Bool[Array, "#b #h #q k"] | masks.SegmentMask | None = None,
    bias: DistanceBias | None = None,
    *,
    score: Score = SCALED_PRODUCT,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    softmax: Callable[[Array, Array | None], Array] = masked_softmax,
) -> Heads:
    """Compute equation 1 for every head; see `Kernels.attention`.

    Args:
      query: queries of each head.
      key: keys of each head, or of each group of heads that share them.
      value: values of each head or group.
      mask: True where a query may attend to a key; None allows everything. With a `SegmentMask`,
        fast forms take memory that is linear in the length of a row, if scores are products without
        a bias.
      bias: the function of distances to add to the scores.
      score: the score function.
      dropout_rate: share of the weights set to zero.
      dropout_key: key that decides which of them; None means no dropout.
      softmax: the function of the scores and the whole mask.
    """
    if key.shape[2] != query.shape[2]:
        key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
    weights = attention_weights(query, key, mask, bias, score, softmax)
    return weighted_values(dropout(weights, dropout_rate, dropout_key), value), None


def attention_weights(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    mask: Bool[Array, "#b #h #q k"] | masks.SegmentMask | None,
    bias: DistanceBias | None,
    score: Score,
    softmax: Callable[[Array, Array | None], Array] = masked_softmax,
) -> Float32[Array, "b h q k"]:
    """Compute the weights of the values; see `attention` for the arguments, keys of each head."""
    scores = score(query, key)  # [b, h, q, k]
    if bias is not None:
        scores += bias(masks.distances(query.shape[1], key.shape[1]))
    return softmax(scores, mask.dense() if isinstance(mask, masks.SegmentMask) else mask)


def rows_product(
    x: Float[Array, "b t d_in"], rows: Float[Array, "d_out d_in"], dtype: DTypeLike
) -> Float[Array, "b t d_out"]:
    """Compute the products of every vector with every row of a matrix, in a dtype."""
    return jnp.einsum("btd,vd->btv", x, rows, preferred_element_type=dtype)


def linear(
    x: Float[Array, "b t d_in"],
    kernel: Matrix,
    bias: Float[Array, " d_out"] | None = None,
    query_mask: Bool[Array, "b t 1"] | None = None,
    *,
    multiply: Callable[[Array, Array], Array] = jnp.matmul,
    multiply_rows: Callable[[Array, Array, DTypeLike], Array] = rows_product,
    add_bias: Callable[[Array, Array], Array] = jnp.add,
) -> Float[Array, "b t d_out"]:
    """Compute the product x W, or x W + b, at every position; see `Kernels.linear`.

    Args:
      x: vectors.
      kernel: W: an array `[d_in, d_out]` as in training, or in a form of decoding.
      bias: b; None means none.
      query_mask: True for the positions to multiply; the others get a product of zero. None means
        all positions.
      multiply: the product with an array.
      multiply_rows: the product with a `Transposed` matrix.
      add_bias: the sum of the product and b.
    """
    if isinstance(kernel, Int8Matrix):
        product = int8_product(x, kernel, axis=0).astype(x.dtype)
    elif isinstance(kernel, Transposed):
        product = multiply_rows(x, kernel.rows, x.dtype)
    else:
        product = checkpoint_name(multiply(x, kernel), MATMUL_NAME)
    if query_mask is not None:
        product = jnp.where(query_mask, product, 0)
    return product if bias is None else add_bias(product, bias)


def logits(
    x: Float[Array, "b t d_model"], embedding: Float[Array, "vocab d_model"]
) -> Float32[Array, "b t vocab"]:
    """Compute the pre-softmax logits (section 3.4) in the dtype of `x`, summed in float32."""
    embedding = embedding.astype(x.dtype)
    return jnp.einsum("btd,vd->btv", x, embedding, preferred_element_type=jnp.float32)


def next_logits(
    x: Float[Array, "b k d_model"],
    embedding: Float[Array, "vocab d_model"] | Int8Matrix,
    *,
    multiply_rows: Callable[[Array, Array, DTypeLike], Array] = rows_product,
) -> Float32[Array, "b k vocab"]:
    """Compute the logits of decoding, summed in float32; see `Kernels.next_logits`."""
    if isinstance(embedding, Int8Matrix):
        return jax.lax.optimization_barrier(int8_product(x, embedding, axis=1))
    return multiply_rows(x, embedding.astype(x.dtype), jnp.float32)


def losses(
    x: Float[Array, "b t d_model"],
    embedding: Float[Array, "vocab d_model"],
    bias: Float[Array, " vocab"] | None,
    targets: Int[Array, "b t"],
    epsilon: float,
    *,
    is_training: bool,
    project: Callable[[Array, Array], Array] = logits,
    project_in_training: Callable[[Array, Array], Array] | None = None,
    cross_entropy: Callable[..., Losses] = loss.label_smoothed_cross_entropy,
    guess: Callable[[Array, Array, Array], Array] | None = None,
) -> Losses:
    """Compute the loss of section 5.4; see `Kernels.losses`.

    Args:
      x: the decoder's output.
      embedding: the matrix of the output projection.
      bias: the bias of the logits; None means none.
      targets: ids of the right tokens.
      epsilon: eps_ls.
      is_training: whether to use `project_in_training`.
      project: the output projection.
      project_in_training: the output projection in training; None means `project`.
      cross_entropy: the loss of logits, targets and epsilon.
      guess: the function of `x`, the targets and the matrix that gives a number near the greatest
        logit, for a `cross_entropy` that takes one as `near`.
    """
    near = {} if guess is None else {"near": jax.lax.stop_gradient(guess(x, targets, embedding))}
    scores = ((is_training and project_in_training) or project)(x, embedding)
    scores = scores if bias is None else scores + bias
    return cross_entropy(scores, targets, epsilon, **near)


@dataclass(frozen=True)
class Kernels:
    """The functions that a network computes with. The defaults are plain JAX."""

    attention: Callable[..., Heads] = attention
    """Equation 1 (section 3.2.1)."""
    linear: Callable[..., Float[Array, "b t d_out"]] = linear
    """Projections of attention (section 3.2.2) and of the feed-forward network (section 3.3)."""
    logits: Callable[[Float[Array, "b t d"], Float[Array, "v d"]], Float32[Array, "b t v"]] = logits
    """The output projection (section 3.4), summed in float32."""
    next_logits: Callable[..., Float32[Array, "b k v"]] = next_logits
    """The output projection of one position of each hypothesis."""
    losses: Callable[..., Losses] = losses
    """The output projection, and the loss of section 5.4."""
    layer_norm: Callable[..., Float[Array, "*t d"]] = normalization.layer_norm
    """Layer normalisation in training; elsewhere it is plain."""
    dropout: Callable[[Float[Array, "..."], float, DropoutKey | None], Float[Array, "..."]] = (
        dropout
    )
    """Dropout (section 5.4)."""
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]] = jax.nn.relu
    """max(0, x) (section 3.3)."""
    unrolls: Callable[[Float[Array, "b t d"]], bool] = lambda x: False
    """Whether training compiles the layers of a stack one by one, for the input of the stack. A
    loop copies what each layer saves for its derivative into stacked arrays."""
    finish: Callable[[PyTree], PyTree] = lambda updated: updated
    """A function of the new optimizer state, and of the new parameters, before anything reads them:
    the identity, or a barrier that makes the compiler finish the update first."""
    logsumexp: Callable[..., Float32[Array, "b k"]] = lambda x: jax.nn.logsumexp(x, axis=-1)
    """The log of the sum of exponentials of the logits of each hypothesis."""
    cache_layout: Callable[[int | None, bool], CacheLayout] = lambda beam_size, is_fused: "turned"
    """The layout in which decoding keeps keys and values, for a number of hypotheses and whether
    fused attention takes the heads. None is the layout of sources."""
    cache_dtype: Callable[[DTypeLike], DTypeLike] = lambda dtype: dtype
    """The dtype in which decoding keeps keys and values, for the dtype of activations."""
    greatest: Callable[..., tuple[Int[Array, "b k"], Float32[Array, "b k"]]] | None = None
    """A function of logits, and of the same with -inf for tokens that may not be chosen, that gives
    the index of the greatest choice, and `logsumexp`; None leaves it to the search."""
    rounds_biases: bool = False
    """Whether decoding keeps biases in the dtype of activations: XLA for GPUs adds a bias within a
    product, unless it has to convert the bias."""


REFERENCE = Kernels()
"""Plain JAX."""
