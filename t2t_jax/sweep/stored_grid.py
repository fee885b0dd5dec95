"""Record a grid in its directory, so that later sweeps resume it.

GRID/grid.py     the config file of the grid, which users may edit and pass as --config
GRID/grid.json   the configs of its rows, the number of seeds, the plan with later additions, and
                 each scoring on a split other than dev
"""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from t2t_jax.config import Config, differences, format_differences, from_stored, to_dict
from t2t_jax.config.file import Grid, can_name_directory, load_grid
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.sweep.cell import cells
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import BucketPath, check_local
from t2t_jax.system.lock import is_held
from t2t_jax.system.records import COUNT, Record, read_object
from t2t_jax.tasks import task_of

RULES = "rules.json"
"""The file with the rules of a grid."""
_CONFIG_FILE, _RECORD = "grid.py", "grid.json"
_TESTS = {
    "base": "comparisons with the base by Dunnett's test",
    "all": "comparisons of all pairs by Holm's method",
}


class _PlanEntry(TypedDict):
    date: str
    cells: list[str]
    comparisons: str
    score: str


class _Scoring(TypedDict):
    split: str
    date: str
    cells: dict[str, str]


class _Grid(TypedDict):
    variants: dict[str, Record]
    written: NotRequired[str]
    seeds: NotRequired[COUNT]
    has_rules: NotRequired[bool]
    plan: NotRequired[list[_PlanEntry]]
    scorings: NotRequired[list[_Scoring]]


def stored_grid(workdir: Path) -> Grid:
    """Load a grid from the config file in its directory."""
    path = workdir / _CONFIG_FILE
    way_out = "name the grid, with --config configs/table3.py, or with --config base and --vary"
    check_local(workdir, way_out)
    if not path.is_file():
        raise UserError(f"{workdir} has no {_CONFIG_FILE} that describes its grid; {way_out}")
    return load_grid(str(path))


def read_record(workdir: Path) -> Record:
    """Read the record of a grid (rows, plan and scorings) from `grid.json`; {} if there is none."""
    path = workdir / _RECORD
    way_out = "remove it to begin a new record"
    return read_object(path, _Grid, way_out) if path.exists() else {}


def check_same_grid(grid: Grid, workdir: Path) -> None:
    """Refuse a grid that lacks a row recorded in its directory, or changes the config of one."""
    if not (record := read_record(workdir)):
        return
    way_out = "choose another --workdir, or move the directories of these rows away"
    stored_rows, file = record["variants"], workdir / _CONFIG_FILE
    hashes = record.get("written"), _hash(grid.source.encode())
    if grid.source and hashes[0] and file.is_file() and _hash(file.read_bytes()) not in hashes:
        raise UserError(
            f"{file} was edited and would be lost; omit --config to use it, or move it away"
        )
    # Rows that never started, or whose directories were moved away, may change.
    started_rows = [name for name in stored_rows if (workdir / name).is_dir()]
    if absent := [name for name in started_rows if name not in grid.variants]:
        names = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if len(absent) > 3 else "")
        raise UserError(
            f"{workdir} holds another grid, with rows that this one lacks ({names}); keep them and "
            f"select rows with --only, rename a row with --rename OLD=NEW, or {way_out}"
        )
    for name in started_rows:
        old_config, new_config = from_stored(stored_rows[name]), grid.variants[name]
        if changed := differences(old_config, new_config, only_binding=True):
            raise UserError(
                f"{workdir} holds another grid, in which {name} differs "
                f"({format_differences(changed)}); give the row another name, or {way_out}"
            )


def has_rules(workdir: Path) -> bool:
    """Return whether a grid has rules, even if the rules file is missing."""
    return (workdir / RULES).exists() or read_record(workdir).get("has_rules", False)


def record_grid(
    grid: Grid, workdir: Path, seeds: int = 1, chosen: Iterable[str] = (), comparisons: str = "base"
) -> None:
    """Write the config file of a grid, and the record of its rows and plan.

    The first sweep plans all rows with the given seeds. Later sweeps add their new cells to the
    plan, with the date.

    Args:
      chosen: names of the rows to train; empty for all.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    previous = read_record(workdir)
    # Tables of shorter runs would be lost if rows now train for more steps.
    _copy_shorter_tables(grid, workdir, previous.get("variants", {}))
    rows = {name: to_dict(config) for name, config in grid.variants.items()}
    record = previous | {"seeds": max(seeds, previous.get("seeds", 1)), "variants": rows}
    data = grid.variants[grid.base].data
    score = task_of(data.corpus, data.task).grid.score.name
    plan = record.get("plan", [])
    in_plan = {name for entry in plan for name in entry["cells"]}
    configs = {name: grid.variants[name] for name in (chosen if plan else ()) or rows}
    names = [c.name for c in cells(Grid(configs, {}), workdir, seeds) if c.name not in in_plan]
    is_new_grid = not previous and not any((workdir / name).is_dir() for name in rows)
    # Old versions recorded no plan, and a later sweep cannot know what was planned.
    if names and (plan or is_new_grid):
        entry = {"date": _today(), "cells": names, "comparisons": comparisons, "score": score}
        record["plan"] = [*plan, entry]
    record["has_rules"] = has_rules(workdir)
    record.pop("written", None)
    if grid.source:
        write_whole(workdir / _CONFIG_FILE, grid.source.encode())
        # The hash shows later whether users have edited the file.
        record["written"] = _hash(grid.source.encode())
    _write(record, workdir)


def _write(record: Record, workdir: Path) -> None:
    write_whole(workdir / _RECORD, f"{json.dumps(record, indent=1)}\n".encode())


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def added_later(record: Record) -> set[str] | None:
    """Return the cells that later sweeps added to a recorded plan.

    Returns:
      Names such as `wide/seed1`; None if no plan is recorded.
    """
    plan = record.get("plan")
    return {name for entry in plan[1:] for name in entry["cells"]} if plan else None


def plan_note(record: Record, comparisons: str, base: str = "") -> str:
    """Return a note for a table on what a grid planned before training, and added later.

    Args:
      comparisons: which comparisons the table has.
      base: the variant that the table compares with, if it is not the grid's base.
    """
    plan, *additions = record.get("plan") or [None]
    if plan is None:
        return "Plan: not recorded."
    num_rows = len({name.rpartition("/")[0] for name in plan["cells"]})
    note = (
        f"Planned on {plan['date']}: {num_rows} rows, {len(plan['cells']) // num_rows} seed(s), "
        f"{_TESTS.get(plan['comparisons'])}, primary score {plan['score']}."
    )
    for entry in additions:
        note += f" Added later, on {entry['date']}: {', '.join(entry['cells'])}."
    if comparisons != plan["comparisons"]:
        note += f" This table has {_TESTS[comparisons]}, which was not planned."
    if base:
        note += f" The base of this table, {base}, was not planned."
    return note


def scorings(record: Record, split: str) -> Sequence[Record]:
    """Return the recorded scorings of a grid on a split, the oldest first.

    Each scoring has its date, and under `cells` a fingerprint of each cell's dev result by name.
    """
    return [entry for entry in record.get("scorings", []) if entry["split"] == split]


def record_scoring(workdir: Path, split: str, dev_fingerprints: Mapping[str, str]) -> None:
    """Record today's scoring of a grid on a split.

    Args:
      dev_fingerprints: a fingerprint of the dev result of each scored cell, by cell name.
    """
    record: Record = {"variants": {}, "scorings": []} | read_record(workdir)
    record["scorings"].append({"split": split, "date": _today(), "cells": dict(dev_fingerprints)})
    _write(record, workdir)


def _copy_shorter_tables(grid: Grid, workdir: Path, rows: Mapping[str, Record]) -> None:
    """Copy `table.md` to `table-30-steps.md`, and so on, if rows now train for more steps."""
    old = {name: from_stored(fields).training.num_train_steps for name, fields in rows.items()}
    new = {name: config.training.num_train_steps for name, config in grid.variants.items()}
    if num_steps := [old[name] for name in old.keys() & new.keys() if old[name] < new[name]]:
        for path in [*workdir.glob("table.*"), *workdir.glob("seeds.csv")]:
            copy = path.with_name(f"{path.stem}-{max(num_steps)}-steps{path.suffix}")
            write_whole(copy, path.read_bytes())


def rows_outside(record: Record, grid: Grid, workdir: Path) -> dict[str, Config]:
    """Return the configs, by name, of started variants that the record has but the grid lacks."""
    return {
        name: from_stored(fields)
        for name, fields in record.get("variants", {}).items()
        if name not in grid.variants and (workdir / name).is_dir()
    }


def rename_row(workdir: Path, names: str) -> tuple[str, str]:
    """Rename a row's directory and record, and return the old and new name.

    The config file and the tables stay unchanged.

    Args:
      names: OLD=NEW.
    """
    record = read_record(workdir)
    if not record or isinstance(workdir, BucketPath) or has_rules(workdir):
        raise UserError(
            f"--rename needs a local directory with {_RECORD} and without {RULES}, unlike {workdir}"
        )
    rows = record["variants"]
    # Names such as d_ff=512 contain equals signs, so look for one that follows a row name.
    positions = [index for index, char in enumerate(names) if char == "=" and names[:index] in rows]
    if len(positions) != 1:
        hint = did_you_mean(names.partition("=")[0], rows, f"it has {', '.join(rows)}")
        raise UserError(f"--rename {quote(names)} is not OLD=NEW with a row of {workdir}; {hint}")
    old, new = names[: positions[0]], names[positions[0] + 1 :]
    if new in rows or not can_name_directory(new) or (workdir / new).exists():
        raise UserError(
            f"--rename: {quote(new)} is taken, or cannot name a directory; choose another name"
        )
    if any(map(is_held, [*(workdir / old).glob("*.log"), *(workdir / old).glob("*/.lock")])):
        raise UserError(f"--rename: a process trains {workdir / old}; wait until it ends")
    if (workdir / old).is_dir():
        (workdir / old).rename(workdir / new)
    record["variants"] = {new if name == old else name: row for name, row in rows.items()}

    def rename(cell: str) -> str:
        return new + cell.removeprefix(old) if cell.startswith(f"{old}/") else cell

    for entry in record.get("plan", ()):
        entry["cells"] = [*map(rename, entry["cells"])]
    for scoring in record.get("scorings", ()):
        scoring["cells"] = {rename(name): digest for name, digest in scoring["cells"].items()}
    _write(record, workdir)
    return old, new


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
