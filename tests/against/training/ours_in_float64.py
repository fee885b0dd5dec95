"""Train a case by this package in float64, which leaves hardly any roundings to compare.

The package names its dtype `jnp.float32`; here this name means float64.
"""

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64

from t2t_jax.config import ModelConfig  # noqa: E402
from tests.against.training.ours import train as train  # noqa: E402

ModelConfig.dtype = property(lambda config: "float64")
