"""Check that all cells of a grid have the same code and the same settings.

A table compares configs, so code must be equal in all cells, and also the settings that configs
leave open and runs choose (`training.settling`), such as the compute dtype "auto". A sweep refuses
other cells, or pools them with `--allow-mixed` and marks their rows.
"""

import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

from t2t_jax.config import Config, differences, from_stored
from t2t_jax.errors import UserError
from t2t_jax.run.provenance import COMPUTING, UNRECORDED, changes
from t2t_jax.system.records import Record

DTYPE = "model.compute_dtype"
_END = "training.schedule_steps"
OPEN_FIELDS = DTYPE, "parallel.tokens_per_device", _END
"""Fields that a config may leave open, so that a new run chooses their values."""
_PRINT_FAST_DTYPE = """
from t2t_jax.config import MeshConfig
from t2t_jax.kernels.choice import fast_compute_dtype
from t2t_jax.parallel.mesh import make_mesh
print(fast_compute_dtype(make_mesh(MeshConfig())))
"""

Settings = Mapping[str, tuple[object, str]]
"""Settings by field: the value to compare between cells, and the text to print."""


def resolved_fields(config: Config, run_config: Config) -> dict[str, object]:
    """Return the values that a run chose for fields left open by its config."""
    changed = differences(config, run_config)
    return {path: changed[path][1] for path in OPEN_FIELDS if path in changed}


def compared_settings(config: Config, resolved: Mapping[str, object] | None) -> Settings:
    """Return the settings that must agree between all cells of a grid.

    Args:
      resolved: the result of `resolved_fields`; None if unknown.
    """
    settings: dict[str, tuple[object, str]] = {}
    if resolved is None:
        return settings
    # An explicit dtype is part of the row, so rows may differ in it.
    if config.model.compute_dtype == "auto" and (dtype := resolved.get(DTYPE)):
        settings[DTYPE] = dtype, str(dtype)
    if (schedule_end := config.training.schedule_end) is not None:
        # Rows may train for different numbers of steps, so compare only ends that a new run would
        # not choose.
        chosen_end = resolved.get(_END, schedule_end)
        settings[_END] = chosen_end if chosen_end != schedule_end else None, str(chosen_end)
    return settings


def changed_settings(before: Settings, after: Settings) -> list[str]:
    """List the settings that differ between two cells, as `FIELD BEFORE -> AFTER`."""
    return [
        f"{path} {before[path][1]} -> {after[path][1]}"
        for path in sorted(before.keys() & after.keys())
        if before[path][0] != after[path][0]
    ]


def local_dtype() -> str | None:
    """Return the compute dtype that "auto" means on this machine; None if JAX does not start."""
    # Ask in a subprocess, because JAX keeps memory on each GPU until its process ends.
    command = [sys.executable, "-c", _PRINT_FAST_DTYPE]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace")
    words = process.stdout.split()
    return words[-1] if words else None


def devices_and_dtypes(results: Mapping[str, Sequence[Record]]) -> list[str]:
    """Describe in a line which devices trained each row, and in which dtype; [] if unknown."""
    devices_by_row = {}
    for row, runs in results.items():
        if devices := [_device_and_dtype(run) for run in runs if run.get("device")]:
            devices_by_row[row] = " and ".join(dict.fromkeys(devices))
    if len({*devices_by_row.values()}) == 1:
        return [f"Trained on {devices_by_row.popitem()[1]}."]
    listing = "; ".join(f"{row} on {devices}" for row, devices in devices_by_row.items())
    return [f"Trained on different devices or in different dtypes: {listing}."] if listing else []


def _device_and_dtype(result: Record) -> str:
    config = from_stored(result["config"]).replace(result.get("settled") or {})
    return f"{result['device']} in {config.model.compute_dtype}"


def software_of_result(result: Record) -> list[Record]:
    """Return the provenance records of a result, with the settings to compare.

    The records are of training, then of scoring. The settings are in the field `settled`.
    """
    config, records = from_stored(result["config"]), result.get("provenance", [UNRECORDED])
    settings = compared_settings(config, result.get("settled"))
    return [record | {"settled": settings} for record in records]


def code_differences(software: Iterable[tuple[str, Iterable[Record]]]) -> dict[str, list[str]]:
    """List how the code and settings of cells differ from those of the first cell, by name.

    Args:
      software: pairs of a name and provenance records; names may repeat.
    """
    first: Record = {}
    differences: dict[str, list[str]] = {}
    for name, records in software:
        for record in records:
            # Compare each file and setting with the first cell that has it.
            merged = {key: record.get(key, {}) | first.get(key, {}) for key in ("files", "settled")}
            first = {**record, **first, **merged}
            differences.setdefault(name, []).extend(
                changes(first, record, COMPUTING)
                + changed_settings(first["settled"], record.get("settled", {}))
            )
    return {name: sorted(set(changed)) for name, changed in differences.items() if changed}


def other_code(results: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """Describe how code and settings of rows differ from those of the first cell, by row name."""
    pairs = ((variant, result) for variant, seeds in results.items() for result in seeds)
    software = ((variant, software_of_result(result)) for variant, result in pairs)
    return {name: _join(changed) for name, changed in code_differences(software).items()}


def check_same_code(software: "Mapping[str, Iterable[Record]]") -> None:
    """Raise a `UserError` if cells (runs of a grid) differ in code or chosen settings.

    `software` maps cell names to provenance records.
    """
    if differences := code_differences(software.items()):
        (name, changed), *other_cells = differences.items()
        first_name, records = next(iter(software.items()))
        commit_note = next((f" (commit {r['commit'][:12]})" for r in records if "commit" in r), "")
        suffix = f" (also {', '.join(cell for cell, _ in other_cells)})" if other_cells else ""
        reference = "its first steps" if name == first_name else first_name
        kind, remedy = f"code than {reference}{commit_note}", "restore that code"
        if all(change.startswith(OPEN_FIELDS) for change in changed):
            path, before, *_ = changed[0].split(" ")
            kind, remedy = (f"settings than {reference}", f"set {path}={before} in the config file")
        raise UserError(
            f"{name} was computed by different {kind}: {_join(changed)}{suffix}; {remedy}, "
            "choose another --workdir, or move the directories of these cells away; "
            "--allow-mixed pools them and marks their rows"
        )


def _join(names: list[str], limit: int = 8) -> str:
    remainder = [f"and {len(names) - limit} more"] * (len(names) > limit)
    return ", ".join([*names[:limit], *remainder])
