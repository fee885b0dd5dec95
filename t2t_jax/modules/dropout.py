"""Dropout where a model's config has it (section 5.4)."""

from typing import TypeAlias

import flax.linen as nn
from jaxtyping import Array, Float, Int

from t2t_jax.functional.dropout import DropoutKey, dropout

FirstRow: TypeAlias = Int[Array, ""] | int | None
"""Where the first row of the arrays at hand stands in the global batch, so that what is dropped
does not depend on how the batch is cut up; None drops nothing."""


def dropout_key(module: nn.Module, first_row: FirstRow) -> DropoutKey | None:
    """A key of a module's own for one use of dropout."""
    return None if first_row is None else DropoutKey(module.make_rng("dropout"), first_row)


class Dropout(nn.Module):
    """Dropout at the model's P_drop (section 5.4)."""

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], first_row: FirstRow
    ) -> Float[Array, "b t d_model"]:
        """Drop elements of `x`."""
        return dropout(x, self.rate, dropout_key(self, first_row))
