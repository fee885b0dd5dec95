"""Embeddings with the output projection (section 3.4), and positions (section 3.5).

Read `modules.stack` before this file, which computes the input of a stack. `functional.position`
implements the position encodings. The next file is `modules.transformer`.
"""

from functools import cache, partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from t2t_jax.config import AttentionConfig, ModelConfig
from t2t_jax.config.tables import ROTARY_SCALINGS
from t2t_jax.functional.position import rotary_frequencies
from t2t_jax.kernels.int8 import Int8Matrix
from t2t_jax.kernels.reference import DistanceBias
from t2t_jax.modules.attention import by_key
from t2t_jax.modules.parameters import initializer, matrix, parameter
from t2t_jax.parallel.axes import constrain
from t2t_jax.plugins import load_named

_loaded = cache(load_named)


class TokenEmbedding(nn.Module):
    """A `[vocab_size, d_model]` matrix for embedding and, if shared, for the output projection.

    Initial values are N(0, 1 / d_model), so that embeddings times sqrt(d_model) have unit variance,
    and so do the logits of unit-variance outputs. If `model.parametrisation` is not standard,
    `model.base_width` replaces d_model.

    Attributes:
      config: sizes and options of the network.
      vocab_size: size of the vocabulary.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        """Create the matrix."""
        shape = self.vocab_size, self.config.d_model
        init = nn.initializers.normal(stddev=self.config.scaling_width**-0.5)
        # The output projection sums over d_model, the last axis, so int8 scales are per token.
        make: Any = partial(matrix, init=init, summed_axis=-1)
        self.embedding = make(self, "embedding", shape, ("vocab", "embed"), None, grows=False)

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d_model"]:
        """Embed tokens; multiply by sqrt(d_model) (section 3.4) if configured."""
        table = self.matrix()
        if isinstance(table, Int8Matrix):
            # Take the rows first, so that only the embeddings of `tokens` are dequantized.
            rows, scales = (jnp.take(x, tokens, axis=0) for x in table)
            embeddings = rows * scales  # [b, t, d_model]
        else:
            embeddings = jnp.take(table, tokens, axis=0)
        # Scale in float32: bfloat16 would round sqrt(d_model) itself.
        embeddings = embeddings.astype(jnp.float32)
        if self.config.embedding_scale != 1:
            embeddings *= self.config.embedding_scale
        return embeddings.astype(self.config.dtype)

    def matrix(self) -> Float[Array, "vocab d_model"] | Int8Matrix:
        """Return the matrix that embeds tokens or computes output logits.

        Devices may split its vocabulary axis, but never `d_model`.
        """
        table = self.embedding
        if isinstance(table, Int8Matrix):
            return Int8Matrix(*(constrain(x, "vocab", "channels") for x in table))
        return constrain(table, "vocab", "channels")


class PositionEncoding(nn.Module):
    """The position encoding of a stack, one of `POSITIONS`.

    The module adds sinusoids or a learned table to the embeddings. Self-attention reads rotary
    frequencies and distance biases from its `Context`.

    Attributes:
      config: sizes and options of the network.
      causal: whether the self-attention of the stack is causal.
    """

    config: ModelConfig
    causal: bool

    def setup(self) -> None:
        """Create the learned parameters, rotary frequencies and bias, as configured."""
        config, encoding = self.config, self.config.positions
        # A table is [positions, d_model]; the parameters of a bias end in heads.
        last_axis = "embed" if encoding.bias is None else "heads"
        params = {}
        for name, declared in encoding.parameters(config).items():
            axes = *("positions" for _ in declared.shape[1:]), last_axis
            params[name] = parameter(self, name, initializer(declared), declared.shape, axes)
        self.table = params["embedding"] if encoding.has_table else None
        self.rotary = self.bias = None
        if encoding.turns:
            scaling = load_named(ROTARY_SCALINGS[config.rotary_scaling])
            divisors = partial(scaling, scale=config.rotary_scale)
            base = config.rotary_base
            self.rotary = rotary_frequencies(config.key_size, base, divisors=divisors)
        if encoding.bias is not None:
            bias = load_named(encoding.bias)
            num_heads, causal = config.num_heads, self.causal
            self.bias = partial(bias, num_heads=num_heads, causal=causal, **params)
            if config.attention.num_maps > num_heads:
                self.bias = partial(_bias_of_maps, self.bias, config.attention)

    def __call__(
        self, x: Float[Array, "b t d_model"], positions: Int[Array, "b t"], length: int
    ) -> Float[Array, "b t d_model"]:
        """Add the encoding of `positions` to `x`.

        A position beyond a learned table gets the last row of the table. Only padding has such
        positions, because `ModelConfig.longest_sentence` limits the tokens.

        Args:
          length: a number greater than all positions.
        """
        config, table = self.config, self.table
        if config.positions.sinusoids is not None:
            sinusoids, first_position = _loaded(config.positions.sinusoids), config.first_position
            # [length, d_model]. The first position is not 0 in M2M100, for example.
            table = sinusoids(first_position + length, config.d_model)[first_position:]
        if table is None:
            return x
        return x + jnp.take(table, positions, axis=0, mode="clip").astype(x.dtype)


def _bias_of_maps(
    bias: DistanceBias, config: AttentionConfig, distances: Int[Array, "q k"]
) -> Float32[Array, "maps q k"]:
    """Repeat the bias of each head for its attention maps, in the order of `by_key`."""
    maps = config.num_maps // config.num_heads
    return by_key(jnp.repeat(bias(distances), maps, axis=0), config, axis=0)
