"""The norms of the network: layer normalisation, or another norm from the config."""

import flax.linen as nn
from jaxtyping import Array, Float

from t2t_jax.config import NormConfig
from t2t_jax.config.tables import NORMALIZATIONS
from t2t_jax.kernels.choice import NormForm
from t2t_jax.kernels.normalization import layer_norm
from t2t_jax.modules.named_functions import call, learned


class Norm(nn.Module):
    """A normalisation with its learned parameters, such as a scale and a bias.

    Attributes:
      config: the kind, and its epsilon.
      form: the implementation of layer normalisation; see `Kernels`.
    """

    config: NormConfig
    form: NormForm = "plain"

    @nn.compact
    def __call__(self, x: Float[Array, "*t width"]) -> Float[Array, "*t width"]:
        """Normalise the last axis of `x`."""
        entry = NORMALIZATIONS[self.config.kind]
        parameters = learned(self, entry, x.shape[-1])
        if self.config.kind == "layer" and self.form != "plain":
            scale, bias = parameters["scale"], parameters["bias"]
            return layer_norm(x, scale, bias, self.config.epsilon, self.form == "with_products")
        return call(entry, x.shape, x.dtype, x, epsilon=self.config.epsilon, **parameters)
