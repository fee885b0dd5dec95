"""Whether one version of the code trained and scored the cells of a grid.

A table compares configs, so its cells have to be of the same code. Cells of different code are
refused, or pooled with `--allow-mixed`, and then their rows are marked.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.sweep.cell import Cell
    from t2t_jax.sweep.comparison import Results
    from t2t_jax.system.records import Record

WAY_OUT = (
    "to keep one experiment, bring that code back, or choose another --workdir, or move the "
    "directories of these cells away; --allow-mixed pools them and marks the rows"
)


def software_of_result(result: Mapping[str, Any]) -> "list[Record]":
    """Return the provenance records of a result: of its training, then of its scoring."""
    from t2t_jax.run.provenance import UNRECORDED

    found: list[Record] = result.get("provenance", [UNRECORDED])
    return found


def software_of(cell: "Cell", result: "Record | None") -> "list[Record]":
    """Return the provenance records of a cell, with that of its further training if it needs any.

    Args:
      result: the result of the cell; None if it has none.
    """
    from t2t_jax.run.provenance import provenance, read_provenance

    if result is not None:
        return software_of_result(result)
    return [*read_provenance(cell.workdir), provenance(cell.config)]


def differences_of_code(software: "Iterable[tuple[str, Iterable[Record]]]") -> dict[str, list[str]]:
    """Return what differs between the code of cells and that of the first one, by name.

    Args:
      software: names, each with the provenance records of cells; names may repeat.
    """
    from t2t_jax.run.provenance import COMPUTING, changes

    first: Record = {}
    found: dict[str, list[str]] = {}
    for name, records in software:
        for record in records:
            # Files that only some cells use are compared with the first cell that uses them.
            first = {**record, **first, "files": record.get("files", {}) | first.get("files", {})}
            found.setdefault(name, []).extend(changes(first, record, COMPUTING))
    return {name: sorted(set(different)) for name, different in found.items() if different}


def other_code(results: "Results") -> dict[str, str]:
    """Return the rows that have cells of other code than the first cell, and what differs."""
    software = (
        (variant, software_of_result(result))
        for variant, seeds in results.items()
        for result in seeds
    )
    found = differences_of_code(software)
    return {variant: _listed(different) for variant, different in found.items()}


def check_same_code(software: "Mapping[str, Iterable[Record]]") -> None:
    """Refuse cells of different code.

    Args:
      software: the provenance records of each cell, by its name.

    Raises:
      UserError: a cell is of other code than the first.
    """
    if found := differences_of_code(software.items()):
        name, different = next(iter(found.items()))
        first, records = next(iter(software.items()))
        commit = next((one["commit"][:12] for one in records if "commit" in one), "")
        also = f" (also {', '.join([*found][1:])})" if len(found) > 1 else ""
        raise UserError(
            f"{name} is of other code than {first}{f' (commit {commit})' * bool(commit)}: "
            f"{_listed(different)}{also}; "
            f"{WAY_OUT}"
        )


def _listed(different: list[str], most: int = 8) -> str:
    further = [f"and {len(different) - most} more"] * (len(different) > most)
    return ", ".join([*different[:most], *further])
