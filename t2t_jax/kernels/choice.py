"""The choice of a preset of kernels for the devices of a mesh."""

from typing import Literal

import jax.numpy as jnp
from jax import Device
from jax.sharding import Mesh
from jaxtyping import DTypeLike

from t2t_jax.kernels import bfloat16
from t2t_jax.kernels.cpu import CPU, CPU_BFLOAT16
from t2t_jax.kernels.cudnn import takes_few_queries
from t2t_jax.kernels.gpu import CUDNN_GPU, CUDNN_GPU_FEW_QUERIES, GPU
from t2t_jax.kernels.reference import Kernels
from t2t_jax.kernels.tpu import TPU, TPU_BFLOAT16
from t2t_jax.system.host import instruction_sets, processor_vendor

_BFLOAT16_ON_CPUS = {"avx512_bf16", "amx_bf16"}
"""Instruction sets for bfloat16 matmuls with float32 sums, for which XLA has fast kernels."""


def kernels_of(mesh: Mesh | None, compute_dtype: DTypeLike) -> Kernels:
    """Return the preset of kernels for the devices of a mesh and a compute dtype.

    Args:
      mesh: devices that need not be attached. None means the preset for CPUs, which all devices
        support.
      compute_dtype: dtype of the activations.
    """
    if mesh is None:
        return CPU
    devices = [*mesh.devices.flat]  # `flat` itself can be iterated only once
    platform, is_bfloat16 = devices[0].platform, jnp.dtype(compute_dtype) == jnp.bfloat16
    if platform == "tpu":
        return TPU_BFLOAT16 if is_bfloat16 else TPU
    if platform == "gpu" and all(_capability(device) >= 8 for device in devices):
        return CUDNN_GPU_FEW_QUERIES if all(map(takes_few_queries, devices)) else CUDNN_GPU
    if platform == "gpu":
        return GPU
    return CPU_BFLOAT16 if is_bfloat16 and all(map(_is_bfloat16_cpu, devices)) else CPU


def fast_compute_dtype(mesh: Mesh) -> Literal["float32", "bfloat16"]:
    """Return the dtype in which training and decoding are fastest on the devices of a mesh.

    The dtype is bfloat16 on TPUs, on NVIDIA GPUs of compute capability 8.0 or later, on CPUs
    with AMX, and on AMD CPUs with AVX-512 BF16. On Intel CPUs, AVX-512 BF16 is no faster than
    float32 (`benchmarks/products.py`). Older GPUs are fast in float16, whose gradients need loss
    scaling.
    """
    has_bfloat16 = (
        device.platform == "tpu" or _capability(device) >= 8 or _is_fast_bfloat16_cpu(device)
        for device in mesh.devices.flat
    )
    return "bfloat16" if all(has_bfloat16) else "float32"


def _capability(device: Device) -> float:
    capability = getattr(device, "compute_capability", "")  # AMD GPUs have names such as "gfx942"
    is_nvidia = device.platform == "gpu" and capability[:1].isdigit()
    return float(capability) if is_nvidia else 0


def _is_bfloat16_cpu(device: Device) -> bool:
    has_instructions = not _BFLOAT16_ON_CPUS.isdisjoint(instruction_sets())
    return device.platform == "cpu" and has_instructions and bfloat16.is_supported()


def _is_fast_bfloat16_cpu(device: Device) -> bool:
    has_amx, is_amd = "amx_bf16" in instruction_sets(), processor_vendor() == "AuthenticAMD"
    return (has_amx or is_amd) and _is_bfloat16_cpu(device)
