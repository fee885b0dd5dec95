"""Multi-head attention (section 3.2.2), over whole sentences or one position at a time."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t_jax.config import AttentionConfig, tables
from t2t_jax.errors import UserError
from t2t_jax.functional import attention, masks
from t2t_jax.functional.position import rotate
from t2t_jax.kernels.attention import (
    DistanceBias,
    Kept,
    cache_dtype,
    cached_attention,
    fused_cached_attention,
    heads_and_rows,
)
from t2t_jax.kernels.products import linear
from t2t_jax.modules import matrices, normalization
from t2t_jax.modules.cache import (
    CachedKeysValues,
    InOrder,
    KeysValues,
    LayerCache,
    RememberedKeysValues,
    attend_and_keep,
    cached_order,
    keeps_order,
)
from t2t_jax.modules.context import DEFAULT_CONTEXT, Context, Mask
from t2t_jax.modules.named_functions import learned, score_function
from t2t_jax.parallel.axes import constrain


class Projection(nn.Module):
    """A linear projection, x W or x W + b, in the dtype of x.

    Attributes:
      width: number of outputs.
      axes: logical axes of W; see `parallel.axes`.
      has_bias: whether there is a b.
      gain: factor on the first values of W; see `glorot_uniform`.
      grows: whether both sizes of W grow with the width of the network; see `MatrixBox`.
    """

    width: int
    axes: tuple[str | None, str]
    has_bias: bool = False
    gain: float = 1.0
    grows: bool = True

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d_in"],
        context: Context,
        rows: Bool[Array, "b t 1"] | None = None,
    ) -> Float[Array, "b t d_out"]:
        """Project every position, or those for which `rows` is True; see `linear`."""
        init, shape = matrices.glorot_uniform(self.gain), (x.shape[-1], self.width)
        kernel = matrices.matrix(self, "kernel", init, shape, self.axes, x.dtype, grows=self.grows)
        bias = None
        if self.has_bias:
            axis = "heads" if self.axes[1] == "heads" else "vector"
            bias = matrices.summand(self, "bias", axis, self.width, x.dtype)
        return linear(x, kernel, bias, form=context.kernels.products, rows=rows)


class Scores(nn.Module):
    """The norms and the score function of attention, with the parameters that they learn."""

    config: AttentionConfig

    def setup(self) -> None:
        """Create the norms, where the config has them, and the score function."""
        config = self.config
        if config.query_key_norm:
            self.query_norm = normalization.Norm(config.query_key_norm)
            self.key_norm = normalization.Norm(config.query_key_norm)
        entry = tables.SCORE_FUNCTIONS[config.score_function]
        self.function = score_function(entry, learned(self, entry, config.d_k, config.num_heads))

    def query(self, x: Float[Array, "b q h d_k"]) -> Float[Array, "b q h d_k"]:
        """Apply the query norm, if the config has one, and the factor that scores need."""
        x = self.query_norm(x) if self.config.query_key_norm else x
        factor = self.config.query_factor
        return x if factor == 1 else x * factor

    def key(self, x: Float[Array, "b k groups d_k"]) -> Float[Array, "b k groups d_k"]:
        """Apply the key norm, if the config has one."""
        return self.key_norm(x) if self.config.query_key_norm else x


class MultiHeadAttention(nn.Module):
    """Multi-head attention, Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Here head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V). A kernel holds all heads side by side:
    `[d_model, num_heads * d_k]` for queries, `[num_heads * d_v, d_model]` for the output. The
    kernels of keys and values hold one head for each group of heads that share them.

    Attributes:
      config: sizes and options of the attention.
      gain: factor on the first values of W^V and W^O; see `glorot_uniform`.
    """

    config: AttentionConfig
    gain: float = 1.0

    def setup(self) -> None:
        """Create the four projections."""
        config = self.config
        for name, width in config.projections.items():
            gain = self.gain if name == "value" else 1.0
            projection = Projection(width, ("embed", "heads"), config.has_bias, gain)
            setattr(self, name, projection)
        self.output = Projection(config.d_model, ("heads", "embed"), config.has_bias, self.gain)
        self.scores = Scores(config)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Compute self-attention: positions in `x` attend to each other where the mask is True."""
        key, value = self.keys_values(x, context)
        query, key = rotated(self.queries(x, context), key, context)
        return self._attend(query, key, value, context.mask, context.bias, context)

    def attend_to_encoded(
        self, x: Float[Array, "b q d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b q d_model"]:
        """Compute cross-attention: the positions in `x` attend to the encoder's output."""
        if context.encoded is None:
            raise UserError(
                "attention to an encoder's output is called without one; pass "
                "Context(encoded=...), with an array [batch, time, d_model]"
            )
        key, value = self.keys_values(context.encoded, context)
        query = self.queries(x, context)
        return self._attend(query, key, value, context.encoded_mask, None, context)

    def _attend(
        self,
        query: Float[Array, "b q h d_k"],
        key: Float[Array, "b k groups d_k"],
        value: Float[Array, "b k groups d_v"],
        mask: Mask | None,
        bias: DistanceBias | None,
        context: Context,
    ) -> Float[Array, "b q d_model"]:
        score = self.scores.function
        if mask is None:
            mask = masks.attention_mask(*(jnp.ones(x.shape[:2], jnp.int32) for x in (query, key)))
        elif not isinstance(mask, masks.SegmentMask) and mask.shape[0] != query.shape[0]:
            # One mask is for all rows.
            mask = jnp.broadcast_to(mask, (query.shape[0], *mask.shape[1:]))
        if self.is_mutable_collection("intermediates"):  # attention maps ask for it
            self.sow("intermediates", "weights", _weights(query, key, mask, bias, score))
        heads, rows = heads_and_rows(
            query,
            key,
            value,
            mask,
            bias=bias,
            score=score,
            dropout_rate=self.config.dropout_rate,
            dropout_key=context.dropout_key(self),
            kernels=context.kernels,
        )
        return self.output(attention.merge_heads(heads), context, rows)

    def queries(
        self, x: Float[Array, "b q d_model"], context: Context
    ) -> Float[Array, "b q h d_k"]:
        """Return the queries of the positions in `x`, split into heads."""
        return self.scores.query(_heads(self.query(x, context), self.config.num_heads))

    def keys_values(self, x: Float[Array, "b k d_model"], context: Context) -> KeysValues:
        """Return the keys and values of the positions in `x`, split into their heads."""
        groups = self.config.groups
        key, value = _heads(self.key(x, context), groups), _heads(self.value(x, context), groups)
        return self.scores.key(key), value

    def remember(self, x: Float[Array, "b k d_model"], context: Context) -> RememberedKeysValues:
        """Return the keys and values of the positions in `x`, in the form for `recall`."""
        if keeps_order(self.config, x.dtype, context.kernels):
            key, value = self.keys_values(x, context)
            assert isinstance(context.mask, jax.Array)
            # Values of padding are zero, as `fused_cached_attention` asks.
            return InOrder(key, jnp.where(context.mask[:, 0, 0, :, None, None], value, 0))
        kept = cache_dtype(x.dtype, context.kernels.products)
        return cached_order(*(y.astype(kept) for y in self.keys_values(x, context)))

    def recall(
        self,
        x: Float[Array, "b q d_model"],
        remembered: RememberedKeysValues,
        mask: Bool[Array, "b #h #q k"],
        context: Context,
    ) -> Float[Array, "b q d_model"]:
        """Let the positions in `x` attend to stored keys and values.

        Args:
          remembered: keys and values, from `remember`.
          mask: True where a query may attend to a key.
        """
        query, score = self.queries(x, context), self.scores.function
        if isinstance(remembered, InOrder):
            heads = fused_cached_attention(query, *remembered, mask)
        else:
            heads = cached_attention(query, *remembered, mask, score=score)
        return self.output(attention.merge_heads(heads), context)


class CachedSelfAttention(nn.Module):
    """The self-attention of a new position to itself and to earlier positions in a cache.

    It has the parameters of a `MultiHeadAttention`, as `join_projections` arranges them.
    """

    config: AttentionConfig

    def setup(self) -> None:
        """Create two projections: one for queries, keys and values together, one for the output."""
        config = self.config
        width = sum(config.projections.values())
        self.query_key_value = Projection(width, ("embed", "heads"), config.has_bias)
        self.output = Projection(config.d_model, ("heads", "embed"), config.has_bias)
        self.scores = Scores(config)

    def __call__(
        self,
        x: Float[Array, "b k d_model"],
        cache: LayerCache,
        write_at: int | Array,
        context: Context,
        before: Kept | None = None,
    ) -> tuple[Float[Array, "b k d_model"], LayerCache]:
        """Add the new position to a cache, and let the position attend to the cache.

        Args:
          write_at: slot of the first of the `k` new entries.
          context: context of the stack; its mask says to which slots each hypothesis attends.
          before: keys and values of the source that all hypotheses continue and attend to as well.

        Returns:
          The output for each hypothesis, and the cache as `attend_and_keep` returns it.
        """
        query, key, value = self._projected(x, context)
        # Keys are cached after the rotation: their positions do not change.
        query, key = rotated(query, key, context)
        assert isinstance(context.mask, jax.Array)
        bias = None
        if context.bias is not None:
            assert context.apart is not None
            bias = context.bias(context.apart)
        what = query, (key, value), cache, write_at, context.mask, before
        attended, cache = attend_and_keep(*what, bias, self.scores.function)
        return self.output(attention.merge_heads(attended), context), cache

    def read(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> tuple[Float[Array, "b t d_model"], CachedKeysValues]:
        """Compute self-attention of many positions at once, and their keys and values to store.

        Returns:
          The output at each position, and keys and values in the order of a cache.
        """
        query, key, value = self._projected(x, context)
        query, key = rotated(query, key, context)
        assert context.mask is not None
        heads, rows = heads_and_rows(
            query,
            key,
            value,
            context.mask,
            bias=context.bias,
            score=self.scores.function,
            kernels=context.kernels,
        )
        kept = cache_dtype(x.dtype, context.kernels.products)
        cache = cached_order(*(y.astype(kept) for y in (key, value)))
        return self.output(attention.merge_heads(heads), context, rows), cache

    def _projected(
        self, x: Float[Array, "b k d_model"], context: Context
    ) -> tuple[Array, Array, Array]:
        """Return queries `[b, k, h, d_k]` and keys and values `[b, k, groups, d]` of `x`."""
        config = self.config
        heads = _heads(self.query_key_value(x, context), config.groups)
        width = config.projections["query"] // config.groups
        query, key, value = jnp.split(heads, [width, width + config.d_k], axis=-1)
        query = query.reshape(*query.shape[:2], config.num_heads, config.d_k)
        return self.scores.query(query), self.scores.key(key), value


def join_projections(params: matrices.Parameters, config: AttentionConfig) -> matrices.Parameters:
    """Return the parameters of a `CachedSelfAttention`: each head's three kernels side by side.

    Args:
      params: the parameters of a `MultiHeadAttention`; its matrices may be 8-bit integers.
    """

    def join(*kernels: Array) -> Array:
        # The order is head after head, so that devices that split the heads split the joined kernel
        # alike. Query heads that share their keys and values stand together before these.
        heads = [attention.split_heads(kernel, config.groups) for kernel in kernels]
        return attention.merge_heads(jnp.concatenate(heads, axis=-1))

    rest = {name: value for name, value in params.items() if name not in config.projections}
    joined: list[Any] = [params[name] for name in config.projections]
    return rest | {"query_key_value": jax.tree.map(join, *joined)}


def rotated(
    query: Float[Array, "b t h d_k"], key: Float[Array, "b t groups d_k"], context: Context
) -> tuple[Float[Array, "b t h d_k"], Float[Array, "b t groups d_k"]]:
    """Rotate queries and keys of self-attention by their positions, if these are rotary."""
    if context.rotary is None:
        return query, key
    positions = context.positions
    if positions is None:
        positions = jnp.arange(query.shape[1])[None]
    return rotate(query, positions, context.rotary), rotate(key, positions, context.rotary)


def _weights(
    query: Float[Array, "b q h d_k"],
    key: Float[Array, "b k groups d_k"],
    mask: Mask,
    bias: DistanceBias | None,
    score: attention.Score | None,
) -> Float[Array, "b h q k"]:
    whole = mask.whole() if isinstance(mask, masks.SegmentMask) else mask
    key = attention.repeat_heads(key, query.shape[2])
    added = None if bias is None else bias(masks.distances(query.shape[1], key.shape[1]))
    return attention.attention_weights(query, key, whole, bias=added, score=score)


def _heads(projected: Float[Array, "b t width"], num_heads: int) -> Float[Array, "b t h d"]:
    return constrain(attention.split_heads(projected, num_heads), "batch", "length", "heads", None)
