"""Multi-head attention (section 3.2.2)."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from t2t_jax.config import ModelConfig
from t2t_jax.functional.attention import merge_heads, scaled_dot_product_attention, split_heads

# Of the positions attended to, whose number differs from use to use: "_" binds no name.
KeysValues = tuple[Float[Array, "b _ h d_k"], Float[Array, "b _ h d_v"]]


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The projections have no biases, as in the original. Each holds all heads side by side: the
    query kernel is `[d_model, num_heads * d_k]`, the output kernel `[num_heads * d_v, d_model]`.
    """

    config: ModelConfig

    def setup(self) -> None:
        """Create the four projections."""
        config = self.config
        widths = {
            "query": config.num_heads * config.key_size,
            "key": config.num_heads * config.key_size,
            "value": config.num_heads * config.value_size,
            "output": config.d_model,
        }
        for name, width in widths.items():
            projection = nn.Dense(
                width,
                use_bias=False,
                dtype=jnp.dtype(config.compute_dtype),
                kernel_init=nn.initializers.glorot_uniform(),
            )
            setattr(self, name, projection)

    def keys_values(self, x: Float[Array, "b k d_model"]) -> KeysValues:
        """The keys and values of the positions in `x`, split into heads."""
        heads = self.config.num_heads
        return split_heads(self.key(x), heads), split_heads(self.value(x), heads)

    def attend(
        self,
        x: Float[Array, "b q d_model"],
        keys_values: KeysValues,
        mask: Bool[Array, "b #h #q k"],
        *,
        deterministic: bool,
    ) -> Float[Array, "b q d_model"]:
        """Let the positions in `x` attend to projected keys and values, where `mask` is True."""
        dropout = self.config.attention_dropout_rate > 0 and not deterministic
        heads = scaled_dot_product_attention(
            split_heads(self.query(x), self.config.num_heads),
            *keys_values,
            mask,
            dropout_rate=self.config.attention_dropout_rate,
            dropout_key=self.make_rng("dropout") if dropout else None,
        )
        return self.output(merge_heads(heads))

    def __call__(
        self,
        queries: Float[Array, "b q d_model"],
        memory: Float[Array, "b k d_model"],
        mask: Bool[Array, "b #h #q k"],
        *,
        deterministic: bool,
    ) -> Float[Array, "b q d_model"]:
        """Let `queries` attend to `memory` (themselves, in self-attention) where `mask` is True."""
        return self.attend(queries, self.keys_values(memory), mask, deterministic=deterministic)
