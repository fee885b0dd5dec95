"""Descriptions of GPUs, from which XLA compiles programs for them although they are absent.

The numbers are those of NVIDIA's data sheets and of the table of compute capabilities in the CUDA
programming guide. XLA chooses tiles, fusions and kernels by them; nothing is measured on a device.
"""

from dataclasses import dataclass

from t2t_jax.parallel.hardware import CHIPS


@dataclass(frozen=True)
class GpuTarget:
    """The facts on a GPU from which XLA compiles for it."""

    kind: str
    """The name that the driver gives the GPU, by which `CHIPS` has its memory and its peaks."""
    capability: tuple[int, int]
    """The major and minor number of its compute capability."""
    multiprocessors: int
    """The number of multiprocessors."""
    lanes: int
    """The float32 units of each multiprocessor."""
    shared_bytes: int
    """The shared memory of each multiprocessor. A block may use all of it, from compute capability
    8.0 on all but 1 KiB."""
    cache_bytes: int
    """The size of the cache (L2) of the memory that holds arrays."""
    clock_ghz: float
    """The highest clock."""
    links: int
    """The number of NVLinks to the other GPUs of its host."""
    threads: int = 2048
    """The threads that each multiprocessor holds at once."""


_KIB, _MIB = 1 << 10, 1 << 20
GPU_TARGETS = {
    "t4": GpuTarget("Tesla T4", (7, 5), 40, 64, 64 * _KIB, 4 * _MIB, 1.59, 0, threads=1024),
    "a100": GpuTarget("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 164 * _KIB, 40 * _MIB, 1.41, 12),
    "h100": GpuTarget("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 228 * _KIB, 50 * _MIB, 1.98, 18),
    "h200": GpuTarget("NVIDIA H200", (9, 0), 132, 128, 228 * _KIB, 50 * _MIB, 1.98, 18),
    "b200": GpuTarget("NVIDIA B200", (10, 0), 148, 128, 228 * _KIB, 126 * _MIB, 1.965, 18),
}
"""The GPUs that programs can be compiled for, by their names in `--compile-only`."""

_CUDNN = 9, 10, 0
_FORM = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_bytes}
  shared_memory_per_block_optin: {optin}
  threads_per_core_limit: {threads}
  core_count: {multiprocessors}
  fpus_per_core: {lanes}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {memory_bytes_per_s}
  l2_cache_size: {cache_bytes}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory_bytes}
  cuda_compute_capability {{
    major: {capability[0]} minor: {capability[1]} feature_extension: {features}
  }}
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  name: "{kind}"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "{cudnn}"
  device_interconnect_info {{ active_links: {links} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: {dnn[0]} minor: {dnn[1]} patch: {dnn[2]} }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{kind}"
"""


def described_target(target: GpuTarget) -> str:
    """Describe a GPU in the text form of XLA's `GpuTargetConfigProto`."""
    chip = CHIPS[target.kind]
    return _FORM.format(
        memory_bytes=chip.memory_bytes,
        memory_bytes_per_s=int(chip.memory_bytes_per_s),
        **vars(target),
        features="ACCELERATED_FEATURES" if target.capability >= (9, 0) else "NONE",
        optin=target.shared_bytes - (1024 if target.capability >= (8, 0) else 0),
        dnn=_CUDNN,
        cudnn=".".join(map(str, _CUDNN)),
    )
