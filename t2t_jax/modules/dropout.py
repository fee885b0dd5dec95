"""Dropout where a model's config has it (section 5.4)."""

import flax.linen as nn
from jaxtyping import Array, Float

from t2t_jax.functional.dropout import dropout
from t2t_jax.modules.context import Context


class Dropout(nn.Module):
    """Dropout at the model's P_drop (section 5.4)."""

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context
    ) -> Float[Array, "b t d_model"]:
        """Drop elements of `x`."""
        return dropout(x, self.rate, context.dropout_key(self))
