"""Positions: added to the embeddings (section 3.5), or given to self-attention."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.config.registry import load_named
from t2t_jax.config.tables import ROTARY_SCALINGS
from t2t_jax.functional.position import rotary_frequencies
from t2t_jax.kernels.attention import DistanceBias
from t2t_jax.modules.named_functions import initializer
from t2t_jax.parallel.axes import named


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
