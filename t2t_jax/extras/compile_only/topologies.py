"""The devices that `--compile-only` compiles for, which may be absent.

XLA compiles for an absent GPU from a description, by which it chooses tiles, fusions and kernels.
The figures here are from NVIDIA's data sheets and the CUDA programming guide.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import jax
from jax.experimental import topologies

from t2t_jax.errors import UserError, did_you_mean, needs_extra
from t2t_jax.parallel.devices import all_devices
from t2t_jax.parallel.hardware import CHIPS


@dataclass(frozen=True)
class GpuTarget:
    """The properties of a GPU type that XLA needs to compile for it."""

    kind: str
    """Driver's name of the GPU: the key in `CHIPS`, which has its memory and peak rates."""
    capability: tuple[int, int]
    """Compute capability: major and minor number."""
    multiprocessors: int
    lanes: int
    """Float32 units of each multiprocessor."""
    shared_bytes: int
    """Shared memory of each multiprocessor. From compute capability 8.0 on, a block may use all but
    1 KiB of it."""
    cache_bytes: int
    """Size of the L2 cache."""
    clock_ghz: float
    """Maximum clock rate."""
    links: int
    """Number of NVLinks to other GPUs of the host."""
    threads: int = 2048
    """Maximum resident threads of each multiprocessor."""


_KIB, _MIB = 1 << 10, 1 << 20
GPU_TARGETS = {
    "t4": GpuTarget("Tesla T4", (7, 5), 40, 64, 64 * _KIB, 4 * _MIB, 1.59, 0, threads=1024),
    "a100": GpuTarget("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 164 * _KIB, 40 * _MIB, 1.41, 12),
    "h100": GpuTarget("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 228 * _KIB, 50 * _MIB, 1.98, 18),
    "h200": GpuTarget("NVIDIA H200", (9, 0), 132, 128, 228 * _KIB, 50 * _MIB, 1.98, 18),
    "b200": GpuTarget("NVIDIA B200", (10, 0), 148, 128, 228 * _KIB, 126 * _MIB, 1.965, 18),
}
"""GPUs that XLA can compile for, by their names in `--compile-only`."""

_TEMPLATE = """\
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
  dnn_version: "9.10.0"
  device_interconnect_info {{ active_links: {links} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{kind}"
"""

_EXAMPLES = "v5e:4x4 or v5p:4x4x4 for TPUs, h200:8 or h100:2x8 (hosts x devices) for GPUs"
_GPUS = re.compile(rf"({'|'.join(GPU_TARGETS)}):(?:(\d{{1,4}})x)?(\d{{1,4}})")
_TPUS = re.compile(r"v\d|tpu|$")
_SLICES = re.compile(r"(?:(v6e)|v5e|v5litepod)-(\d{1,4})")
"""Names of slices in Google Cloud, which end in the number of chips."""


def devices_of(topology: str) -> list[jax.Device]:
    """Return the devices of a topology, which may be absent.

    Args:
      topology: a TPU generation and a shape (`v5e:4x4`), or a slice (`v5litepod-16`); a GPU and a
        number of devices (`h200:8`), or of hosts and devices per host (`h100:2x8`); "" for the
        devices of this machine.
    """
    if not topology:
        return list(all_devices())
    device_type = topology.partition(":")[0].lower()
    is_gpu = device_type in GPU_TARGETS
    if not is_gpu and not _TPUS.match(device_type):
        raise UserError(
            f"--compile-only {topology:.80} names an unknown device; GPUs are "
            f"{', '.join(GPU_TARGETS)}, as in h200:8; TPUs are v4, v5e, v5p, v6e, as in v5e:4x4; "
            + did_you_mean(device_type, GPU_TARGETS, "choose the one most like yours")
        )
    _check_compiler(topology, is_gpu)
    # No program runs here, so leave accelerators and their lock to other processes. JAX writes
    # programs for absent devices to its compilation cache, but cannot read them back.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        description = _gpus(topology) if is_gpu else _tpus(topology)
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"--compile-only {topology} is not a valid topology ({reason}); try {_EXAMPLES}"
        ) from error
    return list(description.devices)


def _check_compiler(topology: str, is_gpu: bool) -> None:
    extra, package = ("cuda13", "jax-cuda13-plugin") if is_gpu else ("tpu", "libtpu")
    if is_gpu:
        with suppress(PackageNotFoundError):
            version("jax-cuda12-plugin")
            extra, package = "cuda12", "jax-cuda12-plugin"
    with needs_extra(extra, f"--compile-only {topology}"):
        installed = version(package)
    if is_gpu and installed.split(".")[:2] != jax.__version__.split(".")[:2]:
        raise UserError(
            f"--compile-only {topology} needs {package} for jax {jax.__version__}, but "
            f"{installed} is installed; install the right one with pip install 'jax[{extra}]'"
        )


def _gpus(topology: str) -> topologies.TopologyDescription:
    match = _GPUS.fullmatch(topology.lower())
    if not match:
        raise ValueError("a GPU needs a number of devices, or of hosts and devices")
    name, hosts, devices = match.groups()
    shape = f"1x{int(hosts or 1)}x{int(devices)}"
    if "0" in shape.split("x"):
        raise ValueError("the number of devices must be at least 1")
    return topologies.get_topology_desc(
        platform="cuda", target_config=_target_config(GPU_TARGETS[name]), topology=shape
    )


def _tpus(topology: str) -> topologies.TopologyDescription:
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    if match := _SLICES.fullmatch(topology.lower()):
        topology = f"{match[1] or 'v5e'}:{_slice_shape(int(match[2]))}"
    sizes = re.findall(r"\d+", topology.partition(":")[2])
    # A host has 2 x 2 chips, or fewer in smaller topologies.
    host_shape = [min(2, int(size)) for size in [*sizes, "2", "2"][:2]] + [1]
    return topologies.get_topology_desc(
        platform="tpu", topology_name=topology, chips_per_host_bounds=host_shape
    )


def _slice_shape(chips: int) -> str:
    """Return the topology of a v5e or v6e slice, such as 4x4 for 16 chips."""
    exponent = chips.bit_length() - 1
    if chips != 1 << exponent or chips > 256 or chips == 2:
        raise ValueError("a slice has 1, 4, 8, 16, 32, 64, 128 or 256 chips")
    return f"{1 << exponent // 2}x{1 << (exponent + 1) // 2}"


def _target_config(target: GpuTarget) -> str:
    """Describe a GPU in the text format of XLA's `GpuTargetConfigProto`."""
    chip = CHIPS[target.kind]
    return _TEMPLATE.format(
        memory_bytes=chip.memory_bytes,
        memory_bytes_per_s=int(chip.memory_bytes_per_s),
        **vars(target),
        features="ACCELERATED_FEATURES" if target.capability >= (9, 0) else "NONE",
        optin=target.shared_bytes - (1024 if target.capability >= (8, 0) else 0),
    )
