"""Multi-head attention (section 3.2.2), over whole sentences or one position at a time.

Read `functional.attention` (equation 1) and `functional.masks` before this file. The next file is
`modules.feed_forward`, the other sub-layer of the paper's encoder.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, Int, Shaped

from t2t_jax.config import AttentionConfig, NormConfig, tables
from t2t_jax.errors import UserError
from t2t_jax.functional import attention, masks, normalization
from t2t_jax.functional.attention import ScaledProducts, Score
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.position import rotate
from t2t_jax.kernels.attention import has_fused_widths
from t2t_jax.kernels.cached_attention import CachedEntries
from t2t_jax.kernels.reference import (
    REFERENCE,
    CacheLayout,
    DistanceBias,
    Kernels,
    attention_weights,
)
from t2t_jax.modules import parameters
from t2t_jax.modules.cache import (
    CachedKeysValues,
    InOrder,
    KeysValues,
    LayerCache,
    SourceCache,
    SourceKeysValues,
    transpose_heads,
    update_cache_and_attend,
)
from t2t_jax.modules.named_functions import call, score_function
from t2t_jax.parallel.axes import constrain

Mask: TypeAlias = Bool[Array, "#b #h #q k"] | masks.SegmentMask
"""An attention mask: True where a query may attend to a key."""

WEIGHTS = "attention_weights"
"""The Flax collection of attention weights. Modules compute them only if it is mutable."""


@dataclass(frozen=True, eq=False)  # `==` on arrays is elementwise and has no truth value
class Context:
    """The arguments that all layers of a stack share, except `layer`.

    By default, a layer treats each batch row as one sentence, and dropout is off.

    Attributes:
      positions: position of each token in its sentence, from 0; None means its index in the row.
      length: a number greater than every position, if an encoding is added to the embeddings.
      mask: the mask of self-attention. None means no mask, except in a `Layer`, which then applies
        the mask of its stack, such as a decoder's causal mask.
      rotary: frequencies by which self-attention rotates queries and keys; None means no rotation.
      bias: the function that maps distances to a bias of self-attention scores; None means no bias.
      cache_distances: distances between queries and cached keys, for `bias`; None if the queries
        and keys have the same positions.
      encoded: the encoder's output, for cross-attention.
      encoded_mask: the mask of cross-attention; None means no mask.
      deterministic: whether dropout is off. If False, pass `rngs={"dropout": key}`.
      first_row: index of the first batch row in the global batch, so that dropout does not depend
        on how devices split the batch.
      layer: index of the layer in its stack, from 0.
      kernels: the functions that compute attention and matmuls on the devices.
    """

    positions: Int[Array, "b t"] | None = None
    length: int = 0
    mask: Bool[Array, "#b #h #t k"] | masks.SegmentMask | None = None
    rotary: Float32[Array, " pairs"] | None = None
    bias: DistanceBias | None = None
    cache_distances: Int[Array, "q k"] | None = None
    encoded: Float[Array, "b s d_model"] | None = None
    encoded_mask: Bool[Array, "#b #h #t s"] | masks.SegmentMask | None = None
    deterministic: bool = True
    first_row: Int[Array, ""] | int = 0
    layer: Int[Array, ""] | int = 0
    kernels: Kernels = REFERENCE

    def __post_init__(self) -> None:
        """Raise `UserError` if a mask has a wrong dtype or rank."""
        for name in ("mask", "encoded_mask"):
            mask = getattr(self, name)
            if mask is None or isinstance(mask, masks.SegmentMask):
                continue
            if mask.dtype != bool or mask.ndim != 4:
                raise UserError(
                    f"{name} is {mask.dtype}{list(mask.shape)}; give a bool array [batch or 1, "
                    "heads or 1, queries, keys], True where a query may attend to a key"
                )

    def dropout_key(self, module: nn.Module) -> DropoutKey | None:
        """Make a key for one use of dropout in a module, or None if dropout is off."""
        if self.deterministic:
            return None
        return DropoutKey(module.make_rng("dropout"), self.first_row)


DEFAULT_CONTEXT = Context()
"""The default context of a layer."""


class Projection(nn.Module):
    """A linear projection, x W or x W + b, in the dtype of x.

    Attributes:
      width: number of outputs.
      axes: logical axes of W; see `parallel.axes`.
      has_bias: whether to add b.
      gain: factor on the initial values of W; see `parameters.matrix`.
      grows: whether both sizes of W grow with the width of the network; see `MatrixBox`.
      num_heads: number of heads to split the output into; None means no split.
    """

    width: int
    axes: tuple[str | None, str]
    has_bias: bool = False
    gain: float = 1.0
    grows: bool = True
    num_heads: int | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d_in"],
        context: Context,
        query_mask: Bool[Array, "b t 1"] | None = None,
    ) -> Float[Array, "b t ..."]:
        """Project every position, or only positions with a True `query_mask`; see `Kernels.linear`.

        Returns:
          Vectors `[b, t, width]`, or heads `[b, t, num_heads, width / num_heads]`.
        """
        shape = x.shape[-1], self.width
        kernel = parameters.matrix(
            self, "kernel", shape, self.axes, x.dtype, gain=self.gain, grows=self.grows
        )
        bias = None
        if self.has_bias:
            axis = "heads" if self.axes[1] == "heads" else "vector"
            bias = parameters.bias(self, "bias", axis, self.width, x.dtype)
        output = context.kernels.linear(x, kernel, bias, query_mask)
        if self.num_heads is None:
            return output
        heads = attention.split_heads(output, self.num_heads)  # [b, t, heads, d_head]
        # Devices may split the heads, and attention needs no communication between heads.
        return constrain(heads, "batch", "length", "heads", None)


class Norm(nn.Module):
    """A normalization layer with its learned parameters, such as a scale and a bias.

    Attributes:
      config: kind of normalization, and epsilon.
    """

    config: NormConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "*t width"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "*t width"]:
        """Normalize the last axis of `x`; in training, use the kernel of `context` for "layer"."""
        entry, epsilon = tables.NORMALIZATIONS[self.config.kind], self.config.epsilon
        params = parameters.function_parameters(self, entry, x.shape[-1])
        if self.config.kind == "layer":
            # The kernel has a custom derivative, which helps only if there is a backward pass.
            norm_kernel = context.kernels.layer_norm
            normalize = normalization.layer_norm if context.deterministic else norm_kernel
            return normalize(x, params["scale"], params["bias"], epsilon)
        return call(entry, x.shape, x.dtype, x, epsilon=epsilon, **params)


class Scores(nn.Module):
    """The learned parts of attention scores: norms of queries and keys, and the score function."""

    config: AttentionConfig

    def setup(self) -> None:
        """Create the norms and the score function."""
        config = self.config
        if config.query_key_norm:
            self.query_norm = Norm(config.query_key_norm)
            self.key_norm = Norm(config.query_key_norm)
        if entry := config.scores:
            params = parameters.function_parameters(self, entry, config.d_k, config.num_maps)
            self.function = score_function(entry, params)


class Combination(nn.Module):
    """The gates and further parameters of an attention kind, and its `combine`."""

    config: AttentionConfig

    @nn.compact
    def __call__(
        self, heads: Float[Array, "b q maps d_v"], x: Float[Array, "b q d_model"], context: Context
    ) -> Float[Array, "b q h d_v"]:
        """Combine the weighted values of all maps, by gates of the queries' input `x`."""
        config, entry = self.config, self.config.combination
        assert entry is not None
        project = partial(Projection, axes=("embed", "heads"), has_bias=config.has_bias)
        gates = {
            name: project(width, num_heads=config.num_heads, name=name)(x, context)
            for name, width in config.gates.items()
        }
        params = parameters.function_parameters(self, entry, config)
        heads = by_key(heads, config, reverse=True)
        shape = *heads.shape[:2], config.num_heads, config.d_v
        return call(entry, shape, heads.dtype, heads, gates, params, context.layer)


class MultiHeadAttention(nn.Module):
    """Multi-head attention, Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Here head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V). One kernel holds all heads: W^Q is
    `[d_model, num_heads * d_k]`, W^O is `[num_heads * d_v, d_model]`. W^K and W^V hold one head
    for each group of query heads (grouped-query attention).

    Training calls the module. Decoding calls `prefill` or `prefill_encoded` once per sentence, and
    `step` or `step_to_encoded` once per position.

    Attributes:
      config: sizes and options of the attention.
      gain: factor on the initial values of W^V and W^O; see `parameters.matrix`.
    """

    config: AttentionConfig
    gain: float = 1.0

    def setup(self) -> None:
        """Create the projections and the score function."""
        config = self.config
        projection = partial(Projection, axes=("embed", "heads"), has_bias=config.has_bias)
        widths, num_groups = config.projections, config.groups
        self.query = projection(widths["query"], num_heads=config.num_maps)
        self.key = projection(widths["key"], num_heads=config.key_groups)
        self.value = projection(widths["value"], num_heads=num_groups, gain=self.gain)
        self.output = Projection(config.d_model, ("heads", "embed"), config.has_bias, self.gain)
        # Decoding joins the three matrices above into one; see `join_projections`. Flax creates
        # parameters on the first call, so a training run never has this matrix.
        self.query_key_value = projection(sum(widths.values()), num_heads=num_groups)
        self.score: Score = ScaledProducts(config.scale)
        if config.scores or config.query_key_norm:
            self.scores = Scores(config)
        if config.scores:
            self.score = self.scores.function
        if config.combination:
            self.combination = Combination(config)

    def __call__(
        self,
        x: Float[Array, "b q d_model"],
        context: Context = DEFAULT_CONTEXT,
        encoded: Float[Array, "b k d_model"] | None = None,
    ) -> Float[Array, "b q d_model"]:
        """Compute self-attention, or cross-attention to the output of an encoder.

        Args:
          x: the input of the queries.
          context: has `mask` for self-attention, and `encoded_mask` for cross-attention.
          encoded: the input of the keys and values; None is `x`, for self-attention.
        """
        query = self._queries(x, context)  # [b, q, maps, d_k]
        # [b, k, key groups, d_k] and [b, k, groups, d_v]
        key, value = self._keys_values(x if encoded is None else encoded, context)
        # Positions of the source and of the target are not comparable, so cross-attention gets
        # neither a rotation nor a bias by distance.
        mask, bias = context.encoded_mask, None
        if encoded is None:
            mask, bias = context.mask, context.bias
            if context.rotary is not None:
                query, key = rotate_heads(query, key, context)
        # Fused kernels never materialize the weights, so inspection computes them a second time.
        if self.is_mutable_collection(WEIGHTS) and not self.is_initializing():
            head_keys = attention.repeat_heads(key, self.config.num_maps)
            # [batch, maps, queries, keys]
            weights = attention_weights(query, head_keys, mask, bias, self.score)
            self.sow(WEIGHTS, "weights", by_key(weights, self.config, 1, reverse=True))
        rate, dropout_key = self.config.dropout_rate, context.dropout_key(self)
        attend = partial(context.kernels.attention, score=self.score, dropout_key=dropout_key)
        # `query_mask` is True for queries that may attend to a key. The output projection sets the
        # other rows to zero, which is cheaper than a separate pass over the heads.
        if self.config.key_groups > self.config.groups:  # kernels need a value for each key
            value = attention.repeat_heads(value, self.config.key_groups)
        heads, query_mask = attend(query, key, value, mask, bias, dropout_rate=rate)
        return self._outputs(heads, x, context, query_mask)

    def prefill(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> tuple[Float[Array, "b t d_model"], CachedKeysValues]:
        """Compute self-attention of many positions, and keys and values for the cache.

        Returns:
          The output of each position, and the keys and values in the layout "transposed".
        """
        query, key, value = self._joined_projections(x, context)
        values = attention.repeat_heads(value, self.config.key_groups)
        heads, query_mask = context.kernels.attention(
            query, key, values, context.mask, context.bias, score=self.score
        )
        # The dtype of the cache may differ from the dtype of x: CPUs always cache float32.
        cache_dtype = context.kernels.cache_dtype(x.dtype)
        keys_values = transpose_heads(*(y.astype(cache_dtype) for y in (key, value)))
        return self._outputs(heads, x, context, query_mask), keys_values

    def prefill_encoded(
        self, encoded: Float[Array, "b k d_model"], context: Context
    ) -> SourceKeysValues:
        """Compute the keys and values of an encoder's output, for `step_to_encoded`.

        Args:
          encoded: the encoder's output.
          context: its mask `[b, 1, 1, k]` is False at padding.
        """
        key, value = self._keys_values(encoded, context)
        if source_layout(self.config, encoded.dtype, context.kernels) == "in_order":
            assert isinstance(context.mask, jax.Array)
            # `fused_cached_attention` requires zeros as the values of padding.
            return InOrder(key, jnp.where(context.mask[:, 0, 0, :, None, None], value, 0))
        cache_dtype = context.kernels.cache_dtype(encoded.dtype)
        return transpose_heads(*(y.astype(cache_dtype) for y in (key, value)))

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: LayerCache,
        write_at: int | Array,
        context: Context,
        prefix: CachedEntries | None = None,
    ) -> tuple[Float[Array, "b k d_model"], LayerCache]:
        """Compute the attention of a new position per hypothesis to itself and to earlier ones.

        Args:
          x: the new position of each of k hypotheses.
          cache: keys and values of earlier positions.
          write_at: first cache slot of the `k` new positions.
          context: its mask selects the slots that each hypothesis attends to.
          prefix: keys and values of the source, if the hypotheses continue and attend to it.

        Returns:
          The output for each hypothesis, and the new cache from `update_cache_and_attend`.
        """
        # The cache holds rotated keys: a key's position never changes, so one rotation is enough.
        query, key, value = self._joined_projections(x, context)
        assert isinstance(context.mask, jax.Array)
        bias = None
        if context.bias is not None:
            assert context.cache_distances is not None
            bias = context.bias(context.cache_distances)  # [heads, 1, slots]
        heads, cache = update_cache_and_attend(
            query,
            (key, value),
            cache,
            write_at,
            context.mask,
            prefix=prefix,
            bias=bias,
            score=self.score,
            kernels=context.kernels,
        )
        return self._outputs(heads, x, context), cache

    def step_to_encoded(
        self, x: Float[Array, "b q d_model"], source: SourceCache, context: Context
    ) -> Float[Array, "b q d_model"]:
        """Compute cross-attention from one position per hypothesis to an encoder's output.

        Args:
          x: the new position of each hypothesis.
          source: keys and values from `prefill_encoded`, and their mask.
          context: context of the stack.
        """
        query, score, (keys_values, mask, _) = self._queries(x, context), self.score, source
        if isinstance(keys_values, InOrder):
            assert isinstance(score, ScaledProducts)
            heads = context.kernels.fused_cached_attention(query, *keys_values, mask, score.scale)
        else:
            entries = CachedEntries(*keys_values, mask)
            heads = context.kernels.cached_attention(query, [entries], score)
        return self._outputs(heads, x, context)

    def _joined_projections(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> tuple[Array, Array, Array]:
        """Compute queries, keys and values of self-attention for decoding, with one matmul."""
        config = self.config
        joined = self.query_key_value(x, context)  # [b, t, groups, width]
        query_width = config.projections["query"] // config.groups
        key_width = config.projections["key"] // config.groups
        query, key, value = jnp.split(joined, [query_width, query_width + key_width], axis=-1)
        # A group holds its queries side by side, and its keys: back to [b, t, maps, d_k].
        query = query.reshape(*query.shape[:2], config.num_maps, config.d_k)
        query = by_key(query, config)
        key = key.reshape(*key.shape[:2], config.key_groups, config.d_k)
        if config.query_key_norm:
            query, key = self.scores.query_norm(query), self.scores.key_norm(key)
        return *rotate_heads(query, key, context), value

    def _queries(
        self, x: Float[Array, "b q d_model"], context: Context
    ) -> Float[Array, "b q maps d_k"]:
        query = self.query(x, context)
        if self.config.num_maps > self.config.num_heads:
            query = by_key(query, self.config)
        return self.scores.query_norm(query) if self.config.query_key_norm else query

    def _keys_values(self, x: Float[Array, "b k d_model"], context: Context) -> KeysValues:
        key, value = self.key(x, context), self.value(x, context)
        return self.scores.key_norm(key) if self.config.query_key_norm else key, value

    def _outputs(
        self,
        heads: Float[Array, "b q maps d_v"],
        x: Float[Array, "b q d_model"],
        context: Context,
        query_mask: Bool[Array, "b q 1"] | None = None,
    ) -> Float[Array, "b q d_model"]:
        """Combine the weighted values of all maps, and multiply the heads by W^O."""
        if self.config.combination:
            heads = self.combination(heads, x, context)  # [b, q, h, d_v]
        concatenated = heads.reshape(*heads.shape[:2], self.config.num_heads * self.config.d_v)
        return self.output(concatenated, context, query_mask)


def by_key(
    x: Shaped[Array, "*shape"], config: AttentionConfig, axis: int = 2, *, reverse: bool = False
) -> Shaped[Array, "*shape"]:
    """Reorder query heads from the order (group, head, map) to (group, map, head).

    Attention needs the queries of a key head side by side.

    Args:
      x: an array with an axis of all query heads.
      axis: that axis.
      reverse: whether to restore the first order.
    """
    sizes = config.groups, config.heads_per_group, config.kind.maps_per_head
    if 1 in sizes[1:]:
        return x
    outer, inner = sizes[:0:-1] if reverse else sizes[1:]
    heads = x.reshape(*x.shape[:axis], config.groups, outer, inner, *x.shape[axis + 1 :])
    return heads.swapaxes(axis + 1, axis + 2).reshape(x.shape)


def rotate_heads(
    query: Float[Array, "b t h d_k"],
    key: Float[Array, "b t groups d_k"],
    context: Context,
) -> tuple[Float[Array, "b t h d_k"], Float[Array, "b t groups d_k"]]:
    """Rotate queries and keys of self-attention by their positions, if `context.rotary` is set."""
    if context.rotary is None:
        return query, key
    positions = jnp.arange(query.shape[1])[None] if context.positions is None else context.positions
    return rotate(query, positions, context.rotary), rotate(key, positions, context.rotary)


def join_projections(
    params: parameters.Parameters, config: AttentionConfig
) -> parameters.Parameters:
    """Join W^Q, W^K and W^V into one matrix, because one large matmul is faster in decoding.

    Args:
      params: the parameters of a `MultiHeadAttention`; its matrices may be 8-bit integers.
    """

    def join(*kernels: Array) -> Array:
        # The columns are ordered by group: the query heads of a group, its key head, its value
        # head. Splitting the columns over devices then splits the groups.
        heads = [attention.split_heads(kernel, config.groups) for kernel in kernels]
        return attention.merge_heads(jnp.concatenate(heads, axis=-1))

    other_params = {name: value for name, value in params.items() if name not in config.projections}
    matrices = [params[name] for name in config.projections]
    return other_params | {"query_key_value": jax.tree.map(join, *matrices)}


def source_layout(config: AttentionConfig, dtype: DTypeLike, kernels: Kernels) -> CacheLayout:
    """Return the cache layout of the sources' keys and values in cross-attention."""
    return kernels.cache_layout(None, is_fused_in_decoding(config, dtype))


def is_fused_in_decoding(config: AttentionConfig, dtype: DTypeLike) -> bool:
    """Return whether fused attention supports the cached heads without a bias."""
    is_plain = config.kind.is_dot_product and config.kind.maps_per_head == 1
    return is_plain and has_fused_widths(config.d_k, config.d_v, dtype)
