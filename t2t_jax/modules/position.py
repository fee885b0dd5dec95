"""Positions: added to the embeddings (section 3.5), or given to self-attention."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import RELATIVE_BUCKETS
from t2t_jax.functional.position import (
    alibi_bias,
    relative_position_buckets,
    rotary_frequencies,
    sinusoidal_positions,
    tensor2tensor_sinusoids,
)
from t2t_jax.kernels.attention import DistanceBias
from t2t_jax.parallel.axes import named

_SINUSOIDS = {
    "sinusoidal": sinusoidal_positions,
    "sinusoidal_t2t": tensor2tensor_sinusoids,
}


class PositionEncoding(nn.Module):
    """The positions of a stack of layers, in the one way of several that `config` chooses.

    Sinusoids and a learned table are added to the embeddings. Rotary positions, ALiBi and the
    learned bias of T5 concern self-attention alone: the layers find them in their `Context`.

    Attributes:
      config: sizes and options of the network.
      causal: whether the positions of the stack attend to no later ones.
    """

    config: ModelConfig
    causal: bool

    def setup(self) -> None:
        """Create the table, if the positions are learned."""
        config = self.config
        init = nn.initializers.normal(config.d_model**-0.5)
        if config.position == "learned":
            shape = config.num_positions, config.d_model
            self.embedding = self.param("embedding", named(init, "positions", "embed"), shape)
        elif config.position == "relative_bias":
            shape = RELATIVE_BUCKETS, config.num_heads
            self.embedding = self.param("embedding", named(init, "positions", "heads"), shape)

    def __call__(
        self, x: Float[Array, "b t d_model"], positions: Int[Array, "b t"], length: int
    ) -> Float[Array, "b t d_model"]:
        """Add to `x` the encoding of `positions`, all of which are below `length`.

        Beyond a learned table lies only padding (`ModelConfig.longest_sentence` is its limit),
        which gets the last row.
        """
        config = self.config
        if config.position == "learned":
            table = self.embedding
        elif config.position in _SINUSOIDS:
            first = config.first_position
            table = _SINUSOIDS[config.position](first + length, config.d_model)[first:]
        else:
            return x
        return x + jnp.take(table, positions, axis=0, mode="clip").astype(x.dtype)

    def rotary_frequencies(self) -> Float32[Array, " pairs"] | None:
        """The frequencies with which self-attention turns queries and keys, or None."""
        config = self.config
        if config.position != "rotary":
            return None
        return rotary_frequencies(
            config.key_size,
            config.rotary_base,
            scale=config.rotary_scale,
            scaling=config.rotary_scaling,
        )

    def bias(self) -> DistanceBias | None:
        """What self-attention adds to its scores by distance, or None."""
        config = self.config
        if config.position == "alibi":
            return partial(alibi_bias, num_heads=config.num_heads)
        if config.position == "relative_bias":
            return partial(_learned_bias, self.embedding, self.causal)
        return None


def _learned_bias(
    table: Float[Array, "buckets h"], causal: bool, distances: Int[Array, "q k"]
) -> Float32[Array, "h q k"]:
    """The number that each head has learned for the bucket of a distance (Raffel et al. 2020)."""
    buckets = relative_position_buckets(distances, len(table), bidirectional=not causal)
    return jnp.take(table, buckets, axis=0).transpose(2, 0, 1)
