"""Settings of JAX that change results: those of random numbers are fixed, others are listed.

JAX takes settings from the environment and from `jax.config`. A run is resumed in another shell, on
another cluster or in Colab, where they may differ.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import flax
import jax
from jaxtyping import Array, Key, UInt32

from t2t_jax.parallel.compiler_options import given_flags

_SINCE_0_7 = jax.__version_info__ >= (0, 7)
_DEFAULTS = {
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,  # samples
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_allow_f16_reductions": True,
    "jax_softmax_custom_jvp": False,
    "jax_use_direct_linearize": _SINCE_0_7,
    # What is compiled together, and in which order sums are added up.
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_optimization_level": "UNKNOWN",
    "jax_memory_fitting_level": "O2",
    "jax_compiler_enable_remat_pass": True,
    "jax_use_shardy_partitioner": _SINCE_0_7,
    "flax_fix_rng_separator": False,  # keys of dropout and of initial parameters
}
"""The settings of JAX and Flax that change results, by random numbers or by rounding, with their
defaults. A version that lacks a setting behaves as by its default."""
_VARIABLES = "NVIDIA_TF32_OVERRIDE", "JAX_PALLAS_USE_MOSAIC_GPU"
"""Environment variables that change results and have no such setting."""
_WITHOUT_EFFECT = re.compile("_dump_|device_count|_cache_dir")
"""Flags of XLA that change no result; any other may change the rounding."""


def random_key(seed: int | UInt32[Array, ""]) -> Key[Array, ""]:
    """Return the PRNG key of a seed, of the same kind under any `jax_default_prng_impl`."""
    return jax.random.key(seed, impl="threefry2x32")


@contextmanager
def fixed_random_bits() -> Iterator[None]:
    """Draw the same random numbers under any `jax_threefry_partitionable`, as a decorator too.

    Programs that are traced within keep to it when they are compiled and run.
    """
    with jax.threefry_partitionable(True):
        yield


def result_settings() -> dict[str, str]:
    """Return the settings that change results and are not at their defaults, by name.

    A name is an environment variable, such as "JAX_DEFAULT_MATMUL_PRECISION", or a flag of XLA,
    such as "--xla_allow_excess_precision".
    """
    values = {**jax.config.values, "flax_fix_rng_separator": flax.config.flax_fix_rng_separator}
    found = {
        name.upper(): str(values[name])
        for name, default in _DEFAULTS.items()
        if values.get(name, default) != default
    }
    found |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    for flag in given_flags().split():
        name, _, value = flag.partition("=")
        if not _WITHOUT_EFFECT.search(name):
            found[name] = value or "true"
    return found
