"""Encoder and decoder layers (section 3.1): sub-layers with residual connections around them."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t_jax.config import ModelConfig
from t2t_jax.functional.feed_forward import position_wise_feed_forward
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.functional.normalization import layer_norm
from t2t_jax.modules.attention import CachedKeysValues, MultiHeadAttention
from t2t_jax.modules.dropout import Dropout, FirstRow, dropout_key
from t2t_jax.modules.matrices import matrix
from t2t_jax.parallel.axes import constrain, named


class LayerNorm(nn.Module):
    """Layer normalisation with a learned scale and bias."""

    @nn.compact
    def __call__(self, x: Float[Array, "*t d_model"]) -> Float[Array, "*t d_model"]:
        """Normalise the last axis of `x`."""
        scale = self.param("scale", named(nn.initializers.ones, "vector"), (x.shape[-1],))
        bias = self.param("bias", named(nn.initializers.zeros, "vector"), (x.shape[-1],))
        return layer_norm(x, scale, bias)


class FeedForward(nn.Module):
    """The position-wise feed-forward network (section 3.3)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], first_row: FirstRow = None
    ) -> Float[Array, "b t d_model"]:
        """Apply the network to every position."""
        config = self.config
        kernel_init, bias_init = nn.initializers.glorot_uniform(), nn.initializers.zeros
        init_1, init_2 = named(kernel_init, "embed", "mlp"), named(kernel_init, "mlp", "embed")
        d_model, d_ff, dtype = config.d_model, config.d_ff, x.dtype
        return position_wise_feed_forward(
            x,
            matrix(self, "kernel_1", init_1, (d_model, d_ff), dtype),
            self.param("bias_1", named(bias_init, "mlp"), (d_ff,)).astype(dtype),
            matrix(self, "kernel_2", init_2, (d_ff, d_model), dtype),
            self.param("bias_2", named(bias_init, "vector"), (d_model,)).astype(dtype),
            dropout_rate=config.activation_dropout_rate,
            dropout_key=dropout_key(self, first_row),
        )


class Residual(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))), the paper's order (sections 3.1 and 5.4).

    With `norm_order="pre"` it is x + Dropout(Sublayer(LayerNorm(x))) instead.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t d_model"],
        sublayer: Callable[[Float[Array, "b t d_model"]], Float[Array, "b t d_model"]],
        first_row: FirstRow = None,
    ) -> Float[Array, "b t d_model"]:
        """Wrap `sublayer` in dropout, residual connection and layer norm."""
        norm = LayerNorm(name="norm")
        drop = Dropout(self.config.dropout_rate)
        if self.config.norm_order == "post":
            y = norm(x + drop(sublayer(x), first_row))
        else:
            y = x + drop(sublayer(norm(x)), first_row)
        return constrain(y, "batch", "length", "channels")


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each with a residual connection."""

    config: ModelConfig

    def setup(self) -> None:
        """Create the sub-layers."""
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "b t d_model"],
        mask: Bool[Array, "b 1 t t"] | SegmentMask,
        first_row: FirstRow = None,
    ) -> Float[Array, "b t d_model"]:
        """One layer of the encoder."""
        x = self.self_attention_residual(
            x,
            lambda y: self.self_attention(y, y, mask, first_row),
            first_row,
        )
        return self.feed_forward_residual(
            x,
            lambda y: self.feed_forward(y, first_row),
            first_row,
        )


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's output, and feed-forward network."""

    config: ModelConfig

    def setup(self) -> None:
        """Create the sub-layers."""
        self.self_attention = MultiHeadAttention(self.config)
        self.self_attention_residual = Residual(self.config)
        self.cross_attention = MultiHeadAttention(self.config)
        self.cross_attention_residual = Residual(self.config)
        self.feed_forward = FeedForward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self,
        x: Float[Array, "b t d_model"],
        encoded: Float[Array, "b s d_model"],
        self_mask: Bool[Array, "b 1 t t"] | SegmentMask,
        cross_mask: Bool[Array, "b 1 t s"] | SegmentMask,
        first_row: FirstRow = None,
    ) -> Float[Array, "b t d_model"]:
        """One layer of the decoder, all positions at once."""
        return self._sublayers(
            x,
            lambda y: self.self_attention(y, y, self_mask, first_row),
            lambda y: self.cross_attention(y, encoded, cross_mask, first_row),
            first_row,
        )

    def step(
        self,
        x: Float[Array, "b k d_model"],
        cache: CachedKeysValues,
        memory: CachedKeysValues,
        write_at: int | Array,
        self_mask: Bool[Array, "b 1 k slots"],
        cross_mask: Bool[Array, "b 1 1 s"],
    ) -> tuple[Float[Array, "b k d_model"], CachedKeysValues]:
        """One position of `k` hypotheses per sentence, with the earlier positions in a cache.

        Args:
          x: the position's vectors, one per hypothesis.
          cache: self-attention keys and values, `[b, h, d, slots]`; see `Transformer.step`.
          memory: keys and values of the encoder's output, one copy per sentence.
          write_at: slot of the first of the `k` new entries.
          self_mask: which slots each hypothesis attends to.
          cross_mask: which source positions are real.
        """

        def attend_to_cache(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            nonlocal cache
            queries, new = self.self_attention.queries_keys_values(y)
            cache = (_write(cache[0], new[0], write_at), _write(cache[1], new[1], write_at))
            return self.self_attention.attend_to_cache(queries, cache, self_mask)

        def attend_to_memory(y: Float[Array, "b k d_model"]) -> Float[Array, "b k d_model"]:
            queries = self.cross_attention.queries(y)
            return self.cross_attention.attend_to_cache(queries, memory, cross_mask)

        return self._sublayers(x, attend_to_cache, attend_to_memory), cache

    def _sublayers(
        self,
        x: Float[Array, "b t d_model"],
        self_attend: Callable[[Float[Array, "b t d_model"]], Float[Array, "b t d_model"]],
        cross_attend: Callable[[Float[Array, "b t d_model"]], Float[Array, "b t d_model"]],
        first_row: FirstRow = None,
    ) -> Float[Array, "b t d_model"]:
        x = self.self_attention_residual(x, self_attend, first_row)
        x = self.cross_attention_residual(x, cross_attend, first_row)
        return self.feed_forward_residual(
            x,
            lambda y: self.feed_forward(y, first_row),
            first_row,
        )


def _write(
    cache: Float[Array, "b h d slots"], new: Float[Array, "b h d k"], at: int | Array
) -> Float[Array, "b h d slots"]:
    new = new.astype(cache.dtype)
    if cache.shape[0] == new.shape[3] == 1:
        # Where one hypothesis of one sentence is written in place, XLA on CPUs does so twice, and
        # copies the cache four times.
        return jnp.where(jnp.arange(cache.shape[3]) == at, new, cache)
    return jax.lax.dynamic_update_slice_in_dim(cache, new, at, axis=3)
