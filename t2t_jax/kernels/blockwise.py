"""Attention of long rows (section 3.2.1), block by block, in memory linear in the row length.

A loop over key blocks updates the maximum score, the sum of exponentials and the weighted values of
each query (Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory"). The derivative
computes the scores of each block again (Dao et al. 2022, "FlashAttention", algorithm 4).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, PyTree, Shaped, UInt32

from t2t_jax.functional.dropout import DropoutKey, combine_hashes, hashes_at, threshold
from t2t_jax.functional.masks import SegmentMask, window_mask
from t2t_jax.kernels.products import summed_in_float32 as _einsum

_BLOCK = 256
"""Queries, and keys, in a block. A block has 256 KiB of scores for each row and head."""

# n counts the blocks of a row.
_Vectors: TypeAlias = Float[Array, "n b h block d"]
_Segments: TypeAlias = Int[Array, "n b block"]
_Sums: TypeAlias = Float32[Array, "n b h block 1"]
# The residuals hold the maximum and the sum of each query separately: a large maximum plus the log
# of the sum would be rounded to the maximum in float32.
_Residuals: TypeAlias = tuple["_Arrays", _Vectors, _Sums, _Sums]


class _Arrays(NamedTuple):
    """Inputs of attention, cut into blocks; the last block is padded with zeros."""

    query: _Vectors
    """Queries, divided by sqrt(d_k)."""
    key: _Vectors
    value: _Vectors
    query_segments: _Segments
    key_segments: _Segments
    """Segment ids of the keys; 0 is padding, which no query attends to."""
    bits: UInt32[Array, "2"]
    """64 random bits from the dropout key."""
    first_row: UInt32[Array, ""]
    """Index of the first row in the global batch, on which dropout depends."""
    zero: Int[Array, ""]
    """The index 0 of the first block, as an array that `_tied` can make depend on the queries."""


class _Options(NamedTuple):
    causal: bool
    window: int | None
    dropout_rate: float
    num_queries: int
    """Number of queries without padding. Dropout computes the index of each weight from it."""
    num_keys: int
    """Number of keys without padding."""


def blockwise_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: SegmentMask,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Float[Array, "b q h d_v"]:
    """Compute scaled dot-product attention in memory that is linear in q and in k.

    Results differ from `reference.attention` by rounding errors; dropout drops the same weights.

    Args:
      query: queries of each head, already scaled.
      dropout_rate: fraction of the attention weights set to zero.
      dropout_key: random key of dropout; None disables dropout.

    Returns:
      The weighted values; zeros for a query that may attend to no key.
    """
    bits, first_row = jnp.zeros(2, jnp.uint32), jnp.uint32(0)
    if dropout_key is None:
        dropout_rate = 0.0
    else:
        bits = jax.random.bits(dropout_key.key, (2,))
        first_row = jnp.asarray(dropout_key.first_row, jnp.uint32)
    vectors = (_blocks(query), _blocks(key), _blocks(value))
    segments = (_blocks(mask.query_segments), _blocks(mask.key_segments))
    arrays = _Arrays(*vectors, *segments, bits, first_row, jnp.int32(0))
    lengths = query.shape[1], key.shape[1]
    options = _Options(mask.causal, mask.window, dropout_rate, *lengths)
    heads = _attend(options, arrays).transpose(1, 0, 3, 2, 4)  # [b, n, block, h, d]
    batch, blocks, block = heads.shape[:3]
    return heads.reshape(batch, blocks * block, *heads.shape[3:])[:, : query.shape[1]]


def _blocks(x: Shaped[Array, "b t *inner"]) -> Shaped[Array, "n b ..."]:
    """Cut vectors or segment ids into blocks along t, and pad the last block with zeros."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % _BLOCK), *[(0, 0)] * (x.ndim - 2)))
    blocks = x.reshape(len(x), x.shape[1] // _BLOCK, _BLOCK, *x.shape[2:]).swapaxes(0, 1)
    return blocks if x.ndim == 2 else blocks.swapaxes(2, 3)  # [n, b, h, block, d]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: _Options, arrays: _Arrays) -> _Vectors:
    return _weighted_values(options, _tied(arrays))[0]


def _tied(arrays: _Arrays) -> _Arrays:
    """Return the arrays behind an XLA barrier, so that each result depends on all arrays."""
    # If JAX differentiates layers in a loop, it moves values that all layers share out of the loop.
    # Here these are the masks and dropout indices of all blocks, a quadratic array. The barrier
    # makes them depend on the queries, so the loop computes them block by block.
    return jax.lax.optimization_barrier(arrays)


def _weighted_values(options: _Options, arrays: _Arrays) -> tuple[_Vectors, tuple[_Sums, _Sums]]:
    """Compute the weighted values, and the maximum score and sum of exponentials of each query."""

    def attend(i: Int[Array, ""]) -> tuple[Array, tuple[Array, Array]]:
        def add_keys(j: Int[Array, ""], sums: tuple[Array, ...]) -> tuple[Array, ...]:
            maximum, total, heads = sums
            scores, mask = _scores(options, arrays, i, j)
            new_maximum = jnp.maximum(maximum, scores.max(-1, keepdims=True))
            weights = jnp.where(mask, jnp.exp(scores - new_maximum), 0)
            factor = jnp.exp(maximum - new_maximum)
            total = total * factor + weights.sum(-1, keepdims=True)
            weights = _dropout_of(options, arrays, i, j)(weights).astype(arrays.value.dtype)
            block_heads = _einsum("bhqk,bhkd->bhqd", weights, arrays.value[j])
            return new_maximum, total, heads * factor + block_heads

        shape = arrays.query.shape[1:-1]
        zeros = jnp.zeros((*shape, 1), jnp.float32)
        heads = jnp.zeros((*shape, arrays.value.shape[-1]), jnp.float32)
        initial = jnp.full_like(zeros, _FLOOR), zeros, heads
        maximum, total, heads = jax.lax.fori_loop(
            arrays.zero, _num_key_blocks(options, arrays, i), add_keys, initial
        )
        total = jnp.where(total == 0, 1, total)  # for a query that may attend to no key
        return (heads / total).astype(arrays.value.dtype), (maximum, total)

    return jax.lax.map(attend, arrays.zero + jnp.arange(len(arrays.query)))


def _forward(options: _Options, arrays: _Arrays) -> tuple[_Vectors, _Residuals]:
    heads, sums = _weighted_values(options, _tied(arrays))
    return heads, (arrays, heads, *sums)


def _backward(options: _Options, residuals: _Residuals, cotangent: _Vectors) -> tuple[_Arrays]:
    arrays, heads, maxima, totals = residuals
    arrays = _tied(arrays)
    # The derivative of softmax subtracts the mean of the cotangents, weighted by the attention
    # weights of each query.
    means = jnp.einsum("nbhqd,nbhqd->nbhq", cotangent, heads, preferred_element_type=jnp.float32)

    def add_block(sums: tuple[Array, ...], i: Int[Array, ""]) -> tuple[PyTree, Array]:
        def add_keys(j: Int[Array, ""], gradients: tuple[Array, ...]) -> tuple[Array, ...]:
            query_bar, key_bar, value_bar = gradients
            scores, mask = _scores(options, arrays, i, j)
            weights = jnp.where(mask, jnp.exp(scores - maxima[i]) / totals[i], 0)
            drop = _dropout_of(options, arrays, i, j)
            weights_bar = drop(_einsum("bhqd,bhkd->bhqk", cotangent[i], arrays.value[j]))
            scores_bar = weights * (weights_bar - means[i][..., None])
            scores_bar = scores_bar.astype(arrays.query.dtype)
            dropped_weights = drop(weights).astype(arrays.value.dtype)
            return (
                query_bar + _einsum("bhqk,bhkd->bhqd", scores_bar, arrays.key[j]),
                key_bar.at[j].add(_einsum("bhqk,bhqd->bhkd", scores_bar, arrays.query[i])),
                value_bar.at[j].add(_einsum("bhqk,bhqd->bhkd", dropped_weights, cotangent[i])),
            )

        start = jnp.zeros(arrays.query.shape[1:], jnp.float32), *sums
        num_blocks = _num_key_blocks(options, arrays, i)
        query_bar, *sums = jax.lax.fori_loop(arrays.zero, num_blocks, add_keys, start)
        return tuple(sums), query_bar.astype(arrays.query.dtype)

    start = (jnp.zeros(arrays.key.shape, jnp.float32), jnp.zeros(arrays.value.shape, jnp.float32))
    (key_bar, value_bar), query_bar = jax.lax.scan(add_block, start, jnp.arange(len(arrays.query)))
    key_bar, value_bar = key_bar.astype(arrays.key.dtype), value_bar.astype(arrays.value.dtype)
    return (_Arrays._make((query_bar, key_bar, value_bar, *[None] * 5)),)


_attend.defvjp(_forward, _backward)

# As in `masked_softmax`: exp(_FLOOR - score) is exactly 0 for any real score, and never NaN.
_FLOOR = float(jnp.finfo(jnp.float32).min) / 2


def _scores(
    options: _Options, arrays: _Arrays, i: Int[Array, ""], j: Int[Array, ""]
) -> tuple[Float32[Array, "b h block block"], Bool[Array, "b 1 block block"]]:
    """Compute the scores of query block i and key block j, and the mask of the allowed pairs."""
    scores = _einsum("bhqd,bhkd->bhqk", arrays.query[i], arrays.key[j])
    key_ids = arrays.key_segments[j][:, None, None, :]
    mask = (arrays.query_segments[i][:, None, :, None] == key_ids) & (key_ids != 0)
    distances = _positions(i)[:, None] - _positions(j)
    if options.causal:
        mask &= distances >= 0
    if options.window is not None:
        mask &= window_mask(distances, options.window)
    return jnp.where(mask, scores, _FLOOR), mask


def _positions(index: Int[Array, ""]) -> Int[Array, " block"]:
    return index * _BLOCK + jnp.arange(_BLOCK)


def _num_key_blocks(options: _Options, arrays: _Arrays, i: Int[Array, ""]) -> Int[Array, ""] | int:
    """Return the number of key blocks, from the first one, that query block i attends to."""
    return i + 1 if options.causal else len(arrays.key)


def _dropout_of(
    options: _Options, arrays: _Arrays, i: Int[Array, ""], j: Int[Array, ""]
) -> Callable[[Array], Array]:
    """Return a function that drops weights of query block i and key block j as `dropout` does."""
    if options.dropout_rate == 0:
        return lambda weights: weights
    rows, num_heads = arrays.query.shape[1:3]
    head = jnp.arange(num_heads, dtype=jnp.uint32)[:, None, None]
    query, key = (_positions(block).astype(jnp.uint32) for block in (i, j))
    # Indices of the weights [h, q, k] of a row without padding, as `dropout` counts them.
    indices = (head * options.num_queries + query[:, None]) * options.num_keys + key
    random_words = combine_hashes(*hashes_at(indices[None], rows, arrays.bits, arrays.first_row))
    is_kept = random_words >= threshold(options.dropout_rate)
    return lambda weights: jnp.where(is_kept, weights / (1 - options.dropout_rate), 0)
