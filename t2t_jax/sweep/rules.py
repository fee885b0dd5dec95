"""The rules by which cells of a grid are chosen, and their record in the grid's directory.

GRID/rules.json has the rules, the seeds and the variants. They decide which cells are trained, so
they stay as they are for as long as the directory is used.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import Cell, cells
from t2t_jax.sweep.halving import HalvedGrid, Halving, check_can_be_halved
from t2t_jax.sweep.plan import GridPlan, WholeGrid
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import Each, Schema, read_object

_FILE = "rules.json"
_TEXT = (str, type(None))
_SCHEMA = Schema(
    {
        "halving": _TEXT,
        "seeds": int,
        "variants": Each(list, str),
    }
)


@dataclass(frozen=True)
class GridRules:
    """The rules of a grid, as flags give them. Without any, every cell is trained to its end."""

    halving: str | None = None
    """The halving of the variants, as `rungs=3,keep=0.33`."""


class PlannedGrid:
    """A grid with its plan."""

    def __init__(self, grid: Grid, workdir: Path, rules: GridRules, seeds: int) -> None:
        """Make the plan of the variants of a grid.

        Raises:
          UserError: a rule has another form, or does not fit the grid.
        """
        self.rules, self.seeds, self.grid = rules, seeds, grid
        self.halving: HalvedGrid | None = None
        halving = None if rules.halving is None else Halving.of(rules.halving)
        every = cells(grid, workdir, seeds)
        self.plan: GridPlan = WholeGrid(every)
        if halving is not None:
            check_can_be_halved(grid)
            others = [name for name in grid.variants if name != grid.base]
            groups = [group for group in ([grid.base], others) if group]
            self.plan = self.halving = HalvedGrid(by_variant(every), groups, halving, workdir)


def by_variant(made: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Return cells by their variants."""
    found: dict[str, list[Cell]] = {}
    for cell in made:
        found.setdefault(cell.variant, []).append(cell)
    return found


def planned_grid(
    grid: Grid, workdir: Path, chosen: Sequence[str], seeds: int, rules: GridRules
) -> PlannedGrid:
    """Return the plan by the rules that are given, or else by those of the directory.

    Raises:
      UserError: the directory has other rules, or its cells were begun without any, or a rule does
        not fit the grid.
    """
    stored = _read(workdir)
    if stored is not None:
        own = GridRules(**{name: stored[name] for name in asdict(rules)})
        if rules not in (own, GridRules()):
            raise UserError(
                f"{workdir} has the rules {_described(own)}, not {_described(rules)}; leave these "
                "flags out to go on with its own, or choose another --workdir"
            )
        if seeds != stored["seeds"] or set(chosen) != set(stored["variants"]):
            raise UserError(
                f"the rules of {workdir} decide on {stored['seeds']} seed(s) of the variants "
                f"{', '.join(stored['variants'])}, and on no others; give --seeds "
                f"{stored['seeds']} and these, or choose another --workdir"
            )
        rules = own
    variants = {name: config for name, config in grid.variants.items() if name in chosen}
    planned = PlannedGrid(grid._replace(variants=variants), workdir, rules, seeds)
    if stored is None and planned.halving:
        begun = [cell.name for cell in planned.plan.cells({}) if cell.workdir.exists()]
        if begun:
            raise UserError(
                f"{workdir} has cells that were begun without --halving, such as {begun[0]}, and "
                "no scores of theirs at the rungs; choose another --workdir"
            )
    return planned


def stored_grid(grid: Grid, workdir: Path) -> PlannedGrid | None:
    """Return the plan by the rules of a directory; None if it has none.

    Raises:
      UserError: the rules are damaged, or do not fit the grid.
    """
    stored = _read(workdir)
    if stored is None:
        return None
    chosen = [name for name in grid.variants if name in stored["variants"]]
    return planned_grid(grid, workdir, chosen, stored["seeds"], GridRules())


def record_rules(planned: PlannedGrid, workdir: Path) -> None:
    """Write the rules into the grid's directory, unless there are none."""
    if planned.rules != GridRules():
        workdir.mkdir(parents=True, exist_ok=True)
        variants = list(planned.grid.variants)
        record = asdict(planned.rules) | {"seeds": planned.seeds, "variants": variants}
        write_whole(workdir / _FILE, (json.dumps(record, indent=2) + "\n").encode())


def _read(workdir: Path) -> dict | None:
    path = workdir / _FILE
    way_out = "bring it back from a copy, or choose another --workdir"
    return read_object(path, _SCHEMA, way_out) if path.is_file() else None


def _described(rules: GridRules) -> str:
    given = {name: value for name, value in asdict(rules).items() if value}
    return " ".join(f"--{name} {value}" for name, value in given.items()) or "none"
