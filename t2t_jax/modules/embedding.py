"""Embeddings, and the output projection (section 3.4)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t2t_jax.config import ModelConfig
from t2t_jax.kernels.int8 import Int8Matrix
from t2t_jax.modules.matrices import matrix
from t2t_jax.parallel.axes import constrain


class TokenEmbedding(nn.Module):
    """A `[vocab_size, d_model]` matrix, used as embedding and, when shared, as projection.

    Rows start as N(0, 1 / d_model), so that an embedding times sqrt(d_model) has unit variance and
    a logit of a unit-variance output has unit variance too. If `model.parametrisation` is not
    standard, `model.base_width` replaces d_model.
    """

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        """Create the matrix."""
        width = self.config.d_model
        self.embedding = matrix(
            self,
            "embedding",
            nn.initializers.normal(stddev=self.config.scaling_width**-0.5),
            (self.vocab_size, width),
            ("vocab", "embed"),
            None,
            summed_axis=-1,  # the output projection sums over d_model
            grows=False,
        )

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d_model"]:
        """Return the embeddings of `tokens`, times sqrt(d_model) (section 3.4) if configured."""
        rows = jax.tree.map(lambda x: jnp.take(x, tokens, axis=0), self.matrix())
        if isinstance(rows, Int8Matrix):
            rows = rows.values * rows.scales
        rows = rows.astype(jnp.float32)
        if self.config.embedding_scale != 1:
            rows *= self.config.embedding_scale
        return rows.astype(self.config.dtype)

    def matrix(self) -> Float[Array, "vocab d_model"] | Int8Matrix:
        """Return the matrix, not split over devices along `d_model`, as both of its uses need."""
        return jax.tree.map(lambda x: constrain(x, "vocab", "channels"), self.embedding)
