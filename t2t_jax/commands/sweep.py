"""The command line of a sweep: which cells of a grid are trained where, and their table."""

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.table import Table

from t2t_jax.commands.flags import check_flags, check_name, names, parse
from t2t_jax.config.file import Grid, describe_difference, load_grid
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.modules.cost import num_parameters
from t2t_jax.sweep.cell import Cell, cells, num_seeds_in
from t2t_jax.system.console import ProgressConsole, ResultConsole


@dataclass(frozen=True)
class Sweep:
    """Train and score every variant of a grid, and write a table that compares them.

    Each variant and seed is a process and a run directory of its own. Those that are finished are
    skipped, those that were interrupted go on where they were; one that fails stops no other.
    """

    config: str = tyro.MISSING
    """Config file with VARIANTS, such as configs/table3.py."""
    workdir: Path | None = None
    """Directory of the grid: runs in VARIANT/seedN/, then table.md, table.csv and table.png."""
    only: tuple[str, ...] = ()
    """Variants to train, as names or patterns such as 'A-*'; the table still has all of them."""
    seeds: int = 1
    """Seeds of each variant, counted from its training.seed."""
    launcher: Literal["local", "slurm"] = "local"
    """Processes of this machine, or jobs of a Slurm cluster (through submitit)."""
    jobs: int = 1
    """Processes at once on this machine; each has its share of the cores, and of the GPUs that
    CUDA_VISIBLE_DEVICES lists."""
    slurm: tuple[str, ...] = ()
    """Settings of the jobs, as name=value: timeout_min=1440 slurm_partition=gpu gpus_per_node=8."""
    dry_run: bool = False
    """List the variants with their parameters, and train nothing."""
    report: bool = False
    """Write the table of what is finished, and train nothing."""


def sweep(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns 0 if every cell it is about has its result."""
    if not arguments:
        raise UserError(
            "a sweep takes a config file with VARIANTS and a directory, as in --config "
            "configs/table3.py --workdir runs/table3; see --help"
        )
    check_flags(arguments, names(Sweep))
    command: Sweep = parse(Sweep, arguments, prog="python -m t2t_jax.sweep")
    grid = load_grid(command.config)
    chosen = _chosen(grid, command.only)
    if command.seeds < 1:
        raise UserError(f"seeds={command.seeds} is not positive")
    if command.dry_run:
        ResultConsole().print(_listing(grid, chosen, command.seeds))
        return 0
    if command.workdir is None:
        raise UserError("a sweep needs a directory; name one with --workdir")
    _check_place(command.workdir)
    _check_launcher(command)
    seeds = max(command.seeds, num_seeds_in(grid, command.workdir))
    if not command.report:
        wanted = cells(grid, command.workdir, command.seeds)
        number = _train([cell for cell in wanted if cell.variant in chosen], command)
        if number:
            return 128 + number
    return _report(grid, cells(grid, command.workdir, seeds), chosen, command)


def _chosen(grid: Grid, patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not fnmatch.filter(grid.variants, pattern):
            hint = did_you_mean(pattern, grid.variants, f"it has {', '.join(grid.variants)}")
            raise UserError(f"no variant of the grid is called {pattern!r}; {hint}")
    return [
        name
        for name in grid.variants
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def _check_place(workdir: Path) -> None:
    check_name(workdir)
    there = next(path for path in (workdir, *workdir.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(
            f"cannot write {workdir}: {there} is not a writable directory; choose another --workdir"
        )


def _check_launcher(command: Sweep) -> None:
    if command.slurm and command.launcher != "slurm":
        raise UserError("--slurm has settings of jobs, but jobs need --launcher slurm")
    if command.jobs != 1 and command.launcher == "slurm":
        raise UserError("--jobs is about this machine; the queue of the cluster has its own limits")


def _train(chosen: Sequence[Cell], command: Sweep) -> int:
    """Train and score cells; returns the number of the signal that ended that, or 0."""
    from t2t_jax.sweep.launchers import Cluster, Launcher, Local
    from t2t_jax.sweep.run import run_cells

    assert command.workdir is not None
    launcher: Launcher = (
        Local(command.jobs)
        if command.launcher == "local"
        else Cluster(command.workdir, command.slurm)
    )
    return run_cells(chosen, launcher, ProgressConsole())


def _report(grid: Grid, every: Sequence[Cell], chosen: Sequence[str], command: Sweep) -> int:
    """Write and print the table of what is finished; 1 if some of what was chosen is not."""
    from t2t_jax.sweep.tables import summary, write_tables

    assert command.workdir is not None
    console = ResultConsole(highlight=False)
    results: dict[str, list[dict[str, Any]]] = {}
    for cell in every:
        try:
            if (result := cell.result()) is not None:
                results.setdefault(cell.variant, []).append(result)
        except UserError as error:
            console.print(f"{cell.name} is left out: {error}", markup=False, soft_wrap=True)
    rows = write_tables(grid, results, command.workdir)
    console.print(summary(rows, results))
    console.print(f"all of it: {command.workdir}/table.md, .csv and .png", soft_wrap=True)
    complete = all(len(results.get(variant, ())) >= command.seeds for variant in chosen)
    return 0 if complete else 1


def _listing(grid: Grid, chosen: Sequence[str], num_seeds: int) -> Table:
    """The variants with what defines them and their exact sizes."""
    base = grid.variants[grid.base]
    table = Table(
        box=None, title=f"{len(chosen)} variants, {num_seeds} seed(s)", title_justify="left"
    )
    table.add_column("variant")
    table.add_column("differs in", overflow="fold")
    for name in ("parameters", "paper (millions)", "steps"):
        table.add_column(name, justify="right")
    for name in chosen:
        config = grid.variants[name]
        paper = grid.published.get(name)
        millions = "" if paper is None or paper.parameters is None else f"{paper.parameters:g}"
        parameters = num_parameters(config.model, config.data.vocab_size)
        steps = config.training.num_train_steps
        difference = describe_difference(base, config)
        table.add_row(name, difference, f"{parameters:,}", millions, f"{steps:,}")
    return table
