"""Check that all cells of a grid have the same code and the same settings.

A table compares configs. So the same code must train and score its cells, and their runs must have
chosen the same settings where the configs leave them open. Other cells are refused, or pooled with
`--allow-mixed`, and then their rows are marked. A new run chooses the end of its schedule, its
compute dtype on "auto", and the size of its passes (`training.settling`).
"""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from t2t_jax.config import Config, differences, from_dict
from t2t_jax.errors import UserError
from t2t_jax.run.provenance import COMPUTING, UNRECORDED, changes
from t2t_jax.system.records import Record

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

Settings = Mapping[str, tuple[object, str]]
"""Settings of a run that change its results, by field: the value that must be equal in all cells of
a table, and the value for readers."""


def settled_fields(asked: Config, run: Config) -> dict[str, object]:
    """Return the fields that a config leaves open, with the values that its run has chosen."""
    changed = differences(asked, run)
    return {path: changed[path][1] for path in OPEN_FIELDS if path in changed}


def compared_settings(asked: Config, settled: Mapping[str, object] | None) -> Settings:
    """Return the settings of a run that must agree with those of other cells.

    The compute dtype counts only if the config leaves it open; otherwise it belongs to the row.
    Rows may have different numbers of steps, so the end of a schedule counts only if a new run
    would choose another end.

    Args:
      settled: the result of `settled_fields`; None if a version did not record it.
    """
    settings: dict[str, tuple[object, str]] = {}
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


def devices_and_dtypes(results: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return a note on the devices that trained a grid and on their dtypes; [] if none is known."""
    by_row = {}
    for row, seeds in results.items():
        if devices := [_device_and_dtype(seed) for seed in seeds if seed.get("device")]:
            by_row[row] = " and ".join(dict.fromkeys(devices))
    if len({*by_row.values()}) == 1:
        return [f"Trained on {by_row.popitem()[1]}."]
    listed = "; ".join(f"{row} on {devices}" for row, devices in by_row.items())
    return [f"Trained on different devices or in different dtypes: {listed}."] if listed else []


def _device_and_dtype(result: Record) -> str:
    config = from_dict(result["config"]).replace(result.get("settled") or {})
    return f"{result['device']} in {config.model.compute_dtype}"


def software_of_result(result: Record) -> list[Record]:
    """Return the provenance records of a result: of its training, then of its scoring.

    Each has the settings that the run chose in the field `settled`.
    """
    asked, records = from_dict(result["config"]), result.get("provenance", [UNRECORDED])
    settings = compared_settings(asked, result.get("settled"))
    return [record | {"settled": settings} for record in records]


def differences_of_code(software: Iterable[tuple[str, Iterable[Record]]]) -> dict[str, list[str]]:
    """Return the differences of cells from the code and settings of the first cell, by name.

    Args:
      software: names, each with the provenance records of cells; names may repeat.
    """
    first: Record = {}
    differences: dict[str, list[str]] = {}
    for name, records in software:
        for record in records:
            # Files and settings of some cells are compared with the first cell that has them.
            merged = {key: record.get(key, {}) | first.get(key, {}) for key in ("files", "settled")}
            first = {**record, **first, **merged}
            differences.setdefault(name, []).extend(
                changes(first, record, COMPUTING)
                + changed_settings(first["settled"], record.get("settled", {}))
            )
    return {name: sorted(set(each)) for name, each in differences.items() if each}


def other_code(results: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """Return the rows with cells of other code or settings than the first, and what differs."""
    every = ((variant, result) for variant, seeds in results.items() for result in seeds)
    software = ((variant, software_of_result(result)) for variant, result in every)
    return {name: _listed(each) for name, each in differences_of_code(software).items()}


def check_same_code(software: "Mapping[str, Iterable[Record]]") -> None:
    """Refuse cells of different code, and cells whose runs chose different settings."""
    if differences := differences_of_code(software.items()):
        (name, changed), *further = differences.items()
        first, records = next(iter(software.items()))
        commit = next((f" (commit {r['commit'][:12]})" for r in records if "commit" in r), "")
        also = f" (also {', '.join(cell for cell, _ in further)})" if further else ""
        reference = "its beginning" if name == first else first
        kind, remedy = f"code than {reference}{commit}", "restore that code"
        if all(name.startswith(OPEN_FIELDS) for name in changed):
            path, before, *_ = changed[0].split(" ")
            kind, remedy = f"settings than {reference}", f"set {path}={before} in the config file"
        raise UserError(
            f"{name} was computed by different {kind}: {_listed(changed)}{also}; {remedy}, "
            "choose another --workdir, or move the directories of these cells away; "
            "--allow-mixed pools them and marks their rows"
        )


def _listed(names: list[str], most: int = 8) -> str:
    further = [f"and {len(names) - most} more"] * (len(names) > most)
    return ", ".join([*names[:most], *further])
