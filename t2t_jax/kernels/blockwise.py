"""Attention of long rows (section 3.2.1), in blocks and in memory linear in the length.

The scores of one block of queries and one block of keys exist at a time. A loop over the keys keeps
a softmax that is right for the keys seen so far: their greatest score, the sum of their
exponentials, and the values weighted with these (Rabe and Staats 2021, "Self-attention Does Not
Need O(n^2) Memory"). The derivative computes each block again from the greatest score and the sum
(Dao et al. 2022, "FlashAttention", algorithm 4). These stay apart: a great score plus the logarithm
of the sum would be rounded to the score.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, PyTree, Shaped, UInt32

from t2t_jax.functional.dropout import DropoutKey, hashes_at, mixed, threshold
from t2t_jax.functional.masks import SegmentMask, window_mask
from t2t_jax.kernels.products import summed_in_float32 as _product

_BLOCK = 256
"""Number of queries, and of keys, in a block: 256 KiB of scores for each row and head."""

# Blocks lie one after the other on the first axis.
_Vectors: TypeAlias = Float[Array, "n b h block d"]
_Segments: TypeAlias = Int[Array, "n b block"]
_Sums: TypeAlias = Float32[Array, "n b h block 1"]
_Residuals: TypeAlias = tuple["_Arrays", _Vectors, _Sums, _Sums]


class _Arrays(NamedTuple):
    """The arrays that attention is a function of, cut into blocks and padded to whole blocks."""

    query: _Vectors
    """The queries, divided by sqrt(d_k)."""
    key: _Vectors
    value: _Vectors
    query_segments: _Segments
    key_segments: _Segments
    """Segments of the keys; 0 in the padding, which nothing attends to."""
    bits: UInt32[Array, "2"]
    """64 random bits from the key of dropout."""
    first_row: UInt32[Array, ""]
    """Number of the first row in the global batch, on which dropout depends."""
    zero: Int[Array, ""]
    """The number 0 of the first block, as an array that `_tied` can make depend on the queries."""


class _Options(NamedTuple):
    causal: bool
    window: int | None
    dropout_rate: float
    num_queries: int
    """Number of queries, without padding, by which dropout numbers the places."""
    num_keys: int
    """Number of keys, without padding."""


def blockwise_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k h d_k"],
    value: Float[Array, "b k h d_v"],
    mask: SegmentMask,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Float[Array, "b q h d_v"]:
    """Compute `scaled_dot_product_attention` in memory that is linear in q and in k.

    The results differ by roundings, and dropout drops the same weights.

    Args:
      query: queries of each head, scaled.
      mask: which positions may attend to which.
      dropout_rate: share of the weights set to zero.
      dropout_key: key that decides which of them; None means no dropout.

    Returns:
      The weighted values; zeros for a query that may attend to nothing.
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


def _blocks(x: Shaped[Array, "b t *rest"]) -> Shaped[Array, "n b ..."]:
    """Cut vectors or segments into blocks, padded with zeros."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % _BLOCK), *[(0, 0)] * (x.ndim - 2)))
    blocks = x.reshape(len(x), x.shape[1] // _BLOCK, _BLOCK, *x.shape[2:]).swapaxes(0, 1)
    return blocks if x.ndim == 2 else blocks.swapaxes(2, 3)  # [n, b, h, block, d]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options: _Options, arrays: _Arrays) -> _Vectors:
    return _weighted_values(options, _tied(arrays))[0]


def _tied(arrays: _Arrays) -> _Arrays:
    """Return the arrays, each made to depend on all the others."""
    # Where layers are differentiated in a loop, JAX computes ahead of the loop what is the same in
    # all layers: the masks and places of all blocks, which together are the quadratic array that
    # must not exist. As the segments and the numbers of the blocks are made to depend on the
    # queries, masks and places are computed within the loop.
    return jax.lax.optimization_barrier(arrays)


def _weighted_values(options: _Options, arrays: _Arrays) -> tuple[_Vectors, tuple[_Sums, _Sums]]:
    """Compute the weighted values, and a query's greatest score and sum of exponentials."""

    def of_queries(i: Int[Array, ""]) -> tuple[Array, tuple[Array, Array]]:
        def add_keys(j: Int[Array, ""], so_far: tuple[Array, ...]) -> tuple[Array, ...]:
            greatest, total, weighted = so_far
            scores, visible = _scores(options, arrays, i, j)
            new = jnp.maximum(greatest, scores.max(-1, keepdims=True))
            weights = jnp.where(visible, jnp.exp(scores - new), 0)
            shrink = jnp.exp(greatest - new)
            total = total * shrink + weights.sum(-1, keepdims=True)
            kept = _dropped(options, arrays, i, j)(weights).astype(arrays.value.dtype)
            values = _product("bhqk,bhkd->bhqd", kept, arrays.value[j])
            return new, total, weighted * shrink + values

        rows = arrays.query.shape[1:-1]
        nothing = jnp.zeros((*rows, 1), jnp.float32)
        values = jnp.zeros((*rows, arrays.value.shape[-1]), jnp.float32)
        start = jnp.full_like(nothing, _FLOOR), nothing, values
        greatest, total, weighted = jax.lax.fori_loop(
            arrays.zero, _num_key_blocks(options, arrays, i), add_keys, start
        )
        total = jnp.where(total == 0, 1, total)  # for a query that may attend to nothing
        return (weighted / total).astype(arrays.value.dtype), (greatest, total)

    return jax.lax.map(of_queries, arrays.zero + jnp.arange(len(arrays.query)))


def _forward(options: _Options, arrays: _Arrays) -> tuple[_Vectors, _Residuals]:
    heads, sums = _weighted_values(options, _tied(arrays))
    return heads, (arrays, heads, *sums)


def _backward(options: _Options, residuals: _Residuals, cotangent: _Vectors) -> tuple[_Arrays]:
    arrays, heads, greatest, totals = residuals
    arrays = _tied(arrays)
    # The derivative of softmax subtracts the sum over the keys of weight times its cotangent.
    shared = jnp.einsum("nbhqd,nbhqd->nbhq", cotangent, heads, preferred_element_type=jnp.float32)

    def of_queries(so_far: tuple[Array, ...], i: Int[Array, ""]) -> tuple[PyTree, Array]:
        def add_keys(j: Int[Array, ""], so_far: tuple[Array, ...]) -> tuple[Array, ...]:
            query_bar, key_bar, value_bar = so_far
            scores, visible = _scores(options, arrays, i, j)
            weights = jnp.where(visible, jnp.exp(scores - greatest[i]) / totals[i], 0)
            drop = _dropped(options, arrays, i, j)
            weights_bar = drop(_product("bhqd,bhkd->bhqk", cotangent[i], arrays.value[j]))
            scores_bar = weights * (weights_bar - shared[i][..., None])
            scores_bar = scores_bar.astype(arrays.query.dtype)
            kept = drop(weights).astype(arrays.value.dtype)
            return (
                query_bar + _product("bhqk,bhkd->bhqd", scores_bar, arrays.key[j]),
                key_bar.at[j].add(_product("bhqk,bhqd->bhkd", scores_bar, arrays.query[i])),
                value_bar.at[j].add(_product("bhqk,bhqd->bhkd", kept, cotangent[i])),
            )

        start = jnp.zeros(arrays.query.shape[1:], jnp.float32), *so_far
        last = _num_key_blocks(options, arrays, i)
        query_bar, *so_far = jax.lax.fori_loop(arrays.zero, last, add_keys, start)
        return tuple(so_far), query_bar.astype(arrays.query.dtype)

    start = (jnp.zeros(arrays.key.shape, jnp.float32), jnp.zeros(arrays.value.shape, jnp.float32))
    (key_bar, value_bar), query_bar = jax.lax.scan(of_queries, start, jnp.arange(len(arrays.query)))
    key_bar, value_bar = key_bar.astype(arrays.key.dtype), value_bar.astype(arrays.value.dtype)
    return (_Arrays._make((query_bar, key_bar, value_bar, *[None] * 5)),)


_attend.defvjp(_forward, _backward)

# As in `masked_softmax`: exp() of it is exactly zero beside any real score, and never makes NaN.
_FLOOR = float(jnp.finfo(jnp.float32).min) / 2


def _scores(
    options: _Options, arrays: _Arrays, i: Int[Array, ""], j: Int[Array, ""]
) -> tuple[Float32[Array, "b h block block"], Bool[Array, "b 1 block block"]]:
    """Return the scores of a block of queries and one of keys, and which of the scores count."""
    scores = _product("bhqd,bhkd->bhqk", arrays.query[i], arrays.key[j])
    keys = arrays.key_segments[j][:, None, None, :]
    visible = (arrays.query_segments[i][:, None, :, None] == keys) & (keys != 0)
    apart = _numbers(i)[:, None] - _numbers(j)
    if options.causal:
        visible &= apart >= 0
    if options.window is not None:
        visible &= window_mask(apart, options.window)
    return jnp.where(visible, scores, _FLOOR), visible


def _numbers(block: Int[Array, ""]) -> Int[Array, " block"]:
    """Return the positions of a block in their row."""
    return block * _BLOCK + jnp.arange(_BLOCK)


def _num_key_blocks(options: _Options, arrays: _Arrays, i: Int[Array, ""]) -> Int[Array, ""] | int:
    """Return how many blocks of keys, from the first on, a block of queries attends to."""
    return i + 1 if options.causal else len(arrays.key)


def _dropped(
    options: _Options, arrays: _Arrays, i: Int[Array, ""], j: Int[Array, ""]
) -> Callable[[Array], Array]:
    """Return a function that drops those weights of a block that `dropout` of all would drop."""
    if options.dropout_rate == 0:
        return lambda weights: weights
    rows, heads = arrays.query.shape[1:3]
    head = jnp.arange(heads, dtype=jnp.uint32)[:, None, None]
    query, key = (_numbers(block).astype(jnp.uint32) for block in (i, j))
    place = (head * options.num_queries + query[:, None]) * options.num_keys + key
    words = mixed(*hashes_at(place[None], rows, arrays.bits, arrays.first_row))
    keep = words >= threshold(options.dropout_rate)
    return lambda weights: jnp.where(keep, weights / (1 - options.dropout_rate), 0)
