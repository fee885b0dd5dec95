"""Settings of JAX that change results, and the XLA options for programs on accelerators.

JAX takes settings from the environment and from `jax.config`. A run is resumed in another shell, on
another cluster or in Colab, where they may differ. Those of random numbers are fixed, others are
listed.

XLA options are passed with the program to compile, so the environment and other programs stay
unchanged, and `--compile-only` uses the same ones. Options in the user's `XLA_FLAGS` or
`LIBTPU_INIT_ARGS` are left out here, so the user's values take effect.
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


# Measured by `--compile-only`, 25 November 2026, jax 0.12.0.1: the least time of a step of
# configs/big.py on eight devices, 24,576 + 24,576 positions on each, one pass.
#
# Left out, as XLA's default is as good or better:
#   xla_gpu_all_reduce_combine_threshold_bytes and those of all-gather and reduce-scatter (30 MiB):
#     with 8 MiB big takes 0.1 ms less on H200 under fsdp, in 56 transfers in place of 22, and the
#     bound does not count what it costs to start one; base gains nothing. 1 GiB, near to what
#     guides recommend, takes 0.9 ms more: nothing can begin before everything is there.
#   xla_gpu_pipeline_all_gather and siblings: they pipeline loops, and layers are no loop here.
# XLA's default already: xla_gpu_enable_command_buffer (kernels, products, cuDNN) with
#   xla_gpu_graph_min_graph_size=5, and xla_gpu_enable_highest_priority_async_stream.
# TPUs: async collective fusion (xla_tpu_enable_async_collective_fusion and its siblings),
#   xla_tpu_enable_data_parallel_all_reduce_opt and xla_tpu_enable_latency_hiding_scheduler leave
#   the figures of a program for v5e:2x2 under fsdp as they are (base, two layers, jax 0.10.2). Nor
#   do they, xla_tpu_enable_async_collective_fusion_fuse_all_reduce, xla_enable_async_all_reduce or
#   xla_tpu_enable_all_reduce_native_decomposition (libtpu 0.0.50) take apart the one all-reduce of
#   the gradients of a step on v5e:2x2, which no kernel runs beside.
OPTIONS: dict[str, dict[str, bool | int]] = {
    "gpu": {
        # It starts transfers before the work that can run beside them (docs.jax.dev, GPU
        # performance tips). XLA does so by itself for H200 and B200, not for A100: there, with
        # parallel.fsdp=8, 151.4 in place of 154.4 ms, 0.2 in place of 3.2 ms of them waiting.
        "xla_gpu_enable_latency_hiding_scheduler": True,
        # It leaves the products of queries, keys and values three. XLA (32 MB) makes one of them
        # where the weights are small, and copies the three results out of it: base on one H200
        # takes 19.9 in place of 20.5 ms.
        "xla_gpu_dot_merger_threshold_mb": 0,
        # It takes products from cuBLAS, whose calls add biases, compute max(0, x) and add up what
        # several make. XLA's own, its choice where it cannot time both, do not, and the gradient
        # of a matrix takes two (NVIDIA's images for JAX have set it too). Base on one H200 takes
        # 17.8 in place of 19.2 ms.
        "xla_gpu_enable_triton_gemm": False,
    },
}
"""The options of each platform that XLA does not set by default, each with its effect, its source
and the measured gain above it."""

_FOR_SEVERAL = {"xla_gpu_enable_latency_hiding_scheduler"}
"""The options that are left out for a single device."""

_FLAG_VARIABLES = "XLA_FLAGS", "LIBTPU_INIT_ARGS"


def given_flags() -> str:
    """Return the flags of XLA in the environment, or in the file that a variable names."""
    texts = [os.environ.get(name, "").strip() for name in _FLAG_VARIABLES]
    for n, text in enumerate(texts):
        if text and not text.startswith("-"):  # XLA's rule for the name of a file
            with suppress(OSError):
                texts[n] = Path(text).read_text("utf-8", errors="replace")
    return " ".join(texts)


def compiler_options(mesh: Mesh) -> dict[str, bool | int]:
    """Return the compiler options of a training step on a mesh, by name.

    There are none for CPUs. Searches use XLA's defaults.

    Args:
      mesh: the devices, which may be described ones.
    """
    [device, *others] = mesh.devices.flat
    user_flags = set(re.findall(r"(?:^|\s)--?(\w+)", given_flags()))
    local = mesh.local_devices[0] if mesh.local_devices else device
    return {
        name: value
        for name, value in OPTIONS.get(device.platform, {}).items()
        if (others or name not in _FOR_SEVERAL)
        and name not in user_flags
        and _is_known(name, value, local)
    }


@cache
def _is_known(name: str, value: bool | int, device: jax.Device) -> bool:
    """Return whether the installed XLA takes an option, as flags come and go with versions."""
    x = jax.ShapeDtypeStruct((), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(jnp.negative, compiler_options={name: value}).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        if "compile option" not in str(error):
            raise
        return False
    return True


def described_options(mesh: Mesh) -> str:
    """Return the training options on a mesh as command-line flags, or an empty text."""
    return " ".join(f"--{name}={str(v).lower()}" for name, v in compiler_options(mesh).items())
