"""Train a grid of configs and compare them.

python -m t2t_jax.sweep --config configs/table3.py --dry-run
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --seeds 3
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --only base 'A-*'
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --launcher slurm
python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3 --report
"""

import fnmatch
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from t2t_jax.command_line import check_flags, names, parse, run
from t2t_jax.config_file import Grid, describe_difference, load_grid
from t2t_jax.cost import num_parameters
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.sweep.cell import Cell, cells


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
    """Processes at once on this machine; each has its share of the cores."""
    slurm: tuple[str, ...] = ()
    """Settings of the jobs, as name=value: slurm_partition=gpu gpus_per_node=8 timeout_min=1440."""
    dry_run: bool = False
    """List the variants with their parameters, and train nothing."""
    report: bool = False
    """Write the table of what is finished, and train nothing."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns 0 if every cell has its result."""
    check_flags(arguments, names(Sweep))
    command: Sweep = parse(Sweep, arguments, prog="python -m t2t_jax.sweep")
    grid = load_grid(command.config)
    chosen = _chosen(grid, command.only)
    if command.seeds < 1:
        raise UserError(f"seeds={command.seeds} is not positive")
    if command.dry_run:
        Console().print(_listing(grid, chosen, command.seeds))
        return 0
    if command.workdir is None:
        raise UserError("a sweep needs a directory; name one with --workdir")
    every = cells(grid, command.workdir, command.seeds)
    complete = True
    if not command.report:
        complete = _train([cell for cell in every if cell.variant in chosen], command)
    return _report(grid, every, command) if complete else 1


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


def _train(chosen: Sequence[Cell], command: Sweep) -> bool:
    from t2t_jax.sweep.launchers import Cluster, Launcher, Local
    from t2t_jax.sweep.run import run_cells

    assert command.workdir is not None
    launcher: Launcher = (
        Local(command.jobs)
        if command.launcher == "local"
        else Cluster(command.workdir, command.slurm)
    )
    # As Ctrl-C does, SIGTERM ends the processes of this machine with a checkpoint each.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run_cells(chosen, launcher, Console())


def _report(grid: Grid, every: Sequence[Cell], command: Sweep) -> int:
    from t2t_jax.sweep.comparison import collect
    from t2t_jax.sweep.tables import summary, write_tables

    assert command.workdir is not None
    rows = write_tables(grid, collect(every), command.workdir)
    console = Console(highlight=False)
    console.print(summary(rows))
    console.print(f"all of it: {command.workdir}/table.md, .csv and .png", soft_wrap=True)
    return 0


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


if __name__ == "__main__":
    run(main)
