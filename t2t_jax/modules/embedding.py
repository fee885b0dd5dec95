"""Embeddings, and the output projection (section 3.4)."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.config.registry import load_named
from t2t_jax.config.tables import ROTARY_SCALINGS
from t2t_jax.functional.position import rotary_frequencies
from t2t_jax.kernels.attention import DistanceBias
from t2t_jax.kernels.int8 import Int8Matrix
from t2t_jax.modules.matrices import matrix
from t2t_jax.modules.named_functions import initializer
from t2t_jax.parallel.axes import constrain, named


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


class PositionEncoding(nn.Module):
    """The position encoding of a stack of layers, which `config` chooses from `POSITIONS`.

    Sinusoids and a learned table are added to the embeddings. Rotary positions, and a bias that
    depends on distance, affect only self-attention: the layers read them from their `Context`.

    Attributes:
      causal: whether the positions of the stack attend to no later ones.
    """

    config: ModelConfig
    causal: bool

    def setup(self) -> None:
        """Create the learned parameters of the encoding."""
        facts = self.config.positions
        last = "embed" if facts.bias is None else "heads"
        self.learned = {
            name: self.param(
                name,
                named(initializer(one), *("positions" for _ in one.shape[1:]), last),
                one.shape,
            )
            for name, one in facts.parameters(self.config).items()
        }

    def __call__(
        self, x: Float[Array, "b t d_model"], positions: Int[Array, "b t"], length: int
    ) -> Float[Array, "b t d_model"]:
        """Add to `x` the encoding of `positions`, all of which are below `length`.

        Only padding lies beyond a learned table (`ModelConfig.longest_sentence` is its limit), and
        gets the table's last row.
        """
        config = self.config
        if config.positions.has_table:
            table = self.learned["embedding"]
        elif config.positions.sinusoids is not None:
            first = config.first_position
            table = load_named(config.positions.sinusoids)(first + length, config.d_model)[first:]
        else:
            return x
        return x + jnp.take(table, positions, axis=0, mode="clip").astype(x.dtype)

    def rotary_frequencies(self) -> Float32[Array, " pairs"] | None:
        """Return the frequencies with which self-attention rotates queries and keys, or None."""
        config = self.config
        if not config.positions.turns:
            return None
        scaling = load_named(ROTARY_SCALINGS[config.rotary_scaling])
        divisors = partial(scaling, scale=config.rotary_scale)
        return rotary_frequencies(config.key_size, config.rotary_base, divisors=divisors)

    def bias(self) -> DistanceBias | None:
        """Return the function of distances that self-attention adds to its scores, or None."""
        config = self.config
        if config.positions.bias is None:
            return None
        function = load_named(config.positions.bias)
        return partial(function, num_heads=config.num_heads, causal=self.causal, **self.learned)
