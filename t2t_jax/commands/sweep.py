"""The command `sweep`: train a grid of configs and compare them in a table."""

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
from t2t_jax.commands.tables import result_console
from t2t_jax.commands.vary import choices_of, values_by_field
from t2t_jax.config import Config
from t2t_jax.config.file import Grid, checked_grid, load_grid, product, product_file
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

    Each combination of variant and seed is a run with a separate process and run directory. The
    sweep skips finished runs, resumes interrupted runs, and continues after a failed run.
    """

    lists_fields: ClassVar = False
    examples: ClassVar = (
        "--config configs/table3_small.py --dry-run",
        "--config configs/table3.py runs/table3 --seeds 3 --only base 'A-*'",
        "runs/x --config base --vary model.d_ff=1024,2048 --vary training.warmup_steps=1000,4000",
        "runs/x --seeds 3",
    )
    config: str | None = None
    """Config file with VARIANTS, such as configs/table3.py; with --vary, a config as for train.
    Not needed if DIR already has a grid."""
    vary: Annotated[tuple[str, ...], REPEATED] = ()
    """FIELD=VALUES, such as model.d_ff=1024,2048, or a range of N values, FIELD=LOW:HIGH:logN or
    :linN. Fields after the same --vary change together; several --vary give all combinations."""
    workdir: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the sweep. It holds the runs in VARIANT/seedN/, the grid in grid.py, seeds.csv,
    curves.csv, and table.md, .tex, .csv, .png and .pdf."""
    only: tuple[str, ...] = ()
    """Variants to train, as names or patterns such as 'A-*'; the table still lists all variants."""
    first: tuple[str, ...] = ()
    """Variants to train first, with all of their seeds, as names or patterns."""
    seeds: int | None = None
    """Number of seeds per variant, counted from its training.seed. By default, the number recorded
    in the directory, or else 1."""
    launcher: Literal["local", "slurm"] = "local"
    """Train in processes on this machine, or in Slurm jobs (submitted with submitit)."""
    jobs: int = 1
    """Number of parallel processes on this machine, at most one per GPU if there are GPUs. Each
    process gets exclusive GPUs and a share of the CPU cores."""
    slurm: tuple[str, ...] = ()
    """Settings of jobs, as name=value: timeout_min=1440 slurm_partition=gpu gpus_per_node=8."""
    halving: str | None = None
    """Stop weak variants early (successive halving): rungs=3,keep=0.33 pauses all variants at two
    rungs, and continues the best third and the base at each."""
    tune: tuple[str, ...] = ()
    """Fields to tune for each variant, such as model.dropout_rate=0.1,0.3 or
    training.learning_rate_factor=0.5:2:log5. The table compares each variant at its best value."""
    max_hours: float | None = None
    """Time limit in hours: then no run starts, and local runs stop with a checkpoint."""
    dry_run: bool = False
    """List the variants with their differences from the base, parameter counts, steps, and results
    in the paper; train nothing."""
    report: bool = False
    """Write the table of the finished runs; train nothing."""
    rename: str | None = None
    """Rename a variant in the directory, as OLD=NEW; train nothing. Also change the name in the
    config file."""
    base: str | None = None
    """With --report, the baseline variant of the table."""
    split: Literal["dev", "test"] = "dev"
    """Split that the table reports. With test, finished runs are scored on test once, at the end;
    all choices are still made on dev. With --report, the table uses existing scores."""
    again: bool = False
    """Score runs on test that are new or changed since the last test scores; the table notes it."""
    comparisons: Literal["base", "all"] = "base"
    """Comparisons to adjust p-values for: each variant against the base (Dunnett), or all pairs
    (Holm)."""
    allow_mixed: bool = False
    """Pool runs of different code versions or automatic settings, and mark the differences in the
    table."""
    columns: tuple[str, ...] | None = None
    """With --report, the columns of table.tex, chosen from variant, differs_in, seeds, perplexity,
    perplexity_effect, perplexity_p, score, score_effect, score_p, parameters, steps."""
    fields: ConfigFields = field(default_factory=Config)
    """The config that --vary varies, with overrides from flags."""

    def run(self) -> int:
        """Train the grid, print its table, and return 0 if every selected run has a result."""
        from t2t_jax.sweep.grid import collect, run_grid
        from t2t_jax.sweep.rules import GridRules, chosen_variants, plan_grid
        from t2t_jax.system.atomic_file import check_writable

        if self.dry_run + self.report + (self.rename is not None) > 1:
            raise UserError("give one of --dry-run, --report and --rename")
        if self.again and (self.split == "dev" or self.report):
            raise UserError("--again scores on test again: add --split test, without --report")
        if self.rename is not None:
            return self._rename(self.rename)
        if self.columns is not None and not self.report:
            raise UserError("--columns selects columns of table.tex; add --report to write it")
        if self.columns == ():
            raise UserError("--columns is empty; name some, such as variant score, or leave it out")
        rules = GridRules(self.halving, values_by_field("--tune", self.tune))
        if self.report and rules != GridRules():
            raise UserError("--report uses recorded rules; leave out --halving and --tune")
        grid = self._select_base(self._grid())
        names = chosen_variants(grid, self.only)
        num_seeds = self._num_seeds()
        self._check_launcher()
        if self.dry_run:
            from t2t_jax.sweep.tables import listing

            with TemporaryDirectory() as empty:  # planning also checks the rules
                plan_grid(grid, self.workdir or Path(empty), names, num_seeds, rules)
            console = result_console(highlight=False)
            console.print(listing(grid, names, num_seeds, console.width))
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
                num_seeds,
                result_console(),
                names,
                allow_mixed=self.allow_mixed,
                columns=self.columns or (),
                split=self.split,
                comparisons=self.comparisons,
            )
        else:
            outcome = run_grid(
                grid,
                self.workdir,
                seeds=num_seeds,
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
            return 128 + outcome.signal  # the exit code that shells report
        _print(outcome, self.workdir)
        return 1 if outcome.unfinished else 0

    def _launcher(self, workdir: Path) -> "Launcher":
        from t2t_jax.sweep.launchers import Cluster, Local

        flag_texts = [part.as_text() for part in flags_of_plugins(self)]
        if self.launcher == "slurm":
            return Cluster(workdir, self.slurm, flags=flag_texts)
        return Local(self.jobs, flag_texts)

    def _rename(self, old_and_new: str) -> int:
        from t2t_jax.sweep.stored_grid import rename_row

        if self.workdir is None:
            raise UserError("--rename needs the directory of a grid, as in runs/x --rename a=b")
        old, new = rename_row(self.workdir, old_and_new)
        print(f"renamed {old} to {new}; change the name in the config file, too")
        return 0

    def _grid(self) -> Grid:
        """Load the grid from --vary, the config file or the directory."""
        from t2t_jax.sweep.stored_grid import stored_grid

        if self.vary:
            choices = choices_of(self.vary, self.fields)
            varied = " ".join(f"--vary {shlex.quote(factor)}" for factor in self.vary)
            title = f"The grid of t2t-jax sweep --config {shlex.quote(str(self.config))} {varied}"
            grid = checked_grid(product(self.fields, choices), {}, "--vary")
            return grid._replace(source=product_file(self.fields, choices, title))
        if self.fields != Config():
            raise UserError(
                "config flags need --vary; without it, set the fields in the grid's config file"
            )
        if self.config is not None:
            return load_grid(self.config)
        if self.workdir is None:
            raise UserError(f"{_USAGE}, or the directory of a grid; see --help")
        return stored_grid(self.workdir)

    def _select_base(self, grid: Grid) -> Grid:
        """Set the baseline of the grid to the variant of --base, if the flag is given."""
        if self.base is None:
            return grid
        if not self.report:
            raise UserError("--base selects the baseline of the table; give it with --report")
        if self.base not in grid.variants:
            hint = did_you_mean(self.base, grid.variants, f"it has {', '.join(grid.variants)}")
            raise UserError(f"--base {quote(self.base)} is not a variant of the grid; {hint}")
        return grid._replace(compared_with=self.base)

    def _num_seeds(self) -> int:
        from t2t_jax.sweep.stored_grid import read_record

        if self.seeds is None and self.workdir is not None:
            return int(read_record(self.workdir).get("seeds", 1))
        return 1 if self.seeds is None else self.seeds

    def _check_launcher(self) -> None:
        if self.slurm and self.launcher != "slurm":
            raise UserError("--slurm sets options of Slurm jobs; add --launcher slurm")
        if self.jobs != 1 and self.launcher == "slurm":
            raise UserError("--jobs is for this machine; leave it out with --launcher slurm")


def _print(outcome: "GridOutcome", workdir: Path) -> None:
    from t2t_jax.sweep.tables import summary

    console = result_console(highlight=False)
    if outcome.rows:
        console.print(summary(outcome.rows, outcome.results, console.width))
    console.print(f"full table: {workdir}/table.*", soft_wrap=True)


def sweep_command(arguments: Sequence[str], program: str) -> SweepCommand:
    """Parse the command line of `t2t-jax sweep`; `entry_command` finds it by name."""
    if not arguments:
        raise UserError(f"{_USAGE}; see --help")
    kind = with_plugins(SweepCommand, "sweep")

    def defaults(line: CommandLine) -> SweepCommand:
        config_name = line.value_of("--config")
        if "--vary" not in line.flags:
            return kind(fields=with_family(Config(), line))
        if config_name is None:
            raise UserError("--vary varies the fields of a config; name one, as in --config base")
        return kind(fields=with_family(config_named(config_name), line))

    return parse_flags(kind, arguments, program, defaults)
