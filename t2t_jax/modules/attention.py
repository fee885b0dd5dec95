"""Multi-head attention (section 3.2.2), over whole sentences or one position at a time.

Read `functional.attention` before this file: it has equation 1, and `functional.masks` its masks.
`modules.feed_forward` comes next: it is the other sub-layer, with the same `Context`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float, Float32, Int

from t2t_jax.config import AttentionConfig, NormConfig, tables
from t2t_jax.errors import UserError
from t2t_jax.functional import attention, masks, normalization
from t2t_jax.functional.attention import ScaledProducts
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.position import rotate
from t2t_jax.kernels.attention import has_fused_widths
from t2t_jax.kernels.cached_attention import Kept, cached_attention, fused_cached_attention
from t2t_jax.kernels.reference import (
    REFERENCE,
    CacheLayout,
    DistanceBias,
    Kernels,
    Score,
    attention_weights,
)
from t2t_jax.modules import parameters
from t2t_jax.modules.cache import (
    CachedKeysValues,
    InOrder,
    KeysValues,
    LayerCache,
    Remembered,
    RememberedKeysValues,
    attend_and_keep,
    turned,
)
from t2t_jax.modules.named_functions import call, score_function
from t2t_jax.parallel.axes import constrain

Mask: TypeAlias = Bool[Array, "#b #h #q k"] | masks.SegmentMask
"""Which positions may attend to which: True means "may attend"."""

WEIGHTS = "attention_weights"
"""The collection of attention weights, which are computed only if it is mutable."""


@dataclass(frozen=True, eq=False)  # arrays have no one equality
class Context:
    """The arguments of every layer of a stack besides its input, the same for all but for `layer`.

    Every field has a default: without a context, a layer treats each row as one whole sentence, and
    drops nothing.

    Attributes:
      positions: position of each input within its sentence, from 0; None means the index in its
        row.
      length: a number greater than every position, if positions are added to embeddings.
      mask: which positions may attend to which, in self-attention. None means all to all; in a
        `Layer` it means the mask of its stack, such as a decoder's causal mask.
      rotary: the frequencies with which self-attention rotates queries and keys by their positions;
        None means no rotation.
      bias: the function of distances that self-attention adds to its scores; None means none.
      apart: distances of queries and keys in a cache, for `bias`; None if the keys of
        self-attention have the positions of the queries.
      encoded: the encoder's output, to which a decoder attends.
      encoded_mask: which positions may attend to which positions of the encoder's output; None
        means all to all.
      deterministic: whether dropout is off. If not, every module draws from its stream of
        `rngs["dropout"]`.
      first_row: index of the arrays' first row in the global batch. Dropout depends on it, so it
        does not depend on how the batch is split.
      layer: index of the layer in its stack, from 0.
      kernels: the functions that compute attention and matmuls on the devices.
    """

    positions: Int[Array, "b t"] | None = None
    length: int = 0
    mask: Bool[Array, "#b #h #t k"] | masks.SegmentMask | None = None
    rotary: Float32[Array, " pairs"] | None = None
    bias: DistanceBias | None = None
    apart: Int[Array, "q k"] | None = None
    encoded: Float[Array, "b s d_model"] | None = None
    encoded_mask: Bool[Array, "#b #h #t s"] | masks.SegmentMask | None = None
    deterministic: bool = True
    first_row: Int[Array, ""] | int = 0
    layer: Int[Array, ""] | int = 0
    kernels: Kernels = REFERENCE

    def __post_init__(self) -> None:
        """Refuse arrays that are not masks."""
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
        """Return a key for one use of dropout.

        Args:
          module: the module that uses it; each module has a separate stream of keys.
        """
        if self.deterministic:
            return None
        return DropoutKey(module.make_rng("dropout"), self.first_row)


DEFAULT_CONTEXT = Context()
"""The context of a layer that is called without one."""


class Projection(nn.Module):
    """A linear projection, x W or x W + b, in the dtype of x.

    Attributes:
      width: number of outputs.
      axes: logical axes of W; see `parallel.axes`.
      has_bias: whether there is a b.
      gain: factor on the initial values of W; see `parameters.matrix`.
      grows: whether both sizes of W grow with the width of the network; see `MatrixBox`.
      num_heads: number of heads that the result is cut into; None does not cut it.
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
        rows: Bool[Array, "b t 1"] | None = None,
    ) -> Float[Array, "b t ..."]:
        """Project every position, or those for which `rows` is True; see `Kernels.linear`.

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
        projected = context.kernels.linear(x, kernel, bias, rows)
        if self.num_heads is None:
            return projected
        heads = attention.split_heads(projected, self.num_heads)
        return constrain(heads, "batch", "length", "heads", None)


class Norm(nn.Module):
    """A normalisation with its learned parameters, such as a scale and a bias.

    Attributes:
      config: the kind, and its epsilon.
    """

    config: NormConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "*t width"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "*t width"]:
        """Normalise the last axis of `x`.

        Args:
          x: vectors.
          context: its kernels compute layer normalisation if dropout is on, as in training.
        """
        entry, epsilon = tables.NORMALIZATIONS[self.config.kind], self.config.epsilon
        learned = parameters.learned(self, entry, x.shape[-1])
        if self.config.kind == "layer":
            fast = context.kernels.layer_norm
            normalize = normalization.layer_norm if context.deterministic else fast
            return normalize(x, learned["scale"], learned["bias"], epsilon)
        return call(entry, x.shape, x.dtype, x, epsilon=epsilon, **learned)


class Scores(nn.Module):
    """The score function of attention and the norms before it, with the parameters they learn."""

    config: AttentionConfig

    def setup(self) -> None:
        """Create the norms, where the config has them, and the score function."""
        config = self.config
        if config.query_key_norm:
            self.query_norm = Norm(config.query_key_norm)
            self.key_norm = Norm(config.query_key_norm)
        entry = tables.SCORE_FUNCTIONS[config.score_function]
        if entry.function is not None:
            learned = parameters.learned(self, entry, config.d_k, config.num_heads)
            self.function = score_function(entry, learned)


class MultiHeadAttention(nn.Module):
    """Multi-head attention, Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Here head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V). A kernel holds all heads side by side:
    `[d_model, num_heads * d_k]` for queries, `[num_heads * d_v, d_model]` for the output. The
    kernels of keys and values hold one head for each group of heads that share them.

    Training calls the module. Decoding calls `prefill` or `prefill_encoded` once for each sentence,
    and `step` or `step_to_encoded` for each position.

    Attributes:
      config: sizes and options of the attention.
      gain: factor on the initial values of W^V and W^O; see `parameters.matrix`.
    """

    config: AttentionConfig
    gain: float = 1.0

    def setup(self) -> None:
        """Create the projections, and the score function."""
        config = self.config
        inward = partial(Projection, axes=("embed", "heads"), has_bias=config.has_bias)
        widths, groups = config.projections, config.groups
        self.query = inward(widths["query"], num_heads=config.num_heads)
        self.key = inward(widths["key"], num_heads=groups)
        self.value = inward(widths["value"], num_heads=groups, gain=self.gain)
        self.output = Projection(config.d_model, ("heads", "embed"), config.has_bias, self.gain)
        # In decoding, the first three matrices are one; see `join_projections`.
        self.query_key_value = inward(sum(widths.values()), num_heads=groups)
        entry = tables.SCORE_FUNCTIONS[config.score_function]
        self.score: Score = ScaledProducts(config.scale)
        if entry.function is not None or config.query_key_norm:
            self.scores = Scores(config)
        if entry.function is not None:
            self.score = self.scores.function

    def __call__(
        self,
        x: Float[Array, "b q d_model"],
        context: Context = DEFAULT_CONTEXT,
        encoded: Float[Array, "b k d_model"] | None = None,
    ) -> Float[Array, "b q d_model"]:
        """Compute self-attention, or cross-attention to the output of an encoder.

        Args:
          x: the positions that attend.
          context: its `mask` says to which positions of `x` they attend, and its `encoded_mask` to
            which of `encoded`.
          encoded: the positions that are attended to; None means `x` itself.
        """
        query = self._queries(x, context)
        key, value = self._keys_values(x if encoded is None else encoded, context)
        mask, bias = context.encoded_mask, None
        if encoded is None:
            mask, bias = context.mask, context.bias
            if context.rotary is not None:
                query, key = rotated(query, key, context)
        if self.is_mutable_collection(WEIGHTS) and not self.is_initializing():
            of_heads = attention.repeat_heads(key, self.config.num_heads)
            weights = attention_weights(query, of_heads, mask, bias, self.score)
            self.sow(WEIGHTS, "weights", weights)
        dropout_key = context.dropout_key(self)
        attend = partial(context.kernels.attention, score=self.score, dropout_key=dropout_key)
        heads, rows = attend(query, key, value, mask, bias, dropout_rate=self.config.dropout_rate)
        return self.output(attention.merge_heads(heads), context, rows)

    def prefill(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> tuple[Float[Array, "b t d_model"], CachedKeysValues]:
        """Compute self-attention of many positions at once, and their keys and values to keep.

        Returns:
          The output at each position, and keys and values in the layout "turned".
        """
        query, key, value = self._joined_projections(x, context)
        heads, rows = context.kernels.attention(
            query, key, value, context.mask, context.bias, score=self.score
        )
        kept = context.kernels.cache_dtype(x.dtype)
        cache = turned(*(y.astype(kept) for y in (key, value)))
        return self.output(attention.merge_heads(heads), context, rows), cache

    def prefill_encoded(
        self, encoded: Float[Array, "b k d_model"], context: Context
    ) -> RememberedKeysValues:
        """Compute the keys and values of an encoder's output, for `step_to_encoded`.

        Args:
          encoded: the encoder's output.
          context: its mask `[b, 1, 1, k]` says which positions are not padding.
        """
        key, value = self._keys_values(encoded, context)
        if source_layout(self.config, encoded.dtype, context.kernels) == "in_order":
            assert isinstance(context.mask, jax.Array)
            # Values of padding are zero, as `fused_cached_attention` asks.
            return InOrder(key, jnp.where(context.mask[:, 0, 0, :, None, None], value, 0))
        kept = context.kernels.cache_dtype(encoded.dtype)
        return turned(*(y.astype(kept) for y in (key, value)))

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: LayerCache,
        write_at: int | Array,
        context: Context,
        before: Kept | None = None,
    ) -> tuple[Float[Array, "b k d_model"], LayerCache]:
        """Add a new position of each hypothesis to a cache, and let it attend to the cache.

        Args:
          x: the new position of each of k hypotheses.
          cache: keys and values of the earlier positions.
          write_at: slot of the first of the `k` new entries.
          context: context of the stack; its mask says to which slots each hypothesis attends.
          before: keys and values of the source that all hypotheses continue and attend to as well.

        Returns:
          The output for each hypothesis, and the cache as `attend_and_keep` returns it.
        """
        # Keys are cached after the rotation: their positions do not change.
        query, key, value = self._joined_projections(x, context)
        assert isinstance(context.mask, jax.Array)
        bias = None
        if context.bias is not None:
            assert context.apart is not None
            bias = context.bias(context.apart)
        heads, cache = attend_and_keep(
            query, (key, value), cache, write_at, context.mask, before, bias, self.score
        )
        return self.output(attention.merge_heads(heads), context), cache

    def step_to_encoded(
        self, x: Float[Array, "b q d_model"], source: Remembered, context: Context
    ) -> Float[Array, "b q d_model"]:
        """Let the positions in `x` attend to the output of an encoder.

        Args:
          x: a position of each hypothesis.
          source: keys and values from `prefill_encoded`, and where they are no padding.
          context: context of the stack.
        """
        query, score, (keys_values, mask, _) = self._queries(x, context), self.score, source
        if isinstance(keys_values, InOrder):
            assert isinstance(score, ScaledProducts)
            heads = fused_cached_attention(query, *keys_values, mask, score.scale)
        else:
            heads = cached_attention(query, [Kept(*keys_values, mask)], score)
        return self.output(attention.merge_heads(heads), context)

    def _joined_projections(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> tuple[Array, Array, Array]:
        """Return queries, keys and values of self-attention in decoding, by one matmul."""
        config = self.config
        heads = self.query_key_value(x, context)  # [b, t, groups, width]
        width = config.projections["query"] // config.groups
        query, key, value = jnp.split(heads, [width, width + config.d_k], axis=-1)
        query = query.reshape(*query.shape[:2], config.num_heads, config.d_k)
        if config.query_key_norm:
            query, key = self.scores.query_norm(query), self.scores.key_norm(key)
        return *rotated(query, key, context), value

    def _queries(
        self, x: Float[Array, "b q d_model"], context: Context
    ) -> Float[Array, "b q h d_k"]:
        query = self.query(x, context)
        return self.scores.query_norm(query) if self.config.query_key_norm else query

    def _keys_values(self, x: Float[Array, "b k d_model"], context: Context) -> KeysValues:
        key, value = self.key(x, context), self.value(x, context)
        return self.scores.key_norm(key) if self.config.query_key_norm else key, value


def rotated(
    query: Float[Array, "b t h d_k"],
    key: Float[Array, "b t groups d_k"],
    context: Context,
) -> tuple[Float[Array, "b t h d_k"], Float[Array, "b t groups d_k"]]:
    """Rotate queries and keys of self-attention by their positions, if the context says so."""
    if context.rotary is None:
        return query, key
    positions = jnp.arange(query.shape[1])[None] if context.positions is None else context.positions
    return rotate(query, positions, context.rotary), rotate(key, positions, context.rotary)


def join_projections(
    params: parameters.Parameters, config: AttentionConfig
) -> parameters.Parameters:
    """Return the parameters with W^Q, W^K and W^V as one matrix, as decoding multiplies faster.

    Args:
      params: the parameters of a `MultiHeadAttention`; its matrices may be 8-bit integers.
      config: sizes and options of the attention.
    """

    def join(*kernels: Array) -> Array:
        # The order is head after head, so that devices that split the heads split the joined kernel
        # alike. Query heads that share their keys and values stand together before these.
        heads = [attention.split_heads(kernel, config.groups) for kernel in kernels]
        return attention.merge_heads(jnp.concatenate(heads, axis=-1))

    rest = {name: value for name, value in params.items() if name not in config.projections}
    joined = [params[name] for name in config.projections]
    return rest | {"query_key_value": jax.tree.map(join, *joined)}


def source_layout(config: AttentionConfig, dtype: DTypeLike, kernels: Kernels) -> CacheLayout:
    """Return the layout of the keys and values of sources that cross-attention attends to."""
    return kernels.cache_layout(None, is_fused_in_decoding(config, dtype))


def is_fused_in_decoding(config: AttentionConfig, dtype: DTypeLike) -> bool:
    """Return whether fused attention takes the heads of a cache, if its scores have no bias."""
    is_plain = tables.SCORE_FUNCTIONS[config.score_function].function is None
    return is_plain and has_fused_widths(config.d_k, config.d_v, dtype)
