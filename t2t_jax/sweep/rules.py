"""The rules that choose cells of a grid, and their record in the grid's directory.

GRID/rules.json has the rules, the seeds and the variants. They decide which cells are trained, so
they never change for a directory.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, NotRequired, TypeAlias, TypedDict

from msgspec import Meta

from t2t_jax.config import Config
from t2t_jax.config.file import Choices, Grid, check_size, checked_grid, product
from t2t_jax.config.training import SEED_FIELDS
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.sweep.cell import Cell, GridPlan, Scores, cells, decided
from t2t_jax.sweep.comparison import OF_SUBWORDS, grouped
from t2t_jax.sweep.halving import HalvedGrid, Halving, check_can_be_halved
from t2t_jax.sweep.sampling import Range, SampledGrid
from t2t_jax.sweep.stored_grid import RULES, has_rules
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import COUNT, Record, read_object

Candidates: TypeAlias = Mapping[str, Sequence[object] | Range]
"""The values of tuned fields, or for a sampler their ranges, by the path of the field."""


class _Rules(TypedDict):
    halving: str | None
    tune: dict[str, list | Range]
    sampler: str | None
    trials: COUNT | None
    at_once: COUNT
    seeds: Annotated[int, Meta(ge=1)]
    rungs: list[COUNT]
    variants: list[str]
    optuna: NotRequired[str]


@dataclass(frozen=True)
class GridRules:
    """The rules of a grid, in the form of flags. Without any, every cell is trained to its end."""

    halving: str | None = None
    """The halving of the variants, as `rungs=3,keep=0.33`."""
    tune: Candidates = field(default_factory=dict)
    """The fields that each variant has its own best value of, with the values, or for a sampler the
    range, by the path of the field: `{"training.learning_rate_factor": [0.5, 1, 2]}`."""
    sampler: str | None = None
    """The sampler that proposes the values, as `optuna:tpe`."""
    trials: int | None = None
    """The number of values that the sampler proposes for a variant."""

    def __post_init__(self) -> None:
        """Normalize the values, and check them."""
        halving = None if self.halving is None else str(Halving.of(self.halving))
        object.__setattr__(self, "halving", halving)
        tune = {p: v if isinstance(v, Range) else list(v) for p, v in self.tune.items()}
        object.__setattr__(self, "tune", tune)


class PlannedGrid:
    """A grid with its plan."""

    def __init__(
        self, grid: Grid, workdir: Path, rules: GridRules, seeds: int, at_once: int = 1
    ) -> None:
        """Make the plan of the variants of a grid.

        Args:
          at_once: the number of trials that a sampler may request before the first is scored.
        """
        self.grid, self.rules, self.seeds, self.at_once = grid, rules, seeds, at_once
        self.trained = grid
        """The rows that are trained: the variants, or the candidates with values of lists."""
        self.first: Sequence[str] = ()
        """The variants whose cells are trained before the others, in order."""
        self.optuna = ""
        """The version of Optuna that began the grid."""
        self.halved: HalvedGrid | None = None
        self.rungs: list[int] = []
        """The steps of the rungs; [] without halving."""
        self.candidates: dict[str, dict[str, Config]] = {}
        """The configs of each tuned variant so far, by variant and name."""
        if rules.sampler is not None:
            ranges = {path: found for path, found in rules.tune.items() if isinstance(found, Range)}
            trials = rules.trials or 0
            sampled = SampledGrid(grid, workdir, seeds, rules.sampler, ranges, trials, at_once)
            self.plan: GridPlan = sampled.cells
            self.optuna, self.candidates = sampled.optuna, sampled.candidates
            return
        groups = [[n for n in grid.variants if (n == grid.base) == is_base] for is_base in (1, 0)]
        if rules.tune:
            self.candidates = _tuned(grid, rules.tune)
            groups = [list(group) for group in self.candidates.values()]
            tuned = {n: c for group in self.candidates.values() for n, c in group.items()}
            self.trained = Grid(tuned, {})
        trained = cells(self.trained, workdir, seeds)
        self.plan = lambda scores: trained
        if rules.halving is not None:
            rows = grouped((cell.variant, cell) for cell in trained)
            halving, leave_out = Halving.of(rules.halving), bool(rules.tune)
            self.halved = HalvedGrid(rows, groups, halving, workdir, leave_out=leave_out)
            self.plan, self.rungs = self.halved.cells, self.halved.steps

    def cells(self, scores: Scores) -> Sequence[Cell]:
        """Return the cells of the plan, those of the variants in `first` before the others."""
        cells, variants = self.plan(scores), self.rows
        places = {name: place for place, name in enumerate(dict.fromkeys(self.first))}
        return sorted(cells, key=lambda c: places.get(variants[c.variant], len(places)))

    @property
    def rows(self) -> dict[str, str]:
        """Return the variant of each trained row so far, by the row's name."""
        tuned = {name: variant for variant, group in self.candidates.items() for name in group}
        return tuned or {name: name for name in self.grid.variants}


def _check_tuned(rules: GridRules) -> None:
    """Refuse tuned fields without values, or with values that do not fit the rule."""
    if "training.seed" in rules.tune:
        raise UserError("--tune has training.seed, which --seeds has; leave it out")
    for path, values in rules.tune.items():
        if path.startswith(("decoding.", "evaluation.")):
            raise UserError(f"--tune has {path}, which changes no perplexity on dev; leave it out")
        if path in OF_SUBWORDS:
            raise UserError(
                f"--tune has {path}, which changes the subwords, so that perplexities cannot be "
                "compared; give it to --vary"
            )
        if isinstance(values, Range):
            values.check()
        if isinstance(values, Range) != (rules.sampler is not None):
            example = "0.5:2:log" if rules.sampler else "0.5:2:log5"
            kind = "a sampler" if rules.sampler else "all values of a list"
            raise UserError(f"--tune {path}={_shown(values)} is not for {kind}; write {example}")
        if not values:
            raise UserError(f"--tune {path} has no values; give some, or leave it out")


def _check_together(rules: GridRules) -> None:
    if rules.sampler is None:
        if rules.trials is not None:
            raise UserError(f"--trials {rules.trials} needs --sampler, as in --sampler optuna:tpe")
        return
    if rules.trials is None or rules.trials < 1:
        raise UserError(f"--sampler {rules.sampler} needs --trials, a positive number, such as 12")
    if not rules.tune:
        raise UserError(
            f"--sampler {rules.sampler} has no range; give one, as --tune model.d_ff=64:512:log"
        )
    if rules.halving is not None:
        raise UserError(
            f"--sampler {rules.sampler} learns from whole trials, which --halving cuts short; "
            "leave one of them out"
        )


def _tuned(grid: Grid, tune: Candidates) -> dict[str, dict[str, Config]]:
    """Return the configs of every variant with each combination of values, by variant and name.

    Args:
      tune: values by the path of a field, such as `{"training.learning_rate_factor": [0.5, 1]}`.
    """
    of_each: Choices = {p: values for p, values in tune.items() if not isinstance(values, Range)}
    return {
        variant: {f"{variant},{name}": tuned for name, tuned in product(config, of_each).items()}
        for variant, config in grid.variants.items()
    }


def _check_differ(grid: Grid, values: Mapping[str, object]) -> None:
    """Refuse variants that would be equal with the same values of the tuned fields."""
    seen: dict[Config, str] = {}
    for variant, config in grid.variants.items():
        if (other := seen.setdefault(config.replace(values), variant)) != variant:
            raise UserError(
                f"{other} and {variant} differ in nothing but {', '.join(values)}, which "
                "--tune sets for both; leave one of them out with --only"
            )


def chosen_variants(grid: Grid, patterns: Iterable[str]) -> list[str]:
    """Return the variants that names or patterns such as `A-*` match, in the grid's order."""
    chosen = set[str]()
    for pattern in patterns:
        if not (matches := fnmatch.filter(grid.variants, pattern)):
            hint = did_you_mean(pattern, grid.variants, f"it has {', '.join(grid.variants)}")
            raise UserError(f"no variant of the grid is called {quote(pattern)}; {hint}")
        chosen |= {*matches}
    return [name for name in grid.variants if name in chosen or not chosen]


def check_distinct(variants: Mapping[str, Config], seeds: int) -> None:
    """Refuse variants with two equal trainings, which would not be independent.

    A variant that sets all three seeds has the same training under every seed.

    Args:
      seeds: the number of seeds, counted from the `training.seed` of each variant.
    """
    trained: dict[Config, tuple[str, int]] = {}
    for name, config in variants.items():
        for seed in range(config.training.seed, config.training.seed + seeds):
            other, first = trained.setdefault(_with_explicit_seeds(config, seed), (name, seed))
            if (other, first) != (name, seed):
                raise UserError(
                    f"{other} with seed {first} and {name} with seed {seed} are the same training, "
                    "which would run twice; leave one of these rows out, or give --seeds 1 if the "
                    "rows set their seeds"
                )


def _with_explicit_seeds(config: Config, seed: int) -> Config:
    """Return the config under a `training.seed`, with the three seeds that follow from it."""
    training = config.replace({"training.seed": seed}).training
    seeds = {f"training.{field}": training.effective_seed(field) for field in SEED_FIELDS}
    return config.replace({"training.seed": 0, **seeds})


def planned_grid(
    grid: Grid, workdir: Path, chosen: Sequence[str], seeds: int, rules: GridRules, at_once: int = 1
) -> PlannedGrid:
    """Return the plan of a sweep by the given rules, or else by those of the directory."""
    if (stored := _read(workdir)) is not None:
        planned = _replanned(grid, workdir, stored, chosen, seeds, rules)
    else:
        _check_tuned(rules)
        _check_together(rules)
        values = {path: len(v) for path, v in rules.tune.items() if not isinstance(v, Range)}
        values |= {"trials": rules.trials} if rules.trials else {}
        check_size({"rows": len(chosen), "seeds": seeds} | values)
        planned = PlannedGrid(_only(grid, chosen), workdir, rules, seeds, at_once)
        if planned.halved:
            trained = cells(planned.trained, workdir, seeds)
            if begun := [cell.name for cell in trained if cell.workdir.exists()]:
                raise UserError(
                    f"{workdir} has cells that were begun without --halving, such as {begun[0]}, "
                    "and no scores of theirs at the rungs; choose another --workdir"
                )
    tune = planned.rules.tune.items()
    if tune:
        _check_differ(planned.grid, {p: v.low if isinstance(v, Range) else v[0] for p, v in tune})
        checked_grid(planned.trained.variants, {}, "--tune")
    if planned.halved:
        check_can_be_halved(planned.trained)
    check_distinct(planned.grid.variants, seeds)
    return planned


def recorded_plan(grid: Grid, workdir: Path, seeds: int, chosen: Sequence[str]) -> PlannedGrid:
    """Return the plan by the rules of a directory, or by the arguments, for reading only."""
    if (stored := _read(workdir)) is None:
        return PlannedGrid(_only(grid, chosen), workdir, GridRules(), seeds)
    chosen = [name for name in grid.variants if name in stored["variants"]]
    planned = _replanned(grid, workdir, stored, chosen, stored["seeds"], GridRules())
    if planned.halved:
        planned.halved.keeps_journal = False
    return planned


def _only(grid: Grid, chosen: Sequence[str]) -> Grid:
    return grid._replace(variants={n: c for n, c in grid.variants.items() if n in chosen})


def _replanned(
    grid: Grid, workdir: Path, stored: Record, chosen: Sequence[str], seeds: int, rules: GridRules
) -> PlannedGrid:
    """Return the plan by the rules of a directory, or refuse arguments that differ from them."""
    # In the record, a range is an object.
    tune = {p: Range(**v) if isinstance(v, dict) else v for p, v in stored["tune"].items()}
    known = GridRules(**{name: stored[name] for name in asdict(rules)} | {"tune": tune})
    if rules not in (known, GridRules()):
        raise UserError(
            f"{workdir} has the rules {_described(known)}, not {_described(rules)}; leave "
            "these flags out to go on with its own, or choose another --workdir"
        )
    if seeds != stored["seeds"] or set(chosen) != set(stored["variants"]):
        raise UserError(
            f"the rules of {workdir} are for --seeds {stored['seeds']} and the variants "
            f"{', '.join(stored['variants'])}; give these, or choose another --workdir"
        )
    planned = PlannedGrid(_only(grid, chosen), workdir, known, seeds, stored["at_once"])
    _check_proposals(planned, workdir, stored.get("optuna", ""))
    if planned.rungs != stored["rungs"]:
        raise UserError(
            f"{workdir} has rungs at the steps {', '.join(map(str, stored['rungs']))}, and this "
            f"grid at {', '.join(map(str, planned.rungs))}; bring training.num_train_steps and "
            "checkpoint.every_steps back, or choose another --workdir"
        )
    return planned


def _check_proposals(planned: PlannedGrid, workdir: Path, recorded: str) -> None:
    """Refuse a version of Optuna that proposes other rows."""
    installed, planned.optuna = planned.optuna, recorded
    if installed == recorded:
        return
    decided(planned.plan)
    for variant, rows in planned.candidates.items():
        others = tuple(f"{name}," for name in planned.candidates if name.startswith(f"{variant},"))
        paths = workdir.glob(f"{variant},*")
        begun = {path.name for path in paths if not path.name.startswith(others)}
        new = [row for row in rows if row not in begun]
        if new and begun - rows.keys():
            raise UserError(
                f"{workdir} was begun with optuna {recorded or 'of an unknown version'}, and "
                f"{installed} proposes other rows, such as {new[0]}; install the version that "
                "began it, or choose another --workdir"
            )


def record_rules(planned: PlannedGrid, workdir: Path) -> None:
    """Write the rules into the grid's directory, unless there are none."""
    if planned.rules != GridRules():
        workdir.mkdir(parents=True, exist_ok=True)
        also = {n: getattr(planned, n) for n in ("at_once", "seeds", "rungs", "optuna")}
        record = asdict(planned.rules) | {"variants": [*planned.grid.variants]} | also
        write_whole(workdir / RULES, (json.dumps(record, indent=2) + "\n").encode())


def _shown(values: Sequence[object] | Range) -> str:
    return str(values) if isinstance(values, Range) else ",".join(map(str, values))


def _read(workdir: Path) -> Record | None:
    path = workdir / RULES
    way_out = "bring it back from a copy, or choose another --workdir"
    if path.exists():
        return read_object(path, _Rules, way_out)
    if has_rules(workdir):
        raise UserError(
            f"{path} is missing, by which the grid chooses its cells; bring it back from a copy, "
            "or, to train all cells to their ends, remove has_rules from grid.json"
        )
    return None


def _described(rules: GridRules) -> str:
    tune = (f"{path}={_shown(values)}" for path, values in rules.tune.items())
    flags = asdict(rules) | {"tune": " ".join(tune)}
    return " ".join(f"--{name} {value}" for name, value in flags.items() if value) or "none"
