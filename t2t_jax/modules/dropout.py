"""Dropout as a module, with a separate stream of keys (section 5.4)."""

import flax.linen as nn
from jaxtyping import Array, Float

from t2t_jax.functional.dropout import dropout
from t2t_jax.kernels.dropout import dropout_found_again
from t2t_jax.modules.context import DEFAULT_CONTEXT, Context


class Dropout(nn.Module):
    """Dropout (section 5.4).

    Attributes:
      rate: the paper's P_drop.
    """

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Set elements of `x` to zero, and scale up the others, unless dropout is off."""
        drop = dropout_found_again if context.kernels.dropout == "found_again" else dropout
        return drop(x, self.rate, context.dropout_key(self))
