"""A comparison of the devices' results with those of the same machine's CPU, in float32.

The base model reads 16 x 32 random tokens without padding. Errors are ||x - reference|| /
||reference||, and for the losses of 20 steps the largest difference in relation to the loss. The
searching model is not trained: many tokens are almost as probable as the best one, and after one
token that differs all others differ.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_HIGHEST = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
_CASES: dict[str, tuple[str, dict[str, str]]] = {
    "float32, highest precision": ("float32", _HIGHEST),
    "float32, as JAX rounds it by default": ("float32", {}),
    "bfloat16": ("bfloat16", {}),
}


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    flags = ["--tiny"] * tiny
    with tempfile.TemporaryDirectory() as folder:
        # The CPU takes longest, and works at the same time as the devices.
        cpu = _start(Path(folder, "cpu.npz"), "float32", {"JAX_PLATFORMS": "cpu"}, flags)
        for number, name in enumerate([*_CASES][: 1 if tiny else None]):
            dtype, environment = _CASES[name]
            file = Path(folder, f"{number}.npz")
            _end(_start(file, dtype, environment, flags))
            if cpu is not None:
                _end(cpu)
                cpu, reference = None, _read(Path(folder, "cpu.npz"))
            yield {"table": "beside float32 on the CPU", "computed in": name} | _errors(
                _read(file), reference
            )


def _start(file: Path, dtype: str, environment: dict[str, str], flags: list[str]) -> Any:
    command = [sys.executable, "-m", "on_accelerator.outputs", str(file), dtype, *flags]
    return subprocess.Popen(command, env={**os.environ, **environment})


def _end(process: Any) -> None:
    if process.wait():
        raise SystemExit(f"{' '.join(process.args[2:])} ended with exit code {process.returncode}")


def _read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return dict(arrays)


def _errors(found: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> dict[str, float]:
    """Compute the errors of arrays against the reference; for tokens, the share that is equal."""
    figures = {}
    for name, expected in reference.items():
        if "tokens" in name:
            figures[f"{name} equal"] = float((found[name] == expected).mean())
        elif name == "losses":
            difference = np.abs(found[name] - expected) / expected
            figures["losses of 20 steps"] = float(difference.max())
        else:
            error = np.linalg.norm(found[name] - expected) / np.linalg.norm(expected)
            figures[f"error of {name}"] = float(error)
    return figures
