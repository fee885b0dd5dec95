"""Multi-head attention (section 3.2.2), of whole sentences and of one position at a time."""

from functools import partial
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t_jax.config import AttentionConfig
from t2t_jax.functional.attention import attention_weights, merge_heads, split_heads
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.attention import attention, cache_dtype, cached_attention
from t2t_jax.kernels.products import linear
from t2t_jax.modules.context import Context, Mask
from t2t_jax.modules.matrices import Parameters, matrix
from t2t_jax.parallel.axes import constrain

# Keys and values of the positions attended to. "_" binds no name, as their number differs from use
# to use.
KeysValues = tuple[Float[Array, "b _ h d_k"], Float[Array, "b _ h d_v"]]
# The same as decoding keeps them, in the order in which `cached_attention` takes them.
CachedKeysValues = tuple[Float[Array, "b h d_k _"], Float[Array, "b h _ d_v"]]
CACHED_AXES = 3, 2
"""The axes of the positions in `CachedKeysValues`."""


class Projection(nn.Module):
    """A linear projection without a bias, x W, in the dtype of x.

    Attributes:
      width: number of outputs.
      axes: logical axes of W; see `parallel.axes`.
    """

    width: int
    axes: tuple[str, str]

    @nn.compact
    def __call__(self, x: Float[Array, "b t d_in"], context: Context) -> Float[Array, "b t d_out"]:
        """Project every position."""
        init, shape = nn.initializers.glorot_uniform(), (x.shape[-1], self.width)
        kernel = matrix(self, "kernel", init, shape, self.axes, x.dtype)
        return linear(x, kernel, form=context.kernels.products)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The projections have no biases, as in the original. Each holds all heads side by side: the
    query kernel is `[d_model, num_heads * d_k]`, the output kernel `[num_heads * d_v, d_model]`.
    """

    config: AttentionConfig

    def setup(self) -> None:
        """Create the four projections."""
        for name, width in self.config.projections.items():
            setattr(self, name, Projection(width, ("embed", "heads")))
        self.output = Projection(self.config.d_model, ("heads", "embed"))

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Self-attention: let the positions in `x` attend to each other, where the mask is True."""
        key, value = self.keys_values(x, context)
        return self._attend(self.queries(x, context), key, value, context.mask, context)

    def attend_to_encoded(
        self, x: Float[Array, "b q d_model"], context: Context
    ) -> Float[Array, "b q d_model"]:
        """Cross-attention: let the positions in `x` attend to the encoder's output."""
        assert context.encoded is not None
        assert context.encoded_mask is not None
        key, value = self.keys_values(context.encoded, context)
        return self._attend(self.queries(x, context), key, value, context.encoded_mask, context)

    def _attend(
        self,
        query: Float[Array, "b q h d_k"],
        key: Float[Array, "b k h d_k"],
        value: Float[Array, "b k h d_v"],
        mask: Mask,
        context: Context,
    ) -> Float[Array, "b q d_model"]:
        if self.is_mutable_collection("intermediates"):  # attention maps ask for it
            whole = mask.whole() if isinstance(mask, SegmentMask) else mask
            self.sow("intermediates", "weights", attention_weights(query, key, whole))
        heads = attention(
            query,
            key,
            value,
            mask,
            dropout_rate=self.config.dropout_rate,
            dropout_key=context.dropout_key(self),
            kernels=context.kernels,
        )
        return self.output(merge_heads(heads), context)

    def queries(
        self, x: Float[Array, "b q d_model"], context: Context
    ) -> Float[Array, "b q h d_k"]:
        """The queries of the positions in `x`, split into heads."""
        return _heads(self.query(x, context), self.config.num_heads)

    def keys_values(self, x: Float[Array, "b k d_model"], context: Context) -> KeysValues:
        """The keys and values of the positions in `x`, split into heads."""
        heads = self.config.num_heads
        return _heads(self.key(x, context), heads), _heads(self.value(x, context), heads)

    def remember(self, x: Float[Array, "b k d_model"], context: Context) -> CachedKeysValues:
        """The keys and values of the positions in `x`, as `recall` takes them."""
        kept = cache_dtype(x.dtype, context.kernels.products)
        return _cached_order(*(y.astype(kept) for y in self.keys_values(x, context)))

    def recall(
        self,
        x: Float[Array, "b q d_model"],
        remembered: CachedKeysValues,
        mask: Bool[Array, "b #h #q k"],
        context: Context,
    ) -> Float[Array, "b q d_model"]:
        """Let the positions in `x` attend to keys and values that are kept.

        Args:
          x: vectors of the positions that attend.
          remembered: keys and values, from `remember`.
          mask: True where a query may attend to a key.
          context: the context of the stack.
        """
        heads = cached_attention(self.queries(x, context), *remembered, mask)
        return self.output(merge_heads(heads), context)


class CachedSelfAttention(nn.Module):
    """The self-attention of one new position to itself and those before it, kept in a cache.

    It has the parameters of a `MultiHeadAttention`, as `join_projections` arranges them.
    """

    config: AttentionConfig

    def setup(self) -> None:
        """Create two projections: queries, keys and values are made in one product."""
        width = sum(self.config.projections.values())
        self.query_key_value = Projection(width, ("embed", "heads"))
        self.output = Projection(self.config.d_model, ("heads", "embed"))

    def __call__(
        self,
        x: Float[Array, "b k d_model"],
        cache: CachedKeysValues,
        write_at: int | Array,
        context: Context,
    ) -> tuple[Float[Array, "b k d_model"], CachedKeysValues]:
        """Attend to a cache with the new position in it.

        Args:
          x: the position's vectors, one for each of `k` hypotheses.
          cache: keys and values of the earlier positions; see `DecodingModel.step`.
          write_at: slot of the first of the `k` new entries.
          context: its mask says to which slots each hypothesis attends.

        Returns:
          The output for each hypothesis, and the cache with the new entries.
        """
        config = self.config
        heads = _heads(self.query_key_value(x, context), config.num_heads)
        query, key, value = jnp.split(heads, [config.d_k, 2 * config.d_k], axis=-1)
        new = _cached_order(key, value)
        cache = cast(Any, jax.tree.map(partial(_write, write_at), cache, new, CACHED_AXES))
        assert not isinstance(context.mask, SegmentMask)
        attended = cached_attention(query, *cache, context.mask)
        return self.output(merge_heads(attended), context), cache


def join_projections(params: Parameters, config: AttentionConfig) -> Parameters:
    """The parameters of a `CachedSelfAttention`: for each head, its three kernels side by side.

    Args:
      params: the parameters of a `MultiHeadAttention`; its matrices may be 8-bit integers.
      config: the sizes of the attention.
    """

    def join(*kernels: Array) -> Array:
        # Head after head: devices that share out the heads share out the joined kernel alike.
        heads = [split_heads(kernel, config.num_heads) for kernel in kernels]
        return merge_heads(jnp.concatenate(heads, axis=-1))

    kernels: list[Any] = [params[name]["kernel"] for name in config.projections]
    return {
        "query_key_value": {"kernel": jax.tree.map(join, *kernels)},
        "output": params["output"],
    }


def _heads(projected: Float[Array, "b t width"], num_heads: int) -> Float[Array, "b t h d"]:
    return constrain(split_heads(projected, num_heads), "batch", "length", "heads", None)


def _cached_order(
    keys: Float[Array, "b k h d_k"], values: Float[Array, "b k h d_v"]
) -> CachedKeysValues:
    return keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3)


def _write(
    at: int | Array, cache: Float[Array, "b h _ _"], new: Float[Array, "b h _ _"], axis: int
) -> Float[Array, "b h _ _"]:
    new = new.astype(cache.dtype)
    if cache.shape[0] == new.shape[axis] == 1:
        # Where one hypothesis of one sentence is written in place, XLA on CPUs does so twice, and
        # copies the cache four times.
        slots = jax.lax.broadcasted_iota(jnp.int32, cache.shape, axis)
        return jnp.where(slots == at, new, cache)
    return jax.lax.dynamic_update_slice_in_dim(cache, new, at, axis)
