"""Find this machine's GPUs without JAX, which would take memory on each of them."""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_CUDA, _ROCM = "CUDA_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_PLATFORMS = {"gpu", "cuda", "rocm"}  # JAX's names for GPUs
_SECONDS_TO_LIST = 60
_LISTED = re.compile(r"GPU (\d+): |\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_NVIDIA, _AMD = "proc/driver/nvidia/gpus", "sys/class/kfd/kfd/topology/nodes"


class Gpus(NamedTuple):
    """The GPUs available to processes of this machine."""

    names: tuple[str, ...] = ()
    """The names of the GPUs, as `variable` takes them."""
    variable: str = _CUDA
    """The variable of the environment that lists the GPUs that a process sees."""
    source: str = ""
    """The source of the names, for errors."""


def find_gpus(root: Path = Path("/")) -> Gpus:
    """Find the GPUs that a process in this environment would see, or their parts (MIG).

    They are the GPUs that an environment variable names, or else those that `nvidia-smi` lists, or
    else those that the drivers of NVIDIA or AMD show below `root`. There are none if JAX_PLATFORMS
    is set and names no GPU.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not _PLATFORMS & {*platforms.split(",")}:
        return Gpus()
    for variable in (_CUDA, *_ROCM):
        if variable in os.environ:
            named = [name.strip() for name in os.environ[variable].split(",")]
            none = "", "-1", "NoDevFiles"  # the last one is Slurm's
            return Gpus(tuple(name for name in named if name not in none), variable, variable)
    if listed := _listed():
        return Gpus(listed, _CUDA, "nvidia-smi -L")
    if indices := _indices(len([*(root / _NVIDIA).glob("*")])):
        return Gpus(indices, _CUDA, f"/{_NVIDIA}")
    nodes = (path.read_text().strip() for path in (root / _AMD).glob("*/gpu_id"))
    count = sum(node not in ("", "0") for node in nodes)  # a processor is a node with the id 0
    return Gpus(_indices(count), _ROCM[0], f"/{_AMD}")


def _listed() -> tuple[str, ...]:
    """Return the GPUs that `nvidia-smi` lists: the index of each, or the names of its parts."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS_TO_LIST,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # nvidia-smi is missing, or finds no driver
        return ()
    parts: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        if match := _LISTED.match(line):
            index, part = match.groups()
            if index is not None:
                parts[index] = []
            elif parts:
                parts[next(reversed(parts))].append(part)
    return tuple(name for index, named in parts.items() for name in named or [index])


def _indices(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
