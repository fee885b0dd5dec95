"""Plan which cells of a grid to train, by rules recorded in the grid's directory.

GRID/rules.json records the rules, the seeds and the variants, which never change for a directory.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

from msgspec import Meta

from t2t_jax.config import Config
from t2t_jax.config.file import Grid, check_choices, check_size, checked_grid, product
from t2t_jax.config.training import SEED_FIELDS
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.sweep.cell import Cell, Scores, cells
from t2t_jax.sweep.comparison import OF_SUBWORDS
from t2t_jax.sweep.halving import HalvedGrid, Halving, check_can_be_halved
from t2t_jax.sweep.stored_grid import RULES, has_rules
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import COUNT, Record, read_object
from t2t_jax.version import EARLY_PROMOTIONS, SAMPLERS, removed_feature


class _Rules(TypedDict):
    halving: str | None
    tune: dict[str, list | Record]
    seeds: Annotated[int, Meta(ge=1)]
    rungs: list[COUNT]
    variants: list[str]


@dataclass(frozen=True)
class GridRules:
    """The rules of a sweep: pause weak variants early (halving), and try values of fields (tuning).

    By default, all seeds of all variants train fully.
    """

    halving: str | None = None
    """Settings of successive halving, such as `rungs=3,keep=0.33`."""
    tune: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Values of fields to tune, such as `{"training.learning_rate_factor": [0.5, 1, 2]}`."""

    def __post_init__(self) -> None:
        """Normalize `halving` and `tune`, and refuse invalid halving settings."""
        check_choices(self.tune)
        halving = None if self.halving is None else str(Halving.of(self.halving))
        object.__setattr__(self, "halving", halving)  # the dataclass is frozen
        tune = {path: list(values) for path, values in self.tune.items()}
        object.__setattr__(self, "tune", tune)


class PlannedGrid:
    """A grid with the rules that choose which cells to train, and how long."""

    def __init__(
        self, grid: Grid, workdir: Path, chosen: Sequence[str], num_seeds: int, rules: GridRules
    ) -> None:
        """Apply the rules to the chosen variants of a grid."""
        if num_seeds < 1:
            raise UserError(f"seeds={num_seeds} is not positive")
        sizes = {path: len(values) for path, values in rules.tune.items()}
        check_size({"rows": len(chosen), "seeds": num_seeds} | sizes)
        grid = grid._replace(variants={n: c for n, c in grid.variants.items() if n in chosen})
        self.grid, self.rules, self.num_seeds = grid, rules, num_seeds
        self.first: Sequence[str] = ()
        """The variants to train first, in order."""
        self.halved: HalvedGrid | None = None
        self.rungs: list[int] = []
        """The steps of the rungs; [] without halving."""
        self.candidates = {
            variant: {f"{variant},{name}": row for name, row in product(config, rules.tune).items()}
            for variant, config in (grid.variants.items() if rules.tune else ())
        }
        """Configs of the candidates (combinations of tuned values), by variant and candidate name;
        {} without tuning."""
        candidates = {n: c for configs in self.candidates.values() for n, c in configs.items()}
        self.expanded_grid = Grid(candidates, {}) if candidates else grid
        """The grid of trained rows: the variants, or their candidates."""
        self._cells = cells(self.expanded_grid, workdir, num_seeds)
        if rules.halving is not None:
            # The base is the only member of its group, so halving never stops it. The row that a
            # table compares with may be another one.
            base = grid._replace(compared_with="").base
            variants = [name for name in grid.variants if name != base]
            groups = [[*names] for names in self.candidates.values()] or [[base], variants]
            halving, cross_fit = Halving.of(rules.halving), bool(rules.tune)
            self.halved = HalvedGrid(self._cells, groups, halving, cross_fit=cross_fit)
            self.rungs = self.halved.steps

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return all cells, with the variants in `first` before the others."""
        cells = self.halved.cells(scores) if self.halved else self._cells
        variants = self.rows
        ranks = {name: rank for rank, name in enumerate(dict.fromkeys(self.first))}
        return sorted(cells, key=lambda c: ranks.get(variants[c.variant], len(ranks)))

    @property
    def rows(self) -> dict[str, str]:
        """Map the name of each trained row to its variant.

        With tuning, the rows are candidates of variants; otherwise, each variant is a row.
        """
        variant_of = {name: variant for variant, rows in self.candidates.items() for name in rows}
        return variant_of or {name: name for name in self.grid.variants}


def _check_tuned(rules: GridRules) -> None:
    if "training.seed" in rules.tune:
        raise UserError("--tune cannot tune training.seed, which --seeds sets; leave it out")
    for path in rules.tune:
        if path.startswith(("decoding.", "evaluation.")):
            raise UserError(f"--tune {path} does not change the dev perplexity; leave it out")
        if path in OF_SUBWORDS:
            raise UserError(
                f"--tune {path} changes the subwords, so perplexities cannot be compared; use "
                "--vary for this field"
            )


def _check_variants(grid: Grid, values: Mapping[str, object]) -> None:
    variants: dict[Config, str] = {}
    for variant, config in grid.variants.items():
        if (twin := variants.setdefault(config.replace(values), variant)) != variant:
            raise UserError(
                f"{twin} and {variant} differ only in {', '.join(values)}, which --tune "
                "sets for both; leave one variant out with --only"
            )


def chosen_variants(grid: Grid, patterns: Iterable[str]) -> list[str]:
    """Return the variants that match any name or pattern, such as `A-*`; all without patterns."""
    chosen = set[str]()
    for pattern in patterns:
        if not (matches := fnmatch.filter(grid.variants, pattern)):
            hint = did_you_mean(pattern, grid.variants, f"it has {', '.join(grid.variants)}")
            raise UserError(f"no variant of the grid is called {quote(pattern)}; {hint}")
        chosen |= {*matches}
    return [name for name in grid.variants if name in chosen or not chosen]


def check_distinct(variants: Mapping[str, Config], num_seeds: int) -> None:
    """Refuse variants and seeds that would train the same run twice.

    Args:
      num_seeds: the number of seeds per variant, counted from its `training.seed`.
    """
    # The variant and seed that each run belongs to. A variant that sets all three seed fields
    # repeats the same run under every seed.
    owners: dict[Config, tuple[str, int]] = {}
    for name, config in variants.items():
        for seed in range(config.training.seed, config.training.seed + num_seeds):
            twin, twin_seed = owners.setdefault(_with_explicit_seeds(config, seed), (name, seed))
            if (twin, twin_seed) != (name, seed):
                raise UserError(
                    f"{twin} with seed {twin_seed} and {name} with seed {seed} are the same run; "
                    "leave one of these rows out, or use --seeds 1 if the rows set their seeds"
                )


def _with_explicit_seeds(config: Config, seed: int) -> Config:
    training = config.replace({"training.seed": seed}).training
    seeds = {f"training.{field}": training.effective_seed(field) for field in SEED_FIELDS}
    return config.replace({"training.seed": 0, **seeds})


def plan_grid(
    grid: Grid, workdir: Path, chosen: Sequence[str], seeds: int, rules: GridRules
) -> PlannedGrid:
    """Plan a sweep by the rules recorded in its directory, or else by the given rules.

    Args:
      chosen: the names of the requested variants.
    """
    if (record := _read_rules(workdir)) is not None:
        plan = _plan_by_record(grid, workdir, record, chosen, seeds, rules)
    else:
        _check_tuned(rules)
        plan = PlannedGrid(grid, workdir, chosen, seeds, rules)
        if old_cells := [c.name for c in plan.cells({}) if plan.halved and c.workdir.exists()]:
            raise UserError(
                f"{workdir} has cells that were begun without --halving, such as {old_cells[0]}, "
                "so they have no scores at the rungs; choose another --workdir"
            )
    if tune := plan.rules.tune:
        # Any value shows whether variants differ in other fields.
        _check_variants(plan.grid, {path: values[0] for path, values in tune.items()})
        checked_grid(plan.expanded_grid.variants, {}, "--tune")
    if plan.halved:
        check_can_be_halved(plan.expanded_grid)
    check_distinct(plan.grid.variants, seeds)
    return plan


def recorded_plan(grid: Grid, workdir: Path, num_seeds: int, chosen: Sequence[str]) -> PlannedGrid:
    """Return a sweep's plan by the rules recorded in `workdir`, without changing the sweep.

    Without rules, plan all seeds of `chosen` variants.
    """
    if (record := _read_rules(workdir)) is None:
        return PlannedGrid(grid, workdir, chosen, num_seeds, GridRules())
    chosen = [name for name in grid.variants if name in record["variants"]]
    return _plan_by_record(grid, workdir, record, chosen, record["seeds"], GridRules())


def _plan_by_record(
    grid: Grid, workdir: Path, record: Record, chosen: Sequence[str], seeds: int, rules: GridRules
) -> PlannedGrid:
    # A resumed sweep keeps its recorded rules, and refuses other rules, seeds or variants.
    old_rules = GridRules(**{name: record[name] for name in asdict(rules)})
    if rules not in (old_rules, GridRules()):
        raise UserError(
            f"{workdir} has the rules {_describe(old_rules)}, not {_describe(rules)}; leave "
            "these flags out to use the recorded rules, or choose another --workdir"
        )
    if seeds != record["seeds"] or set(chosen) != set(record["variants"]):
        raise UserError(
            f"the rules of {workdir} are for --seeds {record['seeds']} and the variants "
            f"{', '.join(record['variants'])}; give these, or choose another --workdir"
        )
    plan = PlannedGrid(grid, workdir, chosen, seeds, old_rules)
    if plan.rungs != record["rungs"]:
        raise UserError(
            f"{workdir} has rungs at the steps {', '.join(map(str, record['rungs']))}, and this "
            f"grid at {', '.join(map(str, plan.rungs))}; restore training.num_train_steps and "
            "checkpoint.every_steps, or choose another --workdir"
        )
    return plan


def record_rules(plan: PlannedGrid, workdir: Path) -> None:
    """Write the rules, if there are any, into the grid's directory."""
    if plan.rules != GridRules():
        workdir.mkdir(parents=True, exist_ok=True)
        record = asdict(plan.rules) | {"variants": [*plan.grid.variants]}
        record |= {"seeds": plan.num_seeds, "rungs": plan.rungs}
        write_whole(workdir / RULES, (json.dumps(record, indent=2) + "\n").encode())


def _read_rules(workdir: Path) -> Record | None:
    path = workdir / RULES
    way_out = "restore it from a copy, or choose another --workdir"
    if path.exists():
        record = read_object(path, _Rules, way_out)
        if sampler := record.get("sampler"):
            raise removed_feature(f"{path} with --sampler {sampler}", SAMPLERS)
        if "asha" in (record["halving"] or ""):
            raise removed_feature(f"{path} with --halving {record['halving']}", EARLY_PROMOTIONS)
        return record
    if has_rules(workdir):
        raise UserError(
            f"{path} with the rules of the grid is missing; restore it from a copy, or, to train "
            "all cells to the end, remove has_rules from grid.json"
        )
    return None


def _describe(rules: GridRules) -> str:
    tune = (f"{path}={','.join(map(str, values))}" for path, values in rules.tune.items())
    flags = asdict(rules) | {"tune": " ".join(tune)}
    return " ".join(f"--{name} {value}" for name, value in flags.items() if value) or "none"
