"""Settings of every test: JAX on CPU, checked array annotations, reproducible hypothesis."""

import os

# A test compares exact numbers, which differ between kinds of device; before JAX is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
from jaxtyping import install_import_hook

import t2t_jax.config  # noqa: F401  before the hook: it has no arrays, and refuses types by itself

# Check dtype and shape of every annotated array in the modules that are imported from here on.
# With the "tower", an int fits where a float is annotated, as in Python's typing rules.
install_import_hook(
    "t2t_jax", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)

hypothesis.settings.register_profile(
    "t2t_jax",
    deadline=None,  # the first example of a test may compile
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("t2t_jax")
