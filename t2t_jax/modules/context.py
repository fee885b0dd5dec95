"""The context of a layer stack: the arguments of every layer besides its input."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import flax.linen as nn
from jaxtyping import Array, Bool, Float, Float32, Int

from t2t_jax.errors import UserError
from t2t_jax.functional import dropout, masks
from t2t_jax.kernels import attention, choice

Mask: TypeAlias = Bool[Array, "#b #h #q k"] | masks.SegmentMask
"""Which positions may attend to which: True means "may attend"."""


@dataclass(frozen=True, eq=False)  # arrays have no one equality
class Context:
    """The arguments of every layer of a stack besides its input, the same for all layers.

    Every field has a default: without a context, a layer treats each row as one whole sentence, and
    drops nothing.

    Attributes:
      positions: position of each input within its sentence, from 0; None means the index in its
        row.
      length: a number greater than every position, if positions are added to embeddings.
      mask: which positions may attend to which, in self-attention. None means all to all; in a
        `Layer` it means the mask of its stack, such as a decoder's causal mask.
      rotary: the frequencies with which self-attention rotates queries and keys by their positions;
        None means no rotation.
      bias: the function of distances that self-attention adds to its scores; None means none.
      apart: distances of queries and keys in a cache, for `bias`; None if the keys of
        self-attention have the positions of the queries.
      encoded: the encoder's output, to which a decoder attends.
      encoded_mask: which positions may attend to which positions of the encoder's output; None
        means all to all.
      deterministic: whether dropout is off. If not, every module draws from its stream of
        `rngs["dropout"]`.
      first_row: index of the arrays' first row in the global batch. Dropout depends on it, so it
        does not depend on how the batch is split.
      kernels: the implementations of attention and matmuls for the devices.
    """

    positions: Int[Array, "b t"] | None = None
    length: int = 0
    mask: Bool[Array, "#b #h #t k"] | masks.SegmentMask | None = None
    rotary: Float32[Array, " pairs"] | None = None
    bias: attention.DistanceBias | None = None
    apart: Int[Array, "q k"] | None = None
    encoded: Float[Array, "b s d_model"] | None = None
    encoded_mask: Bool[Array, "#b #h #t s"] | masks.SegmentMask | None = None
    deterministic: bool = True
    first_row: Int[Array, ""] | int = 0
    kernels: choice.Kernels = choice.XLA_KERNELS

    def __post_init__(self) -> None:
        """Refuse arrays that are not masks."""
        for name in ("mask", "encoded_mask"):
            mask: Any = getattr(self, name)
            if isinstance(mask, masks.SegmentMask | None):
                continue
            if mask.dtype != bool or mask.ndim != 4:
                raise UserError(
                    f"{name} is {mask.dtype}{list(mask.shape)}; give a bool array [batch or 1, "
                    "heads or 1, queries, keys], True where a query may attend to a key"
                )

    def dropout_key(self, module: nn.Module) -> dropout.DropoutKey | None:
        """Return a key for one use of dropout.

        Args:
          module: the module that uses it; each module has a separate stream of keys.
        """
        if self.deterministic:
            return None
        return dropout.DropoutKey(module.make_rng("dropout"), self.first_row)


DEFAULT_CONTEXT = Context()
"""The context of a layer that is called without one."""
