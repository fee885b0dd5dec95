"""Successive halving: who goes on, by rules that are written here a second time and differently."""

import json
import math
import random
import statistics
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.config import Config, to_dict
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.run.provenance import provenance
from t2t_jax.sweep.cell import cells, decide, score_at
from t2t_jax.sweep.grid import collect, run_grid
from t2t_jax.sweep.halving import HalvedGrid, Halving, check_can_be_halved
from t2t_jax.sweep.launchers import Outcome
from t2t_jax.sweep.rules import GridRules, plan_grid, record_rules
from t2t_jax.sweep.stored_grid import rename_row
from tests.sweep.conftest import QUIET, AtOnce
from tests.sweep.test_cell import write_result

BASE = Config().replace(
    {"training.num_train_steps": 90, "checkpoint.every_steps": 2, "training.warmup_steps": 5}
)
STEPS = [10, 30, 90]
HALVING = Halving(3, 1 / 3)


OTHERS = {f"v{i}": BASE.replace({"model.d_ff": 64 + i}) for i in range(1, 9)}


def grid_of(number):
    return Grid({"base": BASE} | {name: OTHERS[name] for name in list(OTHERS)[: number - 1]}, {})


def halved(grid, seeds, **options):
    others = [name for name in grid.variants if name != "base"]
    every = [c for of_seed in _all_cells()[:seeds] for c in of_seed if c.variant in grid.variants]
    return HalvedGrid(every, [["base"], others], HALVING, **options)


@cache
def _all_cells():
    """The cells of the largest grid by seed, as to make a config takes a while."""
    every = cells(grid_of(9), Path("nowhere"), 3)
    return every[:9], every[9:18], every[18:]


def scores_of(rng, grid, seeds, diverging=0.1):
    """The scores that each cell would have at each rung, if it came to it; after inf comes inf."""
    found = {}
    for name in grid.variants:
        for seed in range(seeds):
            dies = rng.choice(STEPS) if rng.random() < diverging else math.inf
            found[f"{name}/seed{seed}"] = {
                step: math.inf if step >= dies else round(rng.uniform(1, 3), 1) for step in STEPS
            }
    return found


def winners(grid, seeds, truth):
    """The last step of each variant under synchronous halving, written as its definition reads."""
    last = dict.fromkeys(grid.variants, 10)
    for group in (["base"], [name for name in grid.variants if name != "base"]):
        alive = group
        for here, following in ((10, 30), (30, 90)):
            # A sum would break ties by its rounding.
            scores = {n: [truth[f"{n}/seed{s}"][here] for s in range(seeds)] for n in alive}
            mean = {n: statistics.fmean(scores[n]) for n in alive}
            going = max(1, math.floor(len(alive) / 3 + 0.5))
            ranked = sorted(alive, key=lambda name: (mean[name], group.index(name)))
            alive = [name for name in ranked[:going] if mean[name] < math.inf]
            last |= dict.fromkeys(alive, following)
    return last


def without_score(wanted, known):
    """The cells that lack their score at the step up to which they are wanted."""
    return [cell for cell in wanted if score_at(known, cell, cell.last_step) is None]


@given(st.integers(2, 9), st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_same_variants_go_on_in_whatever_order_the_scores_come(number, seeds, rng):
    grid = grid_of(number)
    truth, known, until = scores_of(rng, grid, seeds), {}, {}
    while True:
        wanted = halved(grid, seeds).cells(known)  # anew, as after a kill
        for cell in wanted:
            assert cell.last_step >= until.get(cell.name, 0)
            until[cell.name] = cell.last_step
        if not (open_cells := without_score(wanted, known)):
            break
        cell = rng.choice(open_cells)
        known.setdefault(cell.name, {})[cell.last_step] = truth[cell.name][cell.last_step]
    expected = winners(grid, seeds, truth)
    assert until == {
        f"{name}/seed{seed}": step for name, step in expected.items() for seed in range(seeds)
    }


@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_no_cell_passes_a_rung_without_its_score_there(number, rng):
    """A variant may be promoted for one seed by the others, before that seed came to the rung."""
    grid = grid_of(number)
    truth, known = scores_of(rng, grid, 3), {}
    plan = halved(grid, 3, cross_fit=True)
    while open_cells := without_score(plan.cells(known), known):
        cell = rng.choice(open_cells)
        of_cell = known.setdefault(cell.name, {})
        assert set(of_cell) == {step for step in STEPS if step < cell.last_step}
        of_cell[cell.last_step] = truth[cell.name][cell.last_step]
    assert plan.cells(known) == plan.cells(truth)


@given(st.integers(3, 8), st.randoms(use_true_random=False))
def test_a_variant_left_out_for_one_seed_goes_on_if_another_choice_needs_it(number, rng):
    """With three seeds a choice is made without each of them, of the scores of the other two."""
    grid = grid_of(number)
    truth = scores_of(rng, grid, 3, diverging=0)
    wanted = halved(grid, 3, cross_fit=True).cells(truth)
    until = {cell.variant: cell.last_step for cell in wanted}
    expected = dict.fromkeys(grid.variants, 0)
    for left_out in range(3):
        of_two = {}
        for name in grid.variants:
            others = [truth[f"{name}/seed{s}"] for s in range(3) if s != left_out]
            of_two |= {f"{name}/seed{i}": one for i, one in enumerate(others)}
        for name, step in winners(grid, 2, of_two).items():
            expected[name] = max(expected[name], step)
    assert until == expected


def test_rungs_lie_where_checkpoints_are_due():
    config = BASE.replace({"training.num_train_steps": 100, "checkpoint.every_steps": 7})
    assert Halving(3, 0.33).steps(config) == [14, 35, 100]
    assert Halving.of("rungs=4, keep=0.5") == Halving(4, 0.5)
    assert Halving.of("rungs=3") == HALVING
    with pytest.raises(UserError, match=r"rungs at the steps 7, 7, 14, 35, 100, .*=7; ask"):
        Halving(5, 0.33).steps(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--halving '' has ''; give --halving rungs=3,keep=0.33"),
        ("rungs=1", "rungs=1 is not from 2 to 100"),
        ("keep=1", "keep=1.0 is not in"),
        ("keep=nan", "keep=nan is not in"),
        ("rungs=x", "has no valid number"),
        ("rung=3", "has 'rung=3'; give"),
        ("rungs=3,rungs=4", "has 'rungs=4'; give"),
    ],
)
def test_a_halving_that_is_none_is_refused(text, message):
    with pytest.raises(UserError) as refused:
        Halving.of(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training.schedule": "cosine"}, "='cosine', whose score at a rung does not predict"),
        (
            {"training.num_train_steps": 80},
            "base and odd differ in training.num_train_steps 90 -> 80,",
        ),
        ({"checkpoint.every_steps": None, "checkpoint.average": 1}, "but --halving pauses at step"),
        ({"checkpoint.every_steps": 3}, "base and odd differ in checkpoint.every_steps 2 -> 3"),
        ({"data.vocab_size": 999}, "base and odd differ in data.vocab_size "),
        ({"data.protected_tokens": ("<a>",)}, "differ in data.protected_tokens "),
        ({"training.init_from": "runs/a"}, "differ in training.init_from None -> 'runs/a'"),
    ],
)
def test_variants_that_cannot_be_halved_are_refused_by_name(change, message):
    with pytest.raises(UserError, match=message):
        check_can_be_halved(Grid({"base": BASE, "odd": BASE.replace(change)}, {}))
    for schedule in ("wsd", "constant"):
        check_can_be_halved(Grid({"base": BASE.replace({"training.schedule": schedule})}, {}))


def test_a_directory_keeps_its_rules(tmp_path):
    grid = grid_of(4)
    chosen, rules = list(grid.variants), GridRules("rungs=3")
    record_rules(plan_grid(grid, tmp_path, chosen, 2, rules), tmp_path)
    assert plan_grid(grid, tmp_path, chosen, 2, GridRules()).rules == rules
    for others, message in (
        (
            (chosen, 2, GridRules("rungs=2,keep=0.5")),
            r"has the rules --halving rungs=3,keep=0\.3+, not --halving rungs=2,keep=0\.5",
        ),
        ((chosen, 3, rules), r"are for --seeds 2 and the variants base, v1, v2, v3; give these"),
        ((chosen[1:], 2, rules), "; give these, or choose another --workdir"),
    ):
        with pytest.raises(UserError, match=message):
            plan_grid(grid, tmp_path, *others)
    assert plan_grid(grid, tmp_path, chosen, 2, GridRules("keep=0.3333333333333333")).rules
    steps = {"training.num_train_steps": 180}
    longer = {name: config.replace(steps) for name, config in grid.variants.items()}
    with pytest.raises(UserError, match="has rungs at the steps 10, 30, 90, and this grid at 20,"):
        plan_grid(grid._replace(variants=longer), tmp_path, chosen, 2, rules)
    (tmp_path / "rules.json").write_text("{}")
    with pytest.raises(UserError, match=r"rules\.json .*halving.*restore it"):
        plan_grid(grid, tmp_path, chosen, 2, GridRules())


def test_cells_that_were_begun_without_halving_have_no_scores_at_its_rungs(tmp_path):
    (tmp_path / "v1" / "seed0").mkdir(parents=True)
    with pytest.raises(UserError, match="begun without --halving, such as v1/seed0"):
        plan_grid(grid_of(3), tmp_path, ["base", "v1", "v2"], 1, GridRules("rungs=3"))


class Trained(AtOnce):
    """A launcher whose cells are scored at once, and which may be interrupted."""

    def __init__(self, truth, killed_at=()):
        self.truth, self.killed_at, self.launched = truth, set(killed_at), []

    def launch(self, cell):
        if len(self.launched) in self.killed_at:
            self.killed_at.remove(len(self.launched))
            raise KeyboardInterrupt
        self.launched.append((cell.name, cell.last_step))
        self._write(cell)
        return self

    def _write(self, cell):
        score, end = self.truth[cell.name][cell.last_step], cell.config.training.num_train_steps
        cell.workdir.mkdir(parents=True, exist_ok=True)
        (cell.workdir / "config.json").write_text(cell.config.to_json())
        if score < math.inf and cell.last_step == end:
            software = [provenance(cell.config)]
            write_result(cell, perplexity=score, steps=end, provenance=software)
            return
        record = {"config": to_dict(cell.config), "perplexity": score}
        if score == math.inf:
            record |= {"perplexity": None, "diverged": "not finite"}
        (cell.workdir / f"rung-{cell.last_step}.json").write_text(json.dumps(record))


def test_an_iterator_chooses_variants_as_a_list_does(tmp_path, quick):
    launcher = Trained({"v1/seed0": {90: 4.0}})
    outcome = halve(grid_of(3), tmp_path, launcher, 1, only=iter(["v1"]))
    assert (list(outcome.results), outcome.unfinished) == (["v1"], ())


def halve(grid, workdir, launcher, seeds=2, **options):
    return run_grid(grid, workdir, seeds=seeds, launcher=launcher, console=QUIET, **options)


@pytest.mark.thorough
def test_a_sweep_that_is_killed_ten_times_promotes_the_same(tmp_path, quick):
    grid, rng = grid_of(8), random.Random(3)
    truth = scores_of(rng, grid, 2)
    unkilled = Trained(truth)
    halve(grid, tmp_path / "unkilled", unkilled, rules=GridRules("rungs=3"))
    killed = Trained(truth, rng.sample(range(len(unkilled.launched)), 10))
    outcome = None
    while outcome is None:
        try:
            outcome = halve(grid, tmp_path / "killed", killed, rules=GridRules("rungs=3"))
        except KeyboardInterrupt:
            continue
    assert not killed.killed_at
    assert sorted(killed.launched) == sorted(unkilled.launched)  # and nothing twice
    for name in ("table.csv", "table.md"):
        tables = [(tmp_path / sweep / name).read_text() for sweep in ("killed", "unkilled")]
        assert tables[0] == tables[1]
    ends = winners(grid, 2, truth)
    assert list(outcome.results) == [name for name, end in ends.items() if end == 90]
    assert outcome.unfinished == ()


def test_the_table_says_what_each_row_was_given_and_compares_it_at_that_step(tmp_path, quick):
    """Of three variants one goes on from the first rung, and one diverges."""
    truth = {f"{name}/seed{s}": {} for name in ("base", "v1", "v2", "v3") for s in (0, 1)}
    for seed in (0, 1):
        truth[f"base/seed{seed}"] = {10: 8.0 + seed, 30: 6.0, 90: 5.0}
        truth[f"v1/seed{seed}"] = {10: 7.0, 30: 5.5, 90: 4.0}
        truth[f"v2/seed{seed}"] = {10: 9.0 + seed}
        truth[f"v3/seed{seed}"] = {10: math.inf if seed else 1.0}
    outcome = halve(grid_of(4), tmp_path, Trained(truth), rules=GridRules("rungs=3"))
    text = (tmp_path / "table.md").read_text()
    difference = statistics.fmean([9.0, 10.0]) - statistics.fmean([8.0, 9.0])
    assert f"| v2 | d_ff=66 | 2 | 10 | 9.50 ± 0.71 | +{difference:.2f} ± " in text
    assert "| v3 | d_ff=67 | 2 | 10 | diverged |  |  |" in text
    assert "- Diverged, and so worse than every other: v3/seed1." in text
    assert "Compared with `base` at the same step, and with no row of another length" in text
    assert "Not finished" not in text
    assert [row.variant for row in outcome.rows] == ["base", "v1"]
    again = collect(grid_of(4), tmp_path, 1, QUIET)
    assert again.rows == outcome.rows
    assert (tmp_path / "table.md").read_text() == text


def test_a_table_with_another_base_does_not_promote_other_rows(tmp_path, quick):
    scores = {"base": 9.0, "v1": 1.0, "v2": 2.0, "v3": 3.0}
    truth = {f"{name}/seed0": dict.fromkeys(STEPS, score) for name, score in scores.items()}
    halve(grid_of(4), tmp_path, Trained(truth), 1, rules=GridRules("rungs=3"))
    outcome = collect(grid_of(4)._replace(compared_with="v1"), tmp_path, 1, QUIET)
    assert ([row.variant for row in outcome.rows], outcome.unfinished) == (["base", "v1"], ())


def test_after_the_hours_that_it_may_take_a_sweep_has_a_table_of_what_is_there(tmp_path, quick):
    grid = grid_of(3)
    truth = {name: dict.fromkeys(STEPS, 2.0) for name in scores_of(random, grid, 2)}

    class Slow(Trained):
        def launch(self, cell):
            if cell.last_step == 30:
                self.launched.append(cell.name)
                return self
            return super().launch(cell)

        def poll(self):
            return Outcome(128 + 15, "") if len(self.launched) > 9 else Outcome(0, "")

    outcome = halve(grid, tmp_path, Slow(truth), rules=GridRules("rungs=3"), max_hours=0.3 / 3600)
    assert outcome.signal == 0
    assert set(outcome.unfinished) == {f"{n}/seed{s}" for n in ("base", "v1") for s in (0, 1)}
    assert "| v2 | d_ff=66 | 2 | 10 | 2.00 ± 0.00 |" in (tmp_path / "table.md").read_text()
    paused = "Paused before the end, by their perplexity on dev, in a grid that is not fin"
    assert paused in (tmp_path / "table.md").read_text()
    assert halve(grid, tmp_path, Trained(truth)).unfinished == ()
    assert "Given up before the end" in (tmp_path / "table.md").read_text()
    with pytest.raises(UserError, match="max_hours=0 is not positive"):
        halve(grid, tmp_path, Trained(truth), max_hours=0)


def test_a_cell_that_diverged_is_no_longer_wanted(tmp_path):
    plan = HalvedGrid(cells(grid_of(3), tmp_path, 1), [["base"], ["v1", "v2"]], HALVING)
    for name, score in (("base", None), ("v1", 3.0), ("v2", 2.0)):
        place = tmp_path / name / "seed0"
        place.mkdir(parents=True)
        record = {"config": to_dict(BASE), "perplexity": score}
        (place / "rung-10.json").write_text(json.dumps(record))
    (tmp_path / "v1" / "seed0" / "rung-10.json").write_text("{}")
    wanted, scores = decide(plan.cells)
    assert scores["base/seed0"] == {10: math.inf}
    assert {cell.last_step for cell in wanted} == {10}
    assert scores["v1/seed0"] == {}


def test_a_halved_grid_without_its_rules_is_not_trained_whole(tmp_path, quick):
    grid = grid_of(4)
    launcher = Trained(scores_of(random.Random(1), grid, 1, diverging=0))
    halve(grid, tmp_path, launcher, 1, rules=GridRules("rungs=3"))
    rules = (tmp_path / "rules.json").read_bytes()
    (tmp_path / "rules.json").unlink()
    launched = len(launcher.launched)
    for again in (
        lambda: halve(grid, tmp_path, launcher, 1),
        lambda: halve(grid, tmp_path, launcher, 1, rules=GridRules("rungs=3")),
        lambda: collect(grid, tmp_path, 1, QUIET),
        lambda: rename_row(tmp_path, "v1=other"),
    ):
        with pytest.raises(UserError, match=r"rules\.json"):
            again()
    (tmp_path / "rules.json").write_bytes(rules)
    assert halve(grid, tmp_path, launcher, 1).unfinished == ()
    assert len(launcher.launched) == launched
