"""The context of a layer stack: the arguments that every layer gets besides its input."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import flax.linen as nn
from jaxtyping import Array, Bool, Float, Float32, Int

from t2t_jax.errors import UserError
from t2t_jax.functional.dropout import DropoutKey
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.kernels.attention import DistanceBias
from t2t_jax.kernels.choice import XLA_KERNELS, Kernels

Mask: TypeAlias = Bool[Array, "#b #h #q k"] | SegmentMask
"""Which positions may attend to which: True means "may attend"."""


@dataclass(frozen=True, eq=False)  # arrays have no one equality
class Context:
    """The arguments that every layer of a stack gets besides its input, the same for all layers.

    Every field has a default: a layer without a context takes each row for one whole sentence, and
    drops nothing.

    Attributes:
      positions: position of each input within its sentence, from 0; None means the place in its
        row.
      length: a number greater than every position, where positions are added to embeddings.
      mask: which positions may attend to which, in self-attention; None means all to all, and in a
        `Layer` what its stack says, such as that of a decoder, which attends to nothing later.
      rotary: the frequencies with which self-attention turns queries and keys by their positions;
        None means that it does not turn them.
      bias: the function of distances that self-attention adds to its scores; None means none.
      apart: distances of queries and keys in a cache, for `bias`; None where the keys of
        self-attention stand at the places of the queries.
      encoded: the encoder's output, which a decoder attends to.
      encoded_mask: which positions may attend to which positions of the encoder's output; None
        means all to all.
      deterministic: whether dropout is off. If not, every module draws from its own stream of
        `rngs["dropout"]`.
      first_row: number of the arrays' first row in the global batch. Dropout depends on it, and so
        not on how the batch is cut up.
      kernels: the implementations of attention and products for the devices.
    """

    positions: Int[Array, "b t"] | None = None
    length: int = 0
    mask: Bool[Array, "#b #h #t k"] | SegmentMask | None = None
    rotary: Float32[Array, " pairs"] | None = None
    bias: DistanceBias | None = None
    apart: Int[Array, "q k"] | None = None
    encoded: Float[Array, "b s d_model"] | None = None
    encoded_mask: Bool[Array, "#b #h #t s"] | SegmentMask | None = None
    deterministic: bool = True
    first_row: Int[Array, ""] | int = 0
    kernels: Kernels = XLA_KERNELS

    def __post_init__(self) -> None:
        """Refuse arrays that are no masks."""
        for name in ("mask", "encoded_mask"):
            mask: Any = getattr(self, name)
            if isinstance(mask, SegmentMask | None):
                continue
            if mask.dtype != bool or mask.ndim != 4:
                raise UserError(
                    f"{name} is {mask.dtype}{list(mask.shape)}; give a bool array [batch or 1, "
                    "heads or 1, queries, keys], True where a query may attend to a key"
                )

    def dropout_key(self, module: nn.Module) -> DropoutKey | None:
        """Return a key for one use of dropout.

        Args:
          module: the module that uses it; each module has a stream of keys of its own.

        Returns:
          The key; None if dropout is off.
        """
        if self.deterministic:
            return None
        return DropoutKey(module.make_rng("dropout"), self.first_row)


DEFAULT_CONTEXT = Context()
"""The context of a layer that is called without one."""
