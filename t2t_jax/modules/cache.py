"""The cached keys and values of outputs and sources in decoding, in a layout for each device.

==========  =========================================  =========================================
transposed  `[b, groups, d_k, slots]` and              fast matmuls on CPUs, and works on any
            `[b, groups, slots, d_v]`, for each layer  device: see `cached_attention`
in order    `[b, slots, groups, d]` twice, for each    for cuDNN: attention of several
            layer                                      hypotheses, or to a source, is one kernel
stacked     `[b, layers, groups, slots, d_k + d_v]`    one hypothesis on GPUs: attention is one
                                                       kernel; writing, of all layers, another
==========  =========================================  =========================================
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Float32

from t2t_jax.config.attention import AttentionConfig
from t2t_jax.functional.attention import ScaledProducts, Score
from t2t_jax.kernels import cached_attention
from t2t_jax.kernels.reference import CacheLayout, Kernels

# Keys and values of the positions attended to. "_" binds no name, because the number of positions
# differs between uses.
KeysValues = tuple[Float[Array, "b _ key_groups d_k"], Float[Array, "b _ groups d_v"]]
# Keys and values in the transposed layout, which `cached_attention` takes.
CachedKeysValues = tuple[Float[Array, "b key_groups d_k _"], Float[Array, "b groups _ d_v"]]
CACHED_AXES = 3, 2
"""The axes of the positions in `CachedKeysValues`."""


class InOrder(NamedTuple):
    """Cached keys and values of one layer, `[b, slots, groups, d]`, the axis order of cuDNN."""

    key: Float[Array, "b _ _ d_k"]
    """Keys of each position."""
    value: Float[Array, "b _ _ d_v"]
    """Values of each position."""


Stacked: TypeAlias = Float[Array, "b layers _ _ _"]
"""Concatenated keys and values of all layers: a step adds one position to all layers."""


class OfStack(NamedTuple):
    """Keys and values of one layer of a `Stacked` cache.

    They are those of all positions, or only of a step's new positions.
    """

    key: Float[Array, "b _ _ d_k"]
    """Keys of each position."""
    value: Float[Array, "b _ _ d_v"]
    """Values of each position."""


LayerCache: TypeAlias = CachedKeysValues | InOrder | OfStack
"""The keys and values of one layer."""
TransformerCache: TypeAlias = tuple[CachedKeysValues | InOrder, ...] | Stacked
"""Self-attention keys and values of each decoder layer, for `capacity * k` slots."""
# Keys and values of a source. "_" binds no name, because cross-attention may have other heads.
SourceKeysValues = tuple[Float[Array, "b _ d_k _"], Float[Array, "b _ _ d_v"]] | InOrder


class SourceCache(NamedTuple):
    """Keys and values of the sources in a layer, with the mask and bias of a step."""

    keys_values: SourceKeysValues
    """Keys and values, one copy for all hypotheses of a source."""
    mask: Bool[Array, "b 1 1 s"]
    """True for the source positions that the step attends to."""
    bias: Float32[Array, "b h 1 s"] | None = None
    """Added to the scores of each batch row; None means no bias."""


def empty_cache(
    layout: CacheLayout,
    config: AttentionConfig,
    depth: int,
    rows: int,
    slots: int,
    dtype: DTypeLike,
) -> TransformerCache:
    """Return a cache of zeros.

    Args:
      slots: number of slots of each sentence, for all its hypotheses together.
    """
    groups, d_k, d_v = config.groups, config.d_k, config.d_v
    if layout == "stacked":
        return jnp.zeros((rows, depth, groups, slots, d_k + d_v), dtype)
    if layout == "in_order":
        return (InOrder(*(jnp.zeros((rows, slots, groups, d), dtype) for d in (d_k, d_v))),) * depth
    keys, values = (jnp.zeros(shape, dtype) for shape in config.cache_shapes(rows, slots))
    return ((keys, values),) * depth


def cache_axes(layout: CacheLayout, depth: int) -> Any:
    """Return the tree of a cache of `depth` layers, with each array's position axis as its leaf."""
    axes: dict[str, Any] = {"transposed": CACHED_AXES, "in_order": cast(Any, InOrder)(1, 1)}
    return 3 if layout == "stacked" else (axes[layout],) * depth


def layer_caches(cache: TransformerCache, d_k: int) -> Sequence[LayerCache]:
    """Return the keys and values of each layer of a cache."""
    if isinstance(cache, tuple):
        return cache
    layers = range(cache.shape[1])
    return [OfStack(cache[:, n, :, :, :d_k], cache[:, n, :, :, d_k:]) for n in layers]


def join_layer_caches(
    cache: TransformerCache, layers: Sequence[LayerCache], write_at: int | Array
) -> TransformerCache:
    """Join the results of all layers into the cache after a step.

    Args:
      layers: the cache or new entries that `update_cache_and_attend` returned for each layer.
      write_at: slot of the first of the new entries.
    """
    if isinstance(cache, tuple):
        return cast(Any, tuple(layers))
    # One write for all layers, [b, layers, groups, k, d_k + d_v], is one kernel on GPUs.
    entries = jnp.stack([jnp.concatenate(layer, axis=-1) for layer in layers], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(cache, entries.astype(cache.dtype), write_at, axis=3)


def update_cache_and_attend(
    query: Float[Array, "b k h d_k"],
    new: KeysValues,
    cache: LayerCache,
    write_at: int | Array,
    mask: Bool[Array, "b #h #k _"],
    prefix: cached_attention.CachedEntries | None,
    bias: Float32[Array, "h #k _"] | None,
    score: Score,
    kernels: Kernels,
) -> tuple[Float[Array, "b k h d_v"], LayerCache]:
    """Write `new` keys and values of k hypotheses to a layer's cache, and compute attention to it.

    Args:
      write_at: slot of the first new entry.
      mask: True where a query may attend to a slot.
      prefix: keys and values of the source that all hypotheses continue, for a transposed cache.
      bias: added to the scores; None means no bias. An `InOrder` cache requires None.
      score: the score function; an `InOrder` cache requires `ScaledProducts`.
      kernels: compute attention to the cache.

    Returns:
      The weighted values, and the cache with the new entries; for an `OfStack`, only the entries.
    """
    assert prefix is None or not isinstance(cache, OfStack | InOrder)
    if isinstance(cache, OfStack):
        # `join_layer_caches` writes the entries of all layers at once, after the last layer.
        entries = OfStack(*(x.swapaxes(1, 2) for x in new))  # [b, groups, k, d]
        heads = cached_attention.attention_with_new(
            query,
            cache,
            entries,
            write_at,
            mask,
            bias=bias,
            score=score,
            attend=kernels.cached_attention,
        )
        return heads, entries
    if isinstance(cache, InOrder):
        assert bias is None
        assert isinstance(score, ScaledProducts)
        new_cache = InOrder(*(_write(write_at, *x, axis=1) for x in zip(cache, new, strict=True)))
        heads = kernels.fused_cached_attention(query, *new_cache, mask, score.scale)
        return heads, new_cache
    writes = zip(cache, transpose_heads(*new), CACHED_AXES, strict=True)
    key, value = (_write(write_at, *write) for write in writes)
    outputs = cached_attention.CachedEntries(key, value, mask, bias)
    # One softmax over the source and the outputs, without a copy that concatenates the two.
    parts = [outputs] if prefix is None else [prefix, outputs]
    return kernels.cached_attention(query, parts, score), (key, value)


def transpose_heads(
    keys: Float[Array, "b k key_groups d_k"], values: Float[Array, "b k groups d_v"]
) -> CachedKeysValues:
    """Transpose keys and values to the transposed layout."""
    return keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)


def _write(
    at: int | Array, cache: Float[Array, "b _ _ _"], entry: Float[Array, "b _ _ _"], axis: int
) -> Float[Array, "b _ _ _"]:
    entry = entry.astype(cache.dtype)
    if cache.shape[0] == entry.shape[axis] == 1:
        # For one hypothesis of one sentence, XLA on CPUs would write the entry twice and copy the
        # cache four times. A `where` over the cache is faster.
        slots = jax.lax.broadcasted_iota(jnp.int32, cache.shape, axis)
        return jnp.where(slots == at, entry, cache)
    return jax.lax.dynamic_update_slice_in_dim(cache, entry, at, axis)
