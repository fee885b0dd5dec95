"""The devices and their highest rates of matrix products and of copies of memory.

Products are of 8,192 x 8,192 random numbers (2,048 on a CPU). A copy on the device counts the bytes
that are read and those that are written.
"""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import measuring
import workload
from workload import jax

from on_accelerator.sizes import repeats
from t2t_jax.config import ParallelConfig
from t2t_jax.parallel.mesh import make_mesh

_PRODUCTS = {
    "float32": ("float32", "highest"),
    "float32, as JAX rounds it by default (TF32 on NVIDIA GPUs)": ("float32", None),
    "bfloat16": ("bfloat16", None),
}


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    device = jax.devices()[0]
    yield {
        "table": "machine",
        "devices": f"{jax.device_count()} x {device.device_kind}",
        "platform": device.platform,
        "platform_version": " ".join(device.client.platform_version.split()),
        "compute_capability": getattr(device, "compute_capability", None),
        "device_gib": _memory(device),
        **measuring.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("jax", "jaxlib", "flax", "optax")},
    }
    mesh = make_mesh(ParallelConfig())
    for name, (dtype, precision) in _PRODUCTS.items():
        call, flops = measuring.matrix_product(mesh, dtype, precision=precision)
        seconds = measuring.in_turns({name: call}, repeats(tiny))[name]
        peak = flops / min(seconds)
        yield {"table": "matrix products", "product": name, "tflops_per_second": peak / 1e12}
    for name, (call, size) in _copies(tiny).items():
        seconds = measuring.in_turns({name: call}, repeats(tiny))[name]
        yield {"table": "copies", "copy": name, "gigabytes_per_second": size / min(seconds) / 1e9}


def _memory(device: Any) -> float | None:
    statistics = device.memory_stats()
    return statistics["bytes_limit"] / 2**30 if statistics else None


def _copies(tiny: bool) -> dict[str, tuple[Callable[[], object], int]]:
    """Return functions that copy arrays, each with the bytes that it moves."""
    host = workload.np.ones((4 if tiny else 256) * 2**20, workload.np.float32)
    there = jax.device_put(host)
    add = jax.jit(lambda x: x + 1)

    def fetch() -> object:
        return jax.device_get(add(there))  # a new array, as JAX caches an old one on the host

    return {
        "on the device": (lambda: add(there).block_until_ready(), 2 * host.nbytes),
        "host to device": (lambda: jax.device_put(host).block_until_ready(), host.nbytes),
        "device to host, after a copy on the device": (fetch, host.nbytes),
    }
