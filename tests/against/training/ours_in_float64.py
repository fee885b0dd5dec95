"""Train a case by this package in float64, which leaves hardly any roundings to compare.

The package names its dtype `jnp.float32`; here this name means float64.
"""

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
jnp.float32 = jnp.float64

from t2t_jax.config import ModelConfig  # noqa: E402
from tests.against.part import Case  # noqa: E402
from tests.against.training import ours  # noqa: E402
from tests.against.training.part import Result  # noqa: E402

ModelConfig.dtype = property(lambda config: "float64")


def train(case: Case, folder: str) -> Result | dict[str, str]:
    """Return the result of `ours.train`, or an error: errors of this package are differences."""
    try:
        return ours.train(case, folder)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
