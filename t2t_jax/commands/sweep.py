"""The command that trains a grid of configs and compares them in a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.tables import result_console
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from t2t_jax.config.file import Grid
    from t2t_jax.sweep.grid import GridOutcome
    from t2t_jax.sweep.rules import GridRules


@dataclass(frozen=True)
class SweepCommand:
    """Train and score every variant of a grid, and write a table that compares them.

    Each variant and seed has a process and a run directory of its own. Finished ones are skipped,
    interrupted ones go on where they were, and one that fails does not stop the others.
    """

    advice: ClassVar = (
        "a sweep takes a config file with VARIANTS and a directory, as in --config "
        "configs/table3.py --workdir runs/table3; see --help"
    )
    examples: ClassVar = (
        "--config configs/table3_small.py --dry-run",
        "--config configs/table3.py runs/table3 --seeds 3 --only base 'A-*'",
    )
    config: str = tyro.MISSING
    """Config file with VARIANTS, such as configs/table3.py."""
    workdir: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the grid, for runs in VARIANT/seedN/, and table.md, table.csv and table.png."""
    only: tuple[str, ...] = ()
    """Variants to train, as names or patterns such as 'A-*'; the table still has all of them."""
    seeds: int = 1
    """Number of seeds of each variant, counted from its training.seed."""
    launcher: Literal["local", "slurm"] = "local"
    """Train in processes of this machine, or in jobs of a Slurm cluster (through submitit)."""
    jobs: int = 1
    """Number of processes at once on this machine, at most that of its GPUs, if it has any; each
    process has its share of the cores, and GPUs of its own."""
    slurm: tuple[str, ...] = ()
    """Settings of the jobs, as name=value: timeout_min=1440 slurm_partition=gpu gpus_per_node=8."""
    track: tuple[str, ...] = ()
    """Trackers to which the log of each cell is sent: wandb:PROJECT, mlflow:EXPERIMENT,
    trackio:PROJECT."""
    halving: str | None = None
    """Give up on variants that look bad early: rungs=3,keep=0.33 pauses all at two rungs, and a
    third of them goes on from each, as the base always does; with ,asha no variant waits."""
    tune: tuple[str, ...] = ()
    """Fields that each variant has its own best value of, as model.dropout_rate=0.1,0.3 or
    training.learning_rate_factor=0.5:2:log5; the table compares the variants at their best."""
    sampler: Literal["optuna:tpe", "optuna:random"] | None = None
    """Sampler that proposes values for --tune, whose ranges then have no number: 0.5:2:log."""
    trials: int | None = None
    """Values that the sampler proposes for each variant."""
    max_hours: float | None = None
    """Hours after which nothing more begins, and what runs here stops with a checkpoint."""
    dry_run: bool = False
    """List the variants with their parameters and published figures, and train nothing."""
    report: bool = False
    """Write the table of the finished runs, and train nothing."""

    def run(self) -> int:
        """Train the grid, print its table, and return 0 if every wanted cell has a result."""
        from t2t_jax.config.file import load_grid
        from t2t_jax.sweep.grid import check_seeds, chosen_variants, collect, run_grid
        from t2t_jax.sweep.launchers import Cluster, Local
        from t2t_jax.system.atomic_file import check_writable

        grid = load_grid(self.config)
        chosen = chosen_variants(grid, self.only)
        check_seeds(self.seeds)
        if self.dry_run:
            result_console().print(_listing(grid, chosen, self.seeds))
            return 0
        if self.workdir is None:
            raise UserError("a sweep needs a directory; name one with --workdir")
        check_writable(self.workdir)
        self._check_launcher()
        self._check_trackers()
        if self.report:
            outcome = collect(grid, self.workdir, self.seeds, result_console(), self.only)
        else:
            outcome = run_grid(
                grid,
                self.workdir,
                seeds=self.seeds,
                only=self.only,
                launcher=Local(self.jobs, self.track)
                if self.launcher == "local"
                else Cluster(self.workdir, self.slurm, track=self.track),
                jobs=self.jobs,
                rules=self._rules(),
                max_hours=self.max_hours,
            )
        if outcome.signal:
            return 128 + outcome.signal
        _print(outcome, self.workdir)
        return 1 if outcome.unfinished else 0

    def _rules(self) -> "GridRules":
        """Return the rules that the flags give."""
        from t2t_jax.commands.tune import tuned_fields
        from t2t_jax.sweep.rules import GridRules

        tune = tuned_fields(self.tune, for_sampler=self.sampler is not None)
        return GridRules(self.halving, tune, self.sampler, self.trials)

    def _check_trackers(self) -> None:
        """Refuse trackers that cannot be used from here, before any cell is started."""
        if self.track:
            from t2t_jax.run.trackers.tracker import kind_of, targets_of

            for target in targets_of(self.track):
                kind_of(target).check(target.project)

    def _check_launcher(self) -> None:
        if self.slurm and self.launcher != "slurm":
            raise UserError("--slurm has settings of jobs, but jobs need --launcher slurm")
        if self.jobs != 1 and self.launcher == "slurm":
            raise UserError(
                "--jobs is about this machine; the queue of the cluster has its own limits"
            )


def _print(outcome: "GridOutcome", workdir: Path) -> None:
    """Print the table of the finished variants, and the path of the whole table."""
    from t2t_jax.sweep.tables import summary

    console = result_console(highlight=False)
    if outcome.rows:
        console.print(summary(outcome.rows, outcome.results))
    console.print(f"all of it: {workdir}/table.*", soft_wrap=True)


def _listing(grid: "Grid", chosen: Sequence[str], num_seeds: int) -> "Table":
    """Return a table of the variants: their differences from the base, their numbers of parameters,
    and their published figures."""
    from rich.table import Table

    from t2t_jax.config.cost import num_parameters
    from t2t_jax.config.file import describe_difference
    from t2t_jax.sweep.published_columns import published_columns

    base = grid.variants[grid.base]
    columns = published_columns(grid.published, chosen)
    table = Table(
        box=None, title=f"{len(chosen)} variants, {num_seeds} seed(s)", title_justify="left"
    )
    table.add_column("variant")
    table.add_column("differs in", overflow="fold")
    published = [columns.listed_as] if columns else []
    for name in ("parameters", *published, "steps"):
        table.add_column(name, justify="right")
    for name in chosen:
        config = grid.variants[name]
        parameters = num_parameters(config.model, config.data.vocab_size)
        steps = config.training.num_train_steps
        difference = describe_difference(base, config)
        published = [columns.listed(name)] if columns else []
        table.add_row(name, difference, f"{parameters:,}", *published, f"{steps:,}")
    return table
