"""The settings that configs leave to the start of a run, as the runs of a grid's cells chose them.

A new run chooses the end of its schedule, its compute dtype on "auto", and the size of its passes
(`training.settling`). The first two change results, so the cells of one table must agree on them.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from t2t_jax.config import Config, differences, from_dict

DTYPE = "model.compute_dtype"
"""The field of the compute dtype."""
_END = "training.schedule_steps"
OPEN_FIELDS = DTYPE, "parallel.tokens_per_device", _END
"""The fields that a config may leave open."""
_PRINT_FAST_DTYPE = """
from t2t_jax.config import MeshConfig
from t2t_jax.kernels.choice import fast_compute_dtype
from t2t_jax.parallel.mesh import make_mesh
print(fast_compute_dtype(make_mesh(MeshConfig())))
"""

Settings = Mapping[str, tuple[Any, str]]
"""Settings of a run that change its results, by field: the value that must be equal in all cells of
a table, and the value for readers."""


def settled_fields(asked: Config, run: Config) -> dict[str, Any]:
    """Return the fields that a config leaves open, with the values that its run has chosen.

    Args:
      asked: the config of the cell.
      run: the config that the run directory keeps.
    """
    changed = differences(asked, run)
    return {path: changed[path][1] for path in OPEN_FIELDS if path in changed}


def compared_settings(asked: Config, settled: Mapping[str, Any] | None) -> Settings:
    """Return the settings of a run that must agree with those of other cells.

    The compute dtype counts only if the config leaves it open; otherwise it belongs to the row.
    Rows may have different numbers of steps, so the end of a schedule counts only if a new run
    would choose another end.

    Args:
      asked: the config of the cell.
      settled: the result of `settled_fields`; None if a version did not record it.
    """
    settings: dict[str, tuple[Any, str]] = {}
    if settled is None:
        return settings
    if asked.model.compute_dtype == "auto" and (dtype := settled.get(DTYPE)):
        settings[DTYPE] = dtype, str(dtype)
    if (end := asked.training.schedule_end) is not None:
        steps = settled.get(_END, end)
        settings[_END] = steps if steps != end else None, str(steps)
    return settings


def changed_settings(before: Settings, now: Settings) -> list[str]:
    """Return the settings that differ between two cells, as `FIELD BEFORE -> NOW`."""
    return [
        f"{path} {before[path][1]} -> {now[path][1]}"
        for path in sorted(before.keys() & now.keys())
        if before[path][0] != now[path][0]
    ]


def dtype_here() -> str | None:
    """Return the compute dtype that "auto" is on this machine; None if JAX does not start here.

    Another process asks JAX, because JAX takes memory on each GPU for as long as a process lives.
    """
    command = [sys.executable, "-c", _PRINT_FAST_DTYPE]
    asked = subprocess.run(command, capture_output=True, text=True, errors="replace")
    words = asked.stdout.split()
    return words[-1] if words else None


def devices_and_dtypes(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a note on the devices that trained a grid and on their dtypes; [] if none is known.

    Args:
      results: the results of the finished seeds by row.
    """
    by_row = {}
    for row, seeds in results.items():
        if devices := [_device_and_dtype(seed) for seed in seeds if seed.get("device")]:
            by_row[row] = " and ".join(dict.fromkeys(devices))
    if len({*by_row.values()}) == 1:
        return [f"Trained on {by_row.popitem()[1]}."]
    listed = "; ".join(f"{row} on {devices}" for row, devices in by_row.items())
    return [f"Trained on different devices or in different dtypes: {listed}."] if listed else []


def _device_and_dtype(result: Mapping[str, Any]) -> str:
    config = from_dict(result["config"]).replace(result.get("settled") or {})
    return f"{result['device']} in {config.model.compute_dtype}"
