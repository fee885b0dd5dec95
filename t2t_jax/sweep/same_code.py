"""Check that the same code trained and scored all cells of a grid.

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
    "restore that code, choose another --workdir, or move the directories of these cells away; "
    "--allow-mixed pools them and marks their rows"
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
    from t2t_jax.run.provenance import provenance, training_software

    if result is not None:
        return software_of_result(result)
    return [*training_software(cell.workdir), provenance(cell.config)]


def differences_of_code(software: "Iterable[tuple[str, Iterable[Record]]]") -> dict[str, list[str]]:
    """Return what differs between the code of cells and that of the first one, by name.

    Args:
      software: names, each with the provenance records of cells; names may repeat.
    """
    from t2t_jax.run.provenance import COMPUTING, changes

    first: Record = {}
    differences: dict[str, list[str]] = {}
    for name, records in software:
        for record in records:
            # Files that only some cells use are compared with the first cell that uses them.
            first = {**record, **first, "files": record.get("files", {}) | first.get("files", {})}
            differences.setdefault(name, []).extend(changes(first, record, COMPUTING))
    return {name: sorted(set(each)) for name, each in differences.items() if each}


def other_code(results: "Results") -> dict[str, str]:
    """Return the rows that have cells of other code than the first cell, and what differs."""
    software = (
        (variant, software_of_result(result))
        for variant, seeds in results.items()
        for result in seeds
    )
    return {name: _listed(each) for name, each in differences_of_code(software).items()}


def check_same_code(software: "Mapping[str, Iterable[Record]]") -> None:
    """Refuse cells of different code.

    Args:
      software: the provenance records of each cell, by its name.

    Raises:
      UserError: a cell is of other code than the first.
    """
    if differences := differences_of_code(software.items()):
        (name, of_cell), *others = differences.items()
        first, records = next(iter(software.items()))
        commit = next((f" (commit {one['commit'][:12]})" for one in records if "commit" in one), "")
        also = f" (also {', '.join(other for other, _ in others)})" if others else ""
        reference = "its begin" if name == first else first
        raise UserError(
            f"{name} was computed by different code than {reference}{commit}: {_listed(of_cell)}"
            f"{also}; {WAY_OUT}"
        )


def _listed(names: list[str], most: int = 8) -> str:
    further = [f"and {len(names) - most} more"] * (len(names) > most)
    return ", ".join([*names[:most], *further])
