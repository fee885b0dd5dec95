"""The devices of JAX, an error if there are none, and a warning about an unused GPU."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax

from t2t_jax.errors import UserError, in_one_line, warn
from t2t_jax.system.host import check_threads, keep_libtpu_quiet, processor_name


def all_devices() -> Sequence[Any]:
    """Return the devices of all connected processes.

    Raises:
      UserError: JAX finds no device of the requested platform, or computes in 64 bits, or the
        system's limit on threads is too low.
    """
    _check()
    return jax.devices()


def local_devices() -> Sequence[Any]:
    """Return the devices of this process.

    Raises:
      UserError: as for `all_devices`.
    """
    _check()
    return jax.local_devices()


def hardware_name(devices: Sequence[Any]) -> str:
    """Return the number and the model of some devices of one kind, such as "8 × NVIDIA H200"."""
    first = devices[0]
    model = processor_name() if first.platform == "cpu" else first.device_kind
    return f"{len(devices)} × {model}"


def warn_of_unused_gpu(root: Path = Path("/")) -> None:
    """Warn if this machine has an NVIDIA GPU but JAX uses the CPU by default.

    Args:
      root: the root directory of the system's device files; tests pass another.
    """
    asked = jax.config.values["jax_platforms"]
    if asked or jax.default_backend() != "cpu" or not (root / "dev/nvidia0").exists():
        return
    warn(
        "this machine has a GPU, but JAX computes on the processor, as its plugin for CUDA is "
        f"missing or of another version: pip install 'jax[cuda12]=={jax.__version__}' and start "
        "again, or set JAX_PLATFORMS=cpu to take the processor"
    )


def _check() -> None:
    if jax.config.values["jax_enable_x64"]:
        raise UserError(
            "JAX computes in 64 bits here (JAX_ENABLE_X64), and the models of this program in 32; "
            "unset that variable, or in Python call jax.config.update('jax_enable_x64', False)"
        )
    _start()


@cache
def _start() -> None:
    """Start JAX's platforms, which happens once in a process."""
    check_threads()
    keep_libtpu_quiet()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter where no platform is left
        asked = jax.config.values["jax_platforms"]
        found = in_one_line(error).partition(" (set JAX_PLATFORMS")[0].rstrip(".")
        place = f"no device of JAX_PLATFORMS={asked}" if asked else "no device"
        raise UserError(
            f"JAX finds {place}{found and f' ({found[:300]})'}; unset JAX_PLATFORMS to take what "
            "there is, set it to cpu to use the processor, or install JAX for that platform"
        ) from error
    warn_of_unused_gpu()
