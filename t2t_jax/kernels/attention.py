"""Fast forms of equation 1: fused on GPUs, in blocks for long rows, with a cache in decoding."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, Int

from t2t_jax.functional.attention import (
    Einsum,
    Score,
    additive_scores,
    attention_weights,
    masked_softmax,
    repeat_heads,
    scaled,
    summed_in_float32,
    weighted_values,
)
from t2t_jax.functional.dropout import DropoutKey, dropout
from t2t_jax.functional.masks import SegmentMask, distances
from t2t_jax.kernels import blockwise, choice, products, short_rows, splash, windowed

DistanceBias: TypeAlias = Callable[[Int[Array, "q k"]], Float32[Array, "h q k"]]
"""The function of `masks.distances` that relative positions add to the scores of each head."""

_LARGEST_FUSED = 1 << 28
"""Most entries of a mask for the fused kernel. The mask is the only quadratic array that it keeps;
so many entries take half a gigabyte in 16 bits."""


def attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    value: Float[Array, "b k groups d_v"],
    mask: Bool[Array, "b #h #q k"] | SegmentMask,
    **options: Any,
) -> Float[Array, "b q h d_v"]:
    """Compute equation 1 the fastest way; see `functional.attention.scaled_dot_product_attention`.

    Args:
      mask: True where a query may attend to a key; see `heads_and_rows`.
      **options: those of `heads_and_rows`.

    Returns:
      The weighted values, in the values' dtype; zeros for a query that may attend to nothing.
    """
    heads, rows = heads_and_rows(query, key, value, mask, **options)
    return heads if rows is None else jnp.where(rows[..., None], heads, 0)


def heads_and_rows(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    value: Float[Array, "b k groups d_v"],
    mask: Bool[Array, "b #h #q k"] | SegmentMask,
    *,
    bias: DistanceBias | None = None,
    score: Score | None = None,
    apart: Int[Array, "q k"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
    kernels: choice.Kernels = choice.XLA_KERNELS,
) -> tuple[Float[Array, "b q h d_v"], Bool[Array, "b q 1"] | None]:
    """Compute `attention` without the zeros of queries that may attend to nothing.

    A product with the heads can set its own results to zero within the kernel that reads them.

    Args:
      mask: True where a query may attend to a key. With a `SegmentMask`, weights are computed in
        windows or in blocks where no fused kernel takes the mask; a bias or a score function takes
        memory that is quadratic in the length of a row.
      bias: the function of distances to add to the scores; None means none.
      score: the score function, a pytree of what each head learns; None means products.
      apart: the distances of queries and keys; None means that both stand at the same places.
      dropout_rate: share of the weights set to zero (the paper: 0), unless the key is None.
      dropout_key: key that decides which of them.
      kernels: the implementations for the devices.

    Returns:
      The weighted values, in the values' dtype, and an array, True for the queries that may attend
      to something: values of other queries are arbitrary, or zeros if the array is None.
    """
    same: Any = partial(attention, bias=bias, score=score, dropout_rate=dropout_rate)
    if products.has_form(value, kernels.products):
        # XLA on CPUs would convert operands of such small products to float32 one by one.
        wide = (x.astype(jnp.float32) for x in (query, key, value))
        heads = same(*wide, mask, apart=apart, dropout_key=dropout_key)
        return heads.astype(value.dtype), None
    if isinstance(mask, SegmentMask) and mask.is_narrow:
        key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
        attend = partial(same, kernels=kernels)
        return windowed.windowed_attention(attend, query, key, value, mask, dropout_key), None
    is_plain, drops = bias is None and score is None, dropout_rate > 0 and dropout_key is not None
    fused = kernels.attention == "cudnn" and is_plain and not drops and is_fused(query, key, value)
    if fused and not (isinstance(mask, SegmentMask) and mask.size > _LARGEST_FUSED):
        arrays = query, key, value, _whole(mask)
        if kernels.short_rows == "at_once" and short_rows.fits(*arrays):
            return short_rows.short_attention(*arrays), None
        return fused_attention(*arrays)
    key, value = (repeat_heads(x, query.shape[2]) for x in (key, value))
    if isinstance(mask, SegmentMask) and is_plain:
        if kernels.long_rows == "splash" and not drops and splash.takes(query, value, mask):
            return splash.splash_attention(query, key, value, mask), None
        drop: Any = {"dropout_rate": dropout_rate, "dropout_key": dropout_key}
        return blockwise.blockwise_attention(query, key, value, mask, **drop), None
    places = partial(distances, query.shape[1], key.shape[1])
    added = None if bias is None else bias(places() if apart is None else apart)
    options: Any = {"bias": added, "score": score, "einsum": _einsum(kernels)}
    weights = attention_weights(query, key, _whole(mask), **options)
    return weighted_values(dropout(weights, dropout_rate, dropout_key), value), None


def _whole(mask: Bool[Array, "b #h #q k"] | SegmentMask) -> Bool[Array, "b #h #q k"]:
    return mask.whole() if isinstance(mask, SegmentMask) else mask


def _einsum(kernels: choice.Kernels) -> Einsum:
    """Return the function for the product of queries and keys that is fast on the devices.

    The gradient of the product is an operand of two products. `einsum_float32` rounds the gradient
    to their dtype: then it is written and read, which on TPUs takes as long as the products.
    """
    return summed_in_float32 if kernels.attention == "xla_fused" else products.einsum_float32


def additive(
    query: Float[Array, "b q h d_k"], key: Float[Array, "b k h d_k"], vector: Float[Array, "h d_k"]
) -> Float32[Array, "b h q k"]:
    """Compute `functional.attention.additive_scores` with the product `einsum_float32`."""
    return additive_scores(query, key, vector, einsum=products.einsum_float32)


def is_fused(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    value: Float[Array, "b k groups d_v"],
) -> bool:
    """Return whether cuDNN's fused attention takes arrays of these shapes and dtypes.

    cuDNN needs 16-bit arrays, heads of equal widths that are multiples of 8 up to 128, and even
    lengths, for the derivatives.
    """
    if not query.dtype == key.dtype == value.dtype:
        return False
    are_even = query.shape[1] % 2 == key.shape[1] % 2 == 0
    return are_even and has_fused_widths(query.shape[-1], value.shape[-1], query.dtype)


def has_fused_widths(d_k: int, d_v: int, dtype: DTypeLike) -> bool:
    """Return whether cuDNN's fused attention takes heads of these widths; see `is_fused`."""
    is_narrow = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return is_narrow and d_k == d_v <= 128 and d_k % 8 == 0


def fused_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k groups d"],
    value: Float[Array, "b k groups d"],
    mask: Bool[Array, "b #h #q k"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> tuple[Float[Array, "b q h d"], Bool[Array, "b q 1"] | None]:
    """Compute equation 1 by `jax.nn.dot_product_attention`, whose fused kernel keeps no weights.

    Args:
      mask: True where a query may attend to a key, for all heads alike or for each.
      implementation: "cudnn" takes arrays for which `is_fused` is true; "xla" computes the same of
        any arrays, on any device.

    Returns:
      The weighted values, and the mask of queries; see `heads_and_rows`.
    """
    attends = mask.any(-1, keepdims=True)
    lengths: dict[str, Any] = {}
    if key.shape[1] % 128 == 64:
        # On Hopper GPUs, the derivative by the queries is not a number where a query has scores
        # below -88 alone, hidden ones included: cuDNN (up to 9.30) works on 128 keys at a time, and
        # takes the 64 after the last one for scores of 0 (NVIDIA/cudnn-frontend, 628). It does not
        # where it is given lengths. No query is left without a key, whatever its values become.
        mask |= ~attends
        sides = {"query_seq_lengths": query, "key_value_seq_lengths": key}
        lengths = {name: jnp.full(x.shape[0], x.shape[1]) for name, x in sides.items()}
    heads = jax.nn.dot_product_attention(
        query, key, value, mask=mask, implementation=implementation, **lengths
    )
    # That function gives a query that may attend to nothing the mean of all values.
    attends = attends[..., 0].swapaxes(1, 2)
    if attends.shape[2] == 1:
        return heads, jnp.broadcast_to(attends, (*heads.shape[:2], 1))
    return jnp.where(attends[..., None], heads, 0), None


def cached_attention(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b groups d_k k"],
    value: Float[Array, "b groups k d_v"],
    mask: Bool[Array, "b #h #q k"],
    *,
    bias: Float32[Array, "h #q k"] | None = None,
    score: Score | None = None,
) -> Float[Array, "b q h d_v"]:
    """Compute equation 1 for a few queries and many keys, as in decoding.

    The arrays are in the order in which the products run through them: positions are the last axis
    of the keys and the last but one of the values. With `[b, k, h, d]` they would be transposed
    first, again at every step, which on CPUs takes ten times as long as the products.

    Args:
      key: keys of each head, or of each group of heads that share them, in the dtype to compute in;
        see `cache_dtype`.
      mask: True where a query may attend to a key, for all heads alike if they share keys.
      bias: numbers added to the scores; None means none.
      score: the score function, a pytree of what each head learns (`jax.tree_util.Partial`); None
        means that scores are products.

    Returns:
      The weighted values, in the queries' dtype; zeros for a query that may attend to nothing.
    """
    groups = key.shape[1]
    if groups < query.shape[2]:  # the first heads of all groups, the second heads, and so on
        split = partial(_by_group, groups=groups)
        heads = jax.vmap(
            lambda q, b, s: cached_attention(q, key, value, mask, bias=b, score=s),
            in_axes=(3, 1, 1),
            out_axes=3,
        )(split(query, 2), split(bias, 0), jax.tree.map(lambda x: split(x, 0), score))
        return heads.reshape(*query.shape[:3], value.shape[3])
    scores = _cached_scores(query, key, bias, score)
    weights = masked_softmax(scores, mask).astype(value.dtype)
    heads = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
    return heads.swapaxes(1, 2).astype(query.dtype)


def fused_cached_attention(
    query: Float[Array, "b q h d"],
    key: Float[Array, "b k groups d"],
    value: Float[Array, "b k groups d"],
    mask: Bool[Array, "b 1 #q k"],
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "b q h d"]:
    """Compute equation 1 for a few queries and many keys, in one kernel.

    A query that may attend to nothing gets the mean of all values, which the caller has to keep at
    zero: setting the result to zero here would take another kernel.

    Args:
      key: keys of each head or group of heads, as `has_fused_widths` allows them.
      mask: True where a query may attend to a key.
      implementation: see `fused_attention`.
    """
    mask = jnp.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation=implementation)


def attention_with_new(
    query: Float[Array, "b 1 h d_k"],
    kept: tuple[Float[Array, "b groups k d_k"], Float[Array, "b groups k d_v"]],
    new: tuple[Float[Array, "b groups 1 d_k"], Float[Array, "b groups 1 d_v"]],
    at: int | Array,
    mask: Bool[Array, "b #h 1 k"],
    *,
    bias: Float32[Array, "h 1 k"] | None = None,
    score: Score | None = None,
) -> Float[Array, "b 1 h d_v"]:
    """Compute `cached_attention` of one query, with one position that is still to be written.

    XLA for GPUs makes one kernel of the computation, which takes that position from `new`.

    Args:
      kept: keys and values of the kept positions.
      new: keys and values of the position that is to be written.
      at: the slot of that position.
      mask: True where the query may attend to a key.
      bias: see `cached_attention`.
      score: see `cached_attention`.
    """
    places = jax.lax.broadcasted_iota(jnp.int32, (1, 1, kept[0].shape[2], 1), 2)
    key, value = (
        jnp.where(places == at, own.astype(old.dtype), old)
        for own, old in zip(new, kept, strict=True)
    )
    return cached_attention(query, key.swapaxes(2, 3), value, mask, bias=bias, score=score)


class Kept(NamedTuple):
    """Keys and values that decoding keeps, in the order of `cached_attention`."""

    key: Float[Array, "b groups d_k _"]
    """Keys of each head, or of each group of heads that share them."""
    value: Float[Array, "b groups _ d_v"]
    """Values of each head or group."""
    mask: Bool[Array, "b #h #q _"]
    """True where a query may attend to a key."""
    bias: Float32[Array, "*b h #q _"] | None = None
    """Numbers added to the scores, alike for all rows or for each; None means none."""


def attention_to_both(
    query: Float[Array, "b q h d_k"], first: Kept, second: Kept, *, score: Score | None = None
) -> Float[Array, "b q h d_v"]:
    """Compute `cached_attention` to two sets of keys and values, without copying them into one.

    Args:
      second: keys and values to which each step adds its own.
      score: the score function, a pytree of what each head learns (`jax.tree_util.Partial`); None
        means that scores are products.
    """
    groups, num_heads = first.key.shape[1], query.shape[2]
    parts = first, second
    if groups < num_heads:
        biases = [_by_group(part.bias, -3, groups) for part in parts]
        axes = [None if bias is None else bias.ndim - 3 for bias in biases]

        def one_of_each_group(q: Array, s: Score | None, one: Any, other: Any) -> Array:
            biased = first._replace(bias=one), second._replace(bias=other)
            return attention_to_both(q, *biased, score=s)

        learned = jax.tree.map(lambda x: _by_group(x, 0, groups), score)
        split: Any = _by_group(query, 2, groups), learned
        heads = jax.vmap(one_of_each_group, in_axes=(3, 1, *axes), out_axes=3)(*split, *biases)
        return heads.reshape(*query.shape[:3], first.value.shape[3])
    scores = [_cached_scores(query, part.key, part.bias, score) for part in parts]
    shown = [jnp.broadcast_to(part.mask, s.shape) for part, s in zip(parts, scores, strict=True)]
    weights = masked_softmax(jnp.concatenate(scores, -1), jnp.concatenate(shown, -1))
    each = jnp.split(weights.astype(first.value.dtype), [first.key.shape[3]], axis=-1)
    of_first, of_second = (
        jnp.einsum("bhqk,bhkd->bhqd", own, part.value)
        for own, part in zip(each, parts, strict=True)
    )
    return (of_first + of_second).swapaxes(1, 2).astype(query.dtype)


def _cached_scores(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b h d_k k"],
    bias: Float32[Array, "*b h #q k"] | None,
    score: Score | None,
) -> Float32[Array, "b h q k"]:
    """Compute the scores of queries and of keys in the order of `cached_attention`."""
    kept = query.astype(key.dtype)
    if score is None:
        scores = products.einsum_float32("bqhd,bhdk->bhqk", scaled(kept), key)
    else:
        scores = score(kept, key.transpose(0, 3, 1, 2))
    return scores if bias is None else scores + bias


def _by_group(x: Float[Array, "..."] | None, axis: int, groups: int) -> Float[Array, "..."] | None:
    """Cut the axis of heads in two: groups, and the heads of each."""
    if x is None:
        return None
    axis %= x.ndim
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])


def cache_dtype(compute_dtype: DTypeLike, form: choice.ProductForm) -> DTypeLike:
    """Return the dtype in which decoding keeps the keys and values for `cached_attention`.

    It is float32 in place of bfloat16 on CPUs: with a few queries, the product is no faster in
    bfloat16, and XLA writes to an array in bfloat16 by converting all of it to float32 and back.

    Args:
      form: the form of products in bfloat16, from `kernels_of`.
    """
    return jnp.float32 if form == "float32_results" else compute_dtype
