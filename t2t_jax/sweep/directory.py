"""A grid as its directory tells of it, for readers who have no config file of the grid."""

import csv
import re
from pathlib import Path
from typing import NamedTuple

from t2t_jax.config import Config
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.cell_report import LEFT_OUT, SEEDS, CellReport, cell_reports
from t2t_jax.workdir import is_run, read_config

_SEED = re.compile(r"seed(0|[1-9][0-9]{0,9})(\.log|\.job)?")
"""The names of what a cell leaves in the folder of its variant."""


class GridDirectory(NamedTuple):
    """What the directory of a grid tells of it."""

    grid: Grid
    """The variants, in the order of the last table, and then of their names."""
    reports: list[CellReport]
    """What became of each cell that has begun, variant by variant. The cells of a variant that is
    not in the grid, as none of its runs has a config that can be read, have Config()."""


def is_grid(directory: Path) -> bool:
    """Return whether a directory holds cells of a grid, and is no run itself."""
    return directory.is_dir() and not is_run(directory) and bool(_seeds(directory))


def read_grid_directory(directory: Path) -> GridDirectory:
    """Read a grid from the directory of its cells, without a config file, which would be run.

    A variant has the config of the first of its runs that can be read, as every run keeps its own.

    Raises:
      UserError: no run of the directory has a config that can be read.
    """
    variants, reports = {}, []
    for variant, seeds in _seeds(directory).items():
        places = [directory / variant / f"seed{seed}" for seed in seeds]
        config, refused = _first_config(places)
        seeded = [(config or Config()).replace({"training.seed": seed}) for seed in seeds]
        made = [Cell(variant, *each) for each in zip(seeded, places, strict=True)]
        if config is not None:
            variants[variant] = seeded[0]
        if refused:
            reports += [CellReport(cell, LEFT_OUT, refused) for cell in made]
        else:
            reports += cell_reports(made)
    if not variants:
        reason = reports[0].reason or "it has not begun"
        raise UserError(
            f"{directory} has no cell with a config that can be read; {reports[0].cell.name}: "
            f"{reason}"
        )
    return GridDirectory(Grid(variants, {}), reports)


def _first_config(places: list[Path]) -> tuple[Config | None, str]:
    """Return the config of the first run that has one, or else why that of the last is refused."""
    refused = ""
    for place in filter(is_run, places):
        try:
            return read_config(place), ""
        except UserError as error:
            refused = str(error)
    return None, refused


def _seeds(directory: Path) -> dict[str, list[int]]:
    """Return the seeds of each variant that has cells in a directory, rising."""
    found: dict[str, list[int]] = {}
    for folder in sorted(directory.iterdir()):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if seeds := {int(name[1]) for each in names if (name := _SEED.fullmatch(each))}:
            found[folder.name] = sorted(seeds)
    order = _order(directory)
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def _order(directory: Path) -> dict[str, int]:
    """Return the places of variants in the last table, whose first row is the first variant."""
    file = directory / SEEDS
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    try:
        names = dict.fromkeys(row["variant"] for row in csv.DictReader(text.splitlines()))
    except (KeyError, csv.Error):  # it is damaged, and only gives an order
        return {}
    return {name: place for place, name in enumerate(names)}
