"""Multi-head attention (section 3.2.2)."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t_jax.config import ModelConfig
from t2t_jax.functional.attention import (
    attention_weights,
    cached_attention,
    merge_heads,
    scaled_dot_product_attention,
    split_heads,
)
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.products import linear
from t2t_jax.modules.dropout import FirstRow, dropout_key
from t2t_jax.modules.matrices import matrix
from t2t_jax.parallel.axes import constrain, named

# Of the positions attended to, whose number differs from use to use: "_" binds no name.
KeysValues = tuple[Float[Array, "b _ h d_k"], Float[Array, "b _ h d_v"]]
# The same, kept for queries to come; see `cached_attention`.
CachedKeysValues = tuple[Float[Array, "b h d_k _"], Float[Array, "b h d_v _"]]


class Projection(nn.Module):
    """x W, without a bias, in the dtype of x."""

    width: int
    axes: tuple[str, str]

    @nn.compact
    def __call__(self, x: Float[Array, "b t d_in"]) -> Float[Array, "b t d_out"]:
        """Project every position."""
        init = named(nn.initializers.glorot_uniform(), *self.axes)
        return linear(x, matrix(self, "kernel", init, (x.shape[-1], self.width), x.dtype))


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The projections have no biases, as in the original. Each holds all heads side by side: the
    query kernel is `[d_model, num_heads * d_k]`, the output kernel `[num_heads * d_v, d_model]`.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Create the four projections, and the one that decoding has in place of three."""
        config = self.config
        d_k, d_v = config.key_size, config.value_size
        inward = {"query": d_k, "key": d_k, "value": d_v, "query_key_value": 2 * d_k + d_v}
        for name, size in inward.items():
            setattr(self, name, Projection(config.num_heads * size, ("embed", "heads")))
        self.output = Projection(config.d_model, ("heads", "embed"))

    def queries(self, x: Float[Array, "b q d_model"]) -> Float[Array, "b q h d_k"]:
        """The queries of the positions in `x`, split into heads."""
        return self._heads(self.query(x))

    def keys_values(self, x: Float[Array, "b k d_model"]) -> KeysValues:
        """The keys and values of the positions in `x`, split into heads."""
        return self._heads(self.key(x)), self._heads(self.value(x))

    def cached_keys_values(self, x: Float[Array, "b k d_model"]) -> CachedKeysValues:
        """The keys and values of the positions in `x`, as `attend_to_cache` takes them."""
        return _positions_last(*self.keys_values(x))

    def queries_keys_values(
        self, x: Float[Array, "b t d_model"]
    ) -> tuple[Float[Array, "b t h d_k"], CachedKeysValues]:
        """`queries` and `cached_keys_values` in one product, with what `join_projections` gives."""
        d_k = self.config.key_size
        heads = self._heads(self.query_key_value(x))
        query, key, value = jnp.split(heads, [d_k, 2 * d_k], axis=-1)
        return query, _positions_last(key, value)

    def attend_to_cache(
        self,
        queries: Float[Array, "b q h d_k"],
        keys_values: CachedKeysValues,
        mask: Bool[Array, "b #h #q k"],
    ) -> Float[Array, "b q d_model"]:
        """`attend`, in decoding."""
        return self.output(merge_heads(cached_attention(queries, *keys_values, mask)))

    def attend(
        self,
        x: Float[Array, "b q d_model"],
        keys_values: KeysValues,
        mask: Bool[Array, "b #h #q k"] | SegmentMask,
        first_row: FirstRow = None,
    ) -> Float[Array, "b q d_model"]:
        """Let the positions in `x` attend to projected keys and values, where `mask` is True."""
        query = self.queries(x)
        if self.is_mutable_collection("intermediates"):  # someone wants to look
            whole = mask.whole() if isinstance(mask, SegmentMask) else mask
            self.sow("intermediates", "weights", attention_weights(query, keys_values[0], whole))
        heads = scaled_dot_product_attention(
            query,
            *keys_values,
            mask,
            dropout_rate=self.config.attention_dropout_rate,
            dropout_key=dropout_key(self, first_row),
        )
        return self.output(merge_heads(heads))

    def _heads(self, projected: Float[Array, "b t width"]) -> Float[Array, "b t h d"]:
        heads = split_heads(projected, self.config.num_heads)
        return constrain(heads, "batch", "length", "heads", None)

    def __call__(
        self,
        queries: Float[Array, "b q d_model"],
        memory: Float[Array, "b k d_model"],
        mask: Bool[Array, "b #h #q k"] | SegmentMask,
        first_row: FirstRow = None,
    ) -> Float[Array, "b q d_model"]:
        """Let `queries` attend to `memory` (themselves, in self-attention) where `mask` is True."""
        return self.attend(queries, self.keys_values(memory), mask, first_row)


def join_projections(params: dict[str, Any], num_heads: int) -> dict[str, Any]:
    """The parameters for `queries_keys_values`: of each head, the three kernels side by side.

    Args:
      params: of one `MultiHeadAttention`.
      num_heads: h.
    """
    kernels = (params[name]["kernel"] for name in ("query", "key", "value"))
    # Head after head: devices that share out the heads share out the joined kernel in the same way.
    heads = jnp.concatenate([split_heads(kernel, num_heads) for kernel in kernels], axis=-1)
    return {"query_key_value": {"kernel": merge_heads(heads)}, "output": params["output"]}


def _positions_last(
    keys: Float[Array, "b k h d_k"], values: Float[Array, "b k h d_v"]
) -> CachedKeysValues:
    return keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 3, 1)
