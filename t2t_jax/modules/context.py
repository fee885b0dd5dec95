"""What every layer of a stack gets besides its input."""

from dataclasses import dataclass
from typing import TypeAlias

import flax.linen as nn
from jaxtyping import Array, Bool, Float, Int

from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.attention import AttentionKernel

Mask: TypeAlias = Bool[Array, "b #h #q k"] | SegmentMask
"""Who may attend to whom: True means "may attend"."""


@dataclass(frozen=True)
class Context:
    """What every layer of a stack gets besides its input, the same for all of them.

    Attributes:
      positions: where each input stands within its sentence, from 0.
      length: more than the greatest of them.
      mask: who may attend to whom, in self-attention.
      encoded: the encoder's output, which a decoder attends to.
      encoded_mask: who may attend to which of its positions.
      deterministic: no dropout. Otherwise a module draws from its own stream of `rngs["dropout"]`.
      first_row: where the first row of the arrays at hand stands in the global batch, so that what
        is dropped does not depend on how the batch is cut up.
      kernel: what computes attention on the devices at hand.
    """

    positions: Int[Array, "b t"]
    length: int
    mask: Bool[Array, "b #h #t k"] | SegmentMask
    encoded: Float[Array, "b s d_model"] | None = None
    encoded_mask: Bool[Array, "b #h #t s"] | SegmentMask | None = None
    deterministic: bool = True
    first_row: Int[Array, ""] | int = 0
    kernel: AttentionKernel = "xla"

    def dropout_key(self, module: nn.Module) -> DropoutKey | None:
        """A key of a module's own for one use of dropout; None where nothing is dropped."""
        if self.deterministic:
            return None
        return DropoutKey(module.make_rng("dropout"), self.first_row)
