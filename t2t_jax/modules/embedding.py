"""Embeddings, positions and the output projection (sections 3.4 and 3.5)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.config import ModelConfig
from t2t_jax.functional.position import sinusoidal_positions
from t2t_jax.kernels.int8 import Int8Matrix
from t2t_jax.modules.matrices import matrix
from t2t_jax.parallel.axes import constrain, named


class TokenEmbedding(nn.Module):
    """A `[vocab_size, d_model]` matrix, used as embedding and, when shared, as projection.

    Rows start as N(0, 1 / d_model), so that an embedding times sqrt(d_model) has unit variance and
    a logit of a unit-variance output has unit variance too.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        """Create the matrix."""
        width = self.config.d_model
        self.embedding = matrix(
            self,
            "embedding",
            nn.initializers.normal(stddev=width**-0.5),
            (self.vocab_size, width),
            ("vocab", "embed"),
            None,
            summed_axis=-1,  # the output projection sums over d_model
        )

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d_model"]:
        """The embeddings of `tokens`, times sqrt(d_model) (section 3.4)."""
        rows = jax.tree.map(lambda x: jnp.take(x, tokens, axis=0), self.matrix())
        if isinstance(rows, Int8Matrix):
            rows = rows.values * rows.scales
        rows = rows.astype(jnp.float32)
        scale = math.sqrt(self.config.d_model)
        return (rows * scale).astype(self.config.compute_dtype)

    def matrix(self) -> Float[Array, "vocab d_model"] | Int8Matrix:
        """The matrix, not split over devices along `d_model`, as both of its uses need it."""
        return jax.tree.map(lambda x: constrain(x, "vocab", "channels"), self.embedding)


class PositionEncoding(nn.Module):
    """Adds positions to embeddings: fixed sinusoids, or a learned table (Table 3, row E)."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], positions: Int[Array, "b t"], length: int
    ) -> Float[Array, "b t d_model"]:
        """Add to `x` the encoding of `positions`, all of which are below `length`.

        Beyond a learned table lies only padding (`ModelConfig.longest_sentence` is its limit),
        which gets the last row.
        """
        config = self.config
        if config.position == "sinusoidal":
            table = sinusoidal_positions(length, config.d_model)
        else:
            init = named(nn.initializers.normal(config.d_model**-0.5), "positions", "embed")
            table = self.param("embedding", init, (config.max_positions, config.d_model))
        return x + jnp.take(table, positions, axis=0, mode="clip").astype(x.dtype)
