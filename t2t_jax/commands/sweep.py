"""The command that trains a grid of configs and compares them in a table."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.config import config_named
from t2t_jax.commands.flag_table import REPEATED, ConfigFields, flags_of_plugins, with_plugins
from t2t_jax.commands.flags import CommandLine, parse_flags, with_family
from t2t_jax.commands.tables import print_line, result_console
from t2t_jax.commands.vary import choices_of, tuned_fields
from t2t_jax.config import Config
from t2t_jax.config.file import Grid, check_size, checked_grid, load_grid, product, product_file
from t2t_jax.errors import UserError, did_you_mean, quote

if TYPE_CHECKING:
    from t2t_jax.sweep.grid import GridOutcome
    from t2t_jax.sweep.launchers import Launcher

_USAGE = (
    "a sweep takes a config file with VARIANTS and a directory, as in --config configs/table3.py "
    "--workdir runs/table3"
)


@dataclass(frozen=True)
class SweepCommand:
    """Train and score every variant of a grid, and write a table that compares them.

    Each variant and seed has a process and a run directory of its own. Finished ones are skipped,
    interrupted ones go on where they were, and one that fails does not stop the others.
    """

    lists_fields: ClassVar = False
    examples: ClassVar = (
        "--config configs/table3_small.py --dry-run",
        "--config configs/table3.py runs/table3 --seeds 3 --only base 'A-*'",
        "runs/x --config base --vary model.d_ff=1024,2048 --vary training.warmup_steps=1000,4000",
        "runs/x --seeds 3",
    )
    config: str | None = None
    """Config file with VARIANTS, such as configs/table3.py; or with --vary, one config, as train
    takes it. A directory that has a grid needs none."""
    vary: Annotated[tuple[str, ...], REPEATED] = ()
    """FIELD=VALUES, as model.d_ff=1024,2048, or a range of N values, FIELD=LEAST:MOST:logN or
    :linN. Fields after one --vary change together; each further --vary multiplies the rows."""
    workdir: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the grid, for runs in VARIANT/seedN/, the grid itself in grid.py, seeds.csv,
    curves.csv, and table.md, .tex, .csv, .png and .pdf."""
    only: tuple[str, ...] = ()
    """Variants to train, as names or patterns such as 'A-*'; the table still has all of them."""
    first: tuple[str, ...] = ()
    """Variants to train ahead of the others, with all of their seeds, as names or patterns."""
    seeds: int | None = None
    """Number of seeds of each variant, counted from its training.seed; without it as many as the
    directory has been given, or else 1."""
    launcher: Literal["local", "slurm"] = "local"
    """Train in processes of this machine, or in jobs of a Slurm cluster (through submitit)."""
    jobs: int = 1
    """Number of processes at once on this machine, at most that of its GPUs, if it has any; each
    process has its share of the cores, and GPUs of its own."""
    slurm: tuple[str, ...] = ()
    """Settings of the jobs, as name=value: timeout_min=1440 slurm_partition=gpu gpus_per_node=8."""
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
    """List the variants with their differences from the base, parameters and steps, and the
    figures of the paper; train nothing."""
    report: bool = False
    """Write the table of the finished runs, and train nothing."""
    rename: str | None = None
    """Rename a row of the directory, as OLD=NEW, and train nothing. Change the name in the config
    file, too."""
    base: str | None = None
    """With --report, the variant with which the table compares the others."""
    split: Literal["dev", "test"] = "dev"
    """Split of the table. test scores the finished cells on it at the end, once; dev still makes
    all choices. With --report, the table has the existing scores."""
    again: bool = False
    """Score cells that are new or changed since the scoring on test. The table reports it."""
    comparisons: Literal["base", "all"] = "base"
    """Comparisons for which p-values are adjusted: of each row with the base (Dunnett), or of all
    pairs (Holm)."""
    allow_mixed: bool = False
    """Pool cells of different code, or whose runs chose different settings, and mark their rows
    with what differs."""
    columns: tuple[str, ...] | None = None
    """With --report, the columns of table.tex: of variant, differs_in, seeds, perplexity,
    perplexity_effect, perplexity_p, score, score_effect, score_p, parameters, steps."""
    fields: ConfigFields = field(default_factory=Config)
    """The config that --vary varies, with the fields that flags change."""

    def run(self) -> int:
        """Train the grid, print its table, and return 0 if every wanted cell has a result."""
        from t2t_jax.sweep.grid import check_counts, collect, run_grid
        from t2t_jax.sweep.rules import GridRules, chosen_variants, planned_grid
        from t2t_jax.system.atomic_file import check_writable

        if self.dry_run + self.report + (self.rename is not None) > 1:
            raise UserError("give one of --dry-run, --report and --rename")
        if self.again and (self.split == "dev" or self.report):
            raise UserError("--again is for a further scoring on test: add --split test to a sweep")
        if self.rename is not None:
            return self._rename(self.rename)
        if self.columns is not None and not self.report:
            raise UserError("--columns chooses columns of table.tex; add --report to write it")
        if self.columns == ():
            raise UserError("--columns is empty; name some, as variant score, or leave it out")
        tune = tuned_fields(self.tune, for_sampler=self.sampler is not None)
        rules = GridRules(self.halving, tune, self.sampler, self.trials)
        if self.report and rules != GridRules():
            raise UserError(
                "--report uses recorded rules; leave out --halving, --tune, --sampler and --trials"
            )
        grid = self._with_base(self._grid())
        chosen = chosen_variants(grid, self.only)
        seeds = self._seeds()
        check_counts(seeds=seeds, jobs=self.jobs)
        check_size({"rows": len(chosen), "seeds": seeds})
        self._check_launcher()
        if self.dry_run:
            from t2t_jax.sweep.tables import listing

            with TemporaryDirectory() as empty:  # planned for its checks of the rules
                planned_grid(grid, self.workdir or Path(empty), chosen, seeds, rules)
            console = result_console(highlight=False)
            console.print(listing(grid, chosen, seeds, console.width))
            return 0
        if self.workdir is None:
            raise UserError("a sweep needs a directory; name one with --workdir")
        check_writable(self.workdir)
        for part in flags_of_plugins(self):
            part.check(self.workdir)
        if self.report:
            outcome = collect(
                grid,
                self.workdir,
                seeds,
                result_console(),
                chosen,
                allow_mixed=self.allow_mixed,
                columns=self.columns or (),
                split=self.split,
                comparisons=self.comparisons,
            )
        else:
            outcome = run_grid(
                grid,
                self.workdir,
                seeds=seeds,
                only=self.only,
                first=self.first,
                launcher=self._launcher(self.workdir),
                jobs=self.jobs,
                rules=rules,
                max_hours=self.max_hours,
                allow_mixed=self.allow_mixed,
                split=self.split,
                again=self.again,
                comparisons=self.comparisons,
            )
        if outcome.signal:
            return 128 + outcome.signal
        _print(outcome, self.workdir)
        return 1 if outcome.unfinished else 0

    def _launcher(self, workdir: Path) -> "Launcher":
        from t2t_jax.sweep.launchers import Cluster, Local

        texts = [part.as_text() for part in flags_of_plugins(self)]
        if self.launcher == "slurm":
            return Cluster(workdir, self.slurm, flags=texts)
        return Local(self.jobs, texts)

    def _rename(self, names: str) -> int:
        from t2t_jax.sweep.stored_grid import rename_row

        if self.workdir is None:
            raise UserError("--rename needs the directory of a grid, as in runs/x --rename a=b")
        old, new = rename_row(self.workdir, names)
        print_line(f"{old} is {new} now; change the name in the config file, too")
        return 0

    def _grid(self) -> Grid:
        """Return the grid: of --vary, of the config file, or of the directory."""
        from t2t_jax.sweep.stored_grid import stored_grid

        if self.vary:
            choices = choices_of(self.vary, self.fields)
            given = " ".join(f"--vary {shlex.quote(factor)}" for factor in self.vary)
            title = f"The grid of t2t-jax sweep --config {shlex.quote(str(self.config))} {given}"
            grid = checked_grid(product(self.fields, choices), {}, "--vary")
            return grid._replace(source=product_file(self.fields, choices, title))
        if self.fields != Config():
            raise UserError(
                "flags of fields need --vary; without it, write them into the grid's config file"
            )
        if self.config is not None:
            return load_grid(self.config)
        if self.workdir is None:
            raise UserError(f"{_USAGE}, or the directory of a grid; see --help")
        return stored_grid(self.workdir)

    def _with_base(self, grid: Grid) -> Grid:
        """Return the grid, compared with the row that --base names."""
        if self.base is None:
            return grid
        if not self.report:
            raise UserError("--base chooses the base of a table; give it with --report")
        if self.base not in grid.variants:
            hint = did_you_mean(self.base, grid.variants, f"it has {', '.join(grid.variants)}")
            raise UserError(f"--base {quote(self.base)} is no row of the grid; {hint}")
        return grid._replace(compared_with=self.base)

    def _seeds(self) -> int:
        from t2t_jax.sweep.stored_grid import read_record

        if self.seeds is None and self.workdir is not None:
            return int(read_record(self.workdir).get("seeds", 1))
        return 1 if self.seeds is None else self.seeds

    def _check_launcher(self) -> None:
        if self.slurm and self.launcher != "slurm":
            raise UserError("--slurm has settings of jobs, but jobs need --launcher slurm")
        if self.jobs != 1 and self.launcher == "slurm":
            raise UserError("--jobs is for this machine; a cluster's queue has its own limits")


def _print(outcome: "GridOutcome", workdir: Path) -> None:
    """Print the table of the finished variants, and the path of the whole table."""
    from t2t_jax.sweep.tables import summary

    console = result_console(highlight=False)
    if outcome.rows:
        console.print(summary(outcome.rows, outcome.results, console.width))
    console.print(f"all of it: {workdir}/table.*", soft_wrap=True)


def sweep_command(arguments: Sequence[str], program: str) -> SweepCommand:
    """Return the command that a command line asks for; see `entry_command`."""
    if not arguments:
        raise UserError(f"{_USAGE}; see --help")
    kind = with_plugins(SweepCommand, "sweep")

    def defaults(line: CommandLine) -> SweepCommand:
        file = line.value_of("--config")
        if "--vary" not in line.flags:
            return kind(fields=with_family(Config(), line))
        if file is None:
            raise UserError("--vary varies the fields of a config; name one, as in --config base")
        return kind(fields=with_family(config_named(file), line))

    return parse_flags(kind, arguments, program, defaults)
