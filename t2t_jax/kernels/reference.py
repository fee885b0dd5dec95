"""`Kernels`, the functions that a network computes with, and their reference implementation.

The reference functions are plain JAX: they run on all devices and support every JAX transform.
Presets for devices replace some of them (`kernels.choice`). All presets compute the same formulas,
with different rounding errors.
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
    SCALED_PRODUCT,
    Score,
    masked_softmax,
    repeat_heads,
    weighted_values,
)
from t2t_jax.functional.dropout import DropoutKey, dropout
from t2t_jax.kernels.cached_attention import cached_attention, fused_cached_attention
from t2t_jax.kernels.int8 import Int8Matrix, int8_product
from t2t_jax.kernels.products import MATMUL_NAME, Matrix, Transposed

Queries: TypeAlias = Float[Array, "b q h d_k"]
"""Queries of each head."""
Keys: TypeAlias = Float[Array, "b k groups d_k"]
"""Keys of each head, or of each group of heads that share keys and values."""
Values: TypeAlias = Float[Array, "b k groups d_v"]
"""Values of each head, or of each group of heads."""

DistanceBias: TypeAlias = Callable[[Int[Array, "q k"]], Float32[Array, "h q k"]]
"""Maps `masks.distances` to the bias that relative positions add to the scores of each head."""

Heads: TypeAlias = tuple[Float[Array, "b q h d_v"], Bool[Array, "b q 1"] | None]
"""The weighted values, and a mask that is True for each query that may attend to a key, or None.
If the mask is None, the other queries have values of zero. Otherwise their values are finite but
arbitrary. `Kernels.linear` takes the mask as `query_mask` and sets their outputs to zero, which is
cheaper than setting the values to zero."""

Losses: TypeAlias = tuple[Float[Array, "b t"], Float[Array, "b t"]]
"""The smoothed loss and the negative log-likelihood of every token, in nats."""

CacheLayout: TypeAlias = Literal["transposed", "in_order", "stacked"]
"""The memory layout of cached keys and values in decoding; see `modules.cache`."""


def attention(
    query: Queries,
    key: Keys,
    value: Values,
    mask: Bool[Array, "#b #h #q k"] | masks.SegmentMask | None = None,
    bias: DistanceBias | None = None,
    *,
    score: Score = SCALED_PRODUCT,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    softmax: Callable[[Array, Array | None], Array] = masked_softmax,
) -> Heads:
    """Compute attention (equation 1) of every head.

    Args:
      mask: True where a query may attend to a key; None allows all pairs. A `SegmentMask` lets fast
        presets use memory linear in the row length, for scaled dot products without a bias.
      bias: maps distances to a bias of the scores.
      dropout_rate: fraction of the attention weights set to zero.
      dropout_key: random key of dropout; None disables dropout.
      softmax: computes the weights from the scores and the dense mask.
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
    """Compute attention weights from keys of each head; `attention` documents the arguments."""
    scores = score(query, key)  # [b, h, q, k]
    if bias is not None:
        scores += bias(masks.distances(query.shape[1], key.shape[1]))
    return softmax(scores, mask.dense() if isinstance(mask, masks.SegmentMask) else mask)


def rows_product(
    x: Float[Array, "b t d_in"], rows: Float[Array, "d_out d_in"], dtype: DTypeLike
) -> Float[Array, "b t d_out"]:
    """Compute the dot product of every vector with every row of a matrix."""
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
    """Compute x W, or x W + b, at every position.

    Args:
      kernel: the matrix W: an array as in training, or a form of it for decoding.
      query_mask: False for the positions whose x W becomes zero; None keeps all positions.
      multiply: multiplies by an array.
      multiply_rows: multiplies by a `Transposed` matrix.
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
    """Compute the pre-softmax logits (section 3.4).

    Cast the embedding to the dtype of x, and sum in float32.
    """
    embedding = embedding.astype(x.dtype)
    return jnp.einsum("btd,vd->btv", x, embedding, preferred_element_type=jnp.float32)


def next_logits(
    x: Float[Array, "b k d_model"],
    embedding: Float[Array, "vocab d_model"] | Int8Matrix,
    *,
    multiply_rows: Callable[[Array, Array, DTypeLike], Array] = rows_product,
) -> Float32[Array, "b k vocab"]:
    """Compute the logits of each hypothesis in decoding, summed in float32."""
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
    """Compute the logits and the loss of section 5.4.

    Args:
      x: output of the decoder.
      embedding: matrix of the output projection.
      bias: bias of the logits.
      targets: ids of the correct tokens.
      epsilon: the label smoothing eps_ls.
      project: the output projection.
      project_in_training: the output projection if `is_training`; None means `project`.
      cross_entropy: computes the loss from logits, targets and epsilon.
      guess: estimates the maximum logits for `cross_entropy`, from `x`, the targets and the matrix.
    """
    kwargs = {} if guess is None else {"guess": jax.lax.stop_gradient(guess(x, targets, embedding))}
    scores = ((is_training and project_in_training) or project)(x, embedding)
    scores = scores if bias is None else scores + bias
    return cross_entropy(scores, targets, epsilon, **kwargs)


@dataclass(frozen=True)
class Kernels:
    """The functions that a network computes with; the defaults are plain JAX."""

    attention: Callable[..., Heads] = attention
    """Computes attention (equation 1, section 3.2.1); see `attention`."""
    cached_attention: Callable[..., Float[Array, "b q h d"]] = cached_attention
    """Computes attention of a few queries to cached keys and values in decoding."""
    fused_cached_attention: Callable[..., Float[Array, "b q h d"]] = fused_cached_attention
    """Computes the same for the cache layout "in_order"."""
    linear: Callable[..., Float[Array, "b t d_out"]] = linear
    """Computes the projections of attention (section 3.2.2) and of feed-forward networks (3.3)."""
    logits: Callable[[Float[Array, "b t d"], Float[Array, "v d"]], Float32[Array, "b t v"]] = logits
    """Computes the output projection (section 3.4), summed in float32."""
    next_logits: Callable[..., Float32[Array, "b k v"]] = next_logits
    """Computes the output projection of one position of each hypothesis."""
    losses: Callable[..., Losses] = losses
    """Computes the output projection and the loss of section 5.4."""
    layer_norm: Callable[..., Float[Array, "*t d"]] = normalization.layer_norm
    """Computes layer normalization in training. Evaluation and decoding use the plain function."""
    dropout: Callable[[Float[Array, "..."], float, DropoutKey | None], Float[Array, "..."]] = (
        dropout
    )
    """Applies dropout (section 5.4)."""
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]] = jax.nn.relu
    """Computes max(0, x) (section 3.3)."""
    unrolls: Callable[[Float[Array, "b t d"]], bool] = lambda x: False
    """Maps the input of a stack to whether training unrolls its layers. A loop over layers copies
    the activations that each layer saves for its derivative into stacked arrays."""
    finish: Callable[[PyTree], PyTree] = lambda state: state
    """Applied to the new optimizer state and parameters before anything reads them: the identity,
    or a barrier that makes the compiler finish the update first."""
    logsumexp: Callable[..., Float32[Array, "b k"]] = lambda x: jax.nn.logsumexp(x, axis=-1)
    """Computes the log of the sum of exponentials of each hypothesis's logits."""
    cache_layout: Callable[[int | None, bool], CacheLayout] = lambda _, is_fused: "transposed"
    """Maps the beam size, and whether fused attention supports the heads, to the layout of the
    cache. A beam size of None asks for the layout of the sources' keys and values."""
    cache_dtype: Callable[[DTypeLike], DTypeLike] = lambda dtype: dtype
    """Maps the dtype of activations to the dtype of cached keys and values."""
    greatest: Callable[..., tuple[Int[Array, "b k"], Float32[Array, "b k"]]] | None = None
    """Computes an argmax and `logsumexp` together. Its arguments are the logits, and the logits
    with -inf for tokens that decoding must not choose. None lets the search compute both
    separately."""
    rounds_biases: bool = False
    """Whether decoding stores biases in the dtype of activations. XLA for GPUs fuses a matmul and
    its bias only if it need not convert the bias."""


REFERENCE = Kernels()
"""Kernels in plain JAX, for any devices."""
