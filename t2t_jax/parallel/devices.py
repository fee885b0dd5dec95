"""The devices of JAX and their memory, with errors if devices or memory are missing."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import jax
from jax.sharding import Mesh

from t2t_jax.errors import UserError, in_one_line, warn
from t2t_jax.system.host import check_threads, keep_libtpu_quiet, processor_name, usable_host_memory


def all_devices() -> Sequence[jax.Device]:
    """Return the devices of all connected processes.

    Raises:
      UserError: JAX finds no device of the requested platform or computes in 64 bits, or the
        system limit on threads is too low.
    """
    _check()
    return jax.devices()


def local_devices() -> Sequence[jax.Device]:
    """Return the devices of this process."""
    _check()
    return jax.local_devices()


def hardware_name(devices: Sequence[jax.Device]) -> str:
    """Return the number and model of devices of one kind, such as "8 × NVIDIA H200"."""
    first = devices[0]
    model = processor_name() if first.platform == "cpu" else first.device_kind
    return f"{len(devices)} × {model}"


def warn_of_unused_gpu(root: Path = Path("/")) -> None:
    """Warn if this machine has an NVIDIA GPU but JAX uses the CPU by default.

    Args:
      root: the parent of `dev/`; tests pass another directory.
    """
    platforms = jax.config.values["jax_platforms"]
    if platforms or jax.default_backend() != "cpu" or not (root / "dev/nvidia0").exists():
        return
    warn(
        "this machine has a GPU, but JAX computes on the CPU, because its CUDA plugin is missing "
        f"or has another version: pip install 'jax[cuda12]=={jax.__version__}' and start "
        "again, or set JAX_PLATFORMS=cpu to use the CPU"
    )


def _check() -> None:
    if jax.config.values["jax_enable_x64"]:
        raise UserError(
            "JAX computes in 64 bits (JAX_ENABLE_X64), but the models of this program need 32; "
            "unset that variable, or in Python call jax.config.update('jax_enable_x64', False)"
        )
    _start()


@cache
def _start() -> None:
    """Initialize the platforms of JAX, once per process."""
    check_threads()
    keep_libtpu_quiet()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # AssertionError: no platform is left
        platforms = jax.config.values["jax_platforms"]
        reason = in_one_line(error).partition(" (set JAX_PLATFORMS")[0].rstrip(".")
        missing = f"no device of JAX_PLATFORMS={platforms}" if platforms else "no device"
        raise UserError(
            f"JAX finds {missing}{reason and f' ({reason[:300]})'}; unset JAX_PLATFORMS to use "
            "any device, set it to cpu to use the CPU, or install JAX for that platform"
        ) from error
    warn_of_unused_gpu()


LESS_MEMORY = (
    "lower parallel.tokens_per_device (or data.source_tokens_per_step and "
    "data.target_tokens_per_step), set parallel.remat='layer' and parallel.loss_chunks=8, "
    "or shard the parameters with parallel.fsdp (or make the model smaller)"
)
"""Advice in errors about training that needs too much memory."""

_LESS_TO_DECODE = "lower decoding.tokens_per_batch, decoding.beam_size or decoding.max_extra_length"
# The words of XLA for an allocation before a program starts, and for one within a program.
_EXHAUSTED = re.compile("RESOURCE_EXHAUSTED|Out of memory")


@contextmanager
def within_memory(*, decoding: bool = False) -> Iterator[None]:
    """Turn an out-of-memory exception within the context into a one-line `UserError`.

    Args:
      decoding: True gives advice for decoding, False for training.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and not _EXHAUSTED.search(str(error)):
            raise
        remedy = _LESS_TO_DECODE if decoding else LESS_MEMORY
        reason = in_one_line(str(error).split("\n")[0])[:200]
        raise UserError(f"out of memory{f' ({reason})' if reason else ''}; {remedy}") from error


def memory_of_a_device(mesh: Mesh) -> int | None:
    """Return the bytes that a program may use on each device, or None if unknown.

    CPU devices of a process share the free memory of the host.
    """
    devices = mesh.local_devices
    if devices[0].platform != "cpu":
        return attached_memory(devices[0])
    usable = usable_host_memory()
    return None if usable is None else usable // len(devices)


def attached_memory(device: jax.Device) -> int | None:
    """Return the memory in bytes that a device reports; None for a described topology."""
    return _memory_stats(device).get("bytes_limit")


def peak_memory(devices: Sequence[jax.Device]) -> int | None:
    """Return the peak memory in bytes over all devices, or None if no device reports it."""
    peaks = [_memory_stats(device).get("peak_bytes_in_use") for device in devices]
    return max((peak for peak in peaks if peak is not None), default=None)


def _memory_stats(device: jax.Device) -> dict[str, int]:
    with suppress(jax.errors.JaxRuntimeError):
        return device.memory_stats() or {}
    return {}


def gib(size: int | None) -> str:
    """Format a number of bytes in GiB; None means unknown."""
    return "not known" if size is None else f"{size / 2**30:,.1f} GiB"
