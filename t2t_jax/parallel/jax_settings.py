"""JAX settings that change results, and the XLA options of training steps.

JAX settings may differ when a user resumes a run elsewhere. This module fixes the settings of
random numbers and lists all others.

The trainer and `--compile-only` pass the XLA options per compiled program. Options that the user
sets in `XLA_FLAGS` or `LIBTPU_INIT_ARGS` take precedence.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import flax
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import Array, Key, UInt32

_SINCE_0_7 = jax.__version_info__ >= (0, 7)
_DEFAULTS = {
    "jax_random_seed_offset": 0,
    "jax_high_dynamic_range_gumbel": False,  # samples
    "jax_default_matmul_precision": None,
    "jax_numpy_dtype_promotion": "standard",
    "jax_allow_f16_reductions": True,
    "jax_softmax_custom_jvp": False,
    "jax_use_direct_linearize": _SINCE_0_7,
    # These settings change fusion and the order of sums.
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_optimization_level": "UNKNOWN",
    "jax_memory_fitting_level": "O2",
    "jax_compiler_enable_remat_pass": True,
    "jax_use_shardy_partitioner": _SINCE_0_7,
    "flax_fix_rng_separator": False,  # keys of dropout and of initial parameters
}
"""Defaults of the JAX and Flax settings that change random numbers or rounding. A version without a
setting behaves like the default."""
_VARIABLES = "NVIDIA_TF32_OVERRIDE", "JAX_PALLAS_USE_MOSAIC_GPU"
"""Environment variables that change results but have no JAX setting."""
_WITHOUT_EFFECT = re.compile("_dump_|device_count|_cache_dir")
"""XLA flags that change no result; any other flag may change rounding."""


def random_key(seed: int | UInt32[Array, ""]) -> Key[Array, ""]:
    """Return the threefry PRNG key of a seed, under any `jax_default_prng_impl`."""
    return jax.random.key(seed, impl="threefry2x32")


@contextmanager
def fixed_random_bits() -> Iterator[None]:
    """Fix `jax_threefry_partitionable` for programs that JAX traces in this context.

    The function is a context manager and a decorator.
    """
    with jax.threefry_partitionable(True):
        yield


def result_settings() -> dict[str, str]:
    """Return the non-default settings that change results, keyed by name.

    A name is an environment variable, such as "JAX_DEFAULT_MATMUL_PRECISION", or an XLA flag, such
    as "--xla_allow_excess_precision".
    """
    values = {**jax.config.values, "flax_fix_rng_separator": flax.config.flax_fix_rng_separator}
    settings = {
        name.upper(): str(values[name])
        for name, default in _DEFAULTS.items()
        if values.get(name, default) != default
    }
    settings |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    for flag in user_xla_flags().split():
        name, _, value = flag.partition("=")
        if not _WITHOUT_EFFECT.search(name):
            settings[name] = value or "true"
    return settings


# Estimated by `--compile-only` on 25 November 2026 with jax 0.12.0.1: the lower bound on the time
# of a step of configs/big.py on eight devices, with 24,576 + 24,576 positions per device, one pass.
#
# We leave out these options, as the XLA default is as good or better:
#   xla_gpu_all_reduce_combine_threshold_bytes and its siblings for all-gather and reduce-scatter
#     (default 30 MiB): with 8 MiB, big takes 0.1 ms less on H200 under fsdp, in 56 instead of 22
#     transfers, but the bound ignores the cost to start a transfer; base gains nothing. 1 GiB,
#     which guides recommend, takes 0.9 ms more, because transfers start only after all gradients.
#   xla_gpu_pipeline_all_gather and siblings: they pipeline loops, and our layers are not a loop.
# XLA already sets xla_gpu_enable_command_buffer (kernels, matmuls, cuDNN) with
#   xla_gpu_graph_min_graph_size=5, and xla_gpu_enable_highest_priority_async_stream.
# TPUs: async collective fusion (xla_tpu_enable_async_collective_fusion and its siblings),
#   xla_tpu_enable_data_parallel_all_reduce_opt and xla_tpu_enable_latency_hiding_scheduler change
#   nothing in a program for v5e:2x2 under fsdp (base, two layers, jax 0.10.2). These options,
#   xla_tpu_enable_async_collective_fusion_fuse_all_reduce, xla_enable_async_all_reduce and
#   xla_tpu_enable_all_reduce_native_decomposition (libtpu 0.0.50) also do not split the single
#   all-reduce of the gradients of a step on v5e:2x2, during which no kernel runs.
OPTIONS: dict[str, dict[str, bool | int]] = {
    "gpu": {
        # This option starts transfers early, so that they overlap with computation (docs.jax.dev,
        # GPU performance tips). XLA enables it for H200 and B200, but not for A100: there, with
        # parallel.fsdp=8, a step takes 151.4 instead of 154.4 ms and waits 0.2 instead of 3.2 ms.
        "xla_gpu_enable_latency_hiding_scheduler": True,
        # 0 keeps three separate matmuls for queries, keys and values. By default (32 MB) XLA merges
        # small ones into one matmul and then copies the three results: base on one H200 takes 19.9
        # instead of 20.5 ms.
        "xla_gpu_dot_merger_threshold_mb": 0,
        # False uses cuBLAS, whose matmuls fuse biases, max(0, x) and the accumulation of gradients.
        # XLA's Triton matmuls, its choice if it cannot time both, fuse none of these, and need two
        # kernels for the gradient of a matrix. NVIDIA's images for JAX also set this option. Base
        # on one H200 takes 17.8 instead of 19.2 ms.
        "xla_gpu_enable_triton_gemm": False,
    },
}
"""The non-default XLA options of each platform. The comment above an option gives its effect, its
source and the measured gain."""

_FOR_SEVERAL = {"xla_gpu_enable_latency_hiding_scheduler"}
"""The options that `compiler_options` omits on a single device."""

_FLAG_VARIABLES = "XLA_FLAGS", "LIBTPU_INIT_ARGS"


def user_xla_flags() -> str:
    """Return the XLA flags from the environment, or from the file that a variable names."""
    texts = [os.environ.get(name, "").strip() for name in _FLAG_VARIABLES]
    for n, text in enumerate(texts):
        if text and not text.startswith("-"):  # XLA's rule for the name of a file
            with suppress(OSError):
                texts[n] = Path(text).read_text("utf-8", errors="replace")
    return " ".join(texts)


def compiler_options(mesh: Mesh) -> dict[str, bool | int]:
    """Return the compiler options of a training step on a mesh, keyed by name.

    CPUs have no options. Beam search uses the defaults of XLA.

    Args:
      mesh: the devices, which may be a described topology.
    """
    [device, *other_devices] = mesh.devices.flat
    user_options = set(re.findall(r"(?:^|\s)--?(\w+)", user_xla_flags()))
    local_device = mesh.local_devices[0] if mesh.local_devices else device
    return {
        name: value
        for name, value in OPTIONS.get(device.platform, {}).items()
        if (other_devices or name not in _FOR_SEVERAL)
        and name not in user_options
        and _is_known(name, value, local_device)
    }


@cache
def _is_known(name: str, value: bool | int, device: jax.Device) -> bool:
    # Options come and go with versions of XLA, so compile a small program to find out.
    x = jax.ShapeDtypeStruct((), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(jnp.negative, compiler_options={name: value}).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        if "compile option" not in str(error):
            raise
        return False
    return True


def described_options(mesh: Mesh) -> str:
    """Return the compiler options of a training step as command-line flags."""
    return " ".join(f"--{name}={str(v).lower()}" for name, v in compiler_options(mesh).items())
