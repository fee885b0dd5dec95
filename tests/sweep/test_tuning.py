"""Tuning: each seed has the value that the others choose, and the interval covers the truth."""

import json
import math
import statistics
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.commands.vary import tuned_fields
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.comparison import against, measure
from t2t_jax.sweep.inference import RowScores, effects
from t2t_jax.sweep.rules import GridRules, plan_grid, record_rules
from t2t_jax.sweep.sampling import Range
from t2t_jax.sweep.tuning import choose, is_at_end
from tests.sweep.test_gathering import seeds_csv
from tests.sweep.test_halving import BASE, STEPS, Trained, halve

GRID = Grid({"base": BASE, "wide": BASE.replace({"model.d_ff": 64})}, {})
FACTOR = "training.learning_rate_factor"
TUNE = {FACTOR: [0.5, 1, 2]}
RANGE = {FACTOR: Range(0.1, 10, "log")}


def everyone(group, left_out):
    return group


@given(st.lists(st.lists(st.floats(1, 9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_each_seed_has_the_best_of_the_other_seeds(rows):
    scores = {f"c{i}": row for i, row in enumerate(rows)}
    for seed, name in enumerate(choose(scores, everyone)):
        others = [sum(row[:seed] + row[seed + 1 :]) for row in rows]
        assert math.isclose(others[int(name[1:])], min(others))


def test_a_single_seed_chooses_for_itself_and_nothing_is_chosen_before_all_scores_are_there():
    scores = {"a": [2.0], "b": [1.0]}
    assert choose(scores, everyone) == ["b"]
    scores = {"a": [2.0, 1.0, 5.0], "b": [1.0, None, 9.0], "c": [math.inf, 0.1, math.inf]}
    assert choose(scores, everyone) == ["", "a", ""]
    assert choose(scores, lambda *_: ["a", "c"]) == ["a", "a", "a"]


def _coverage(base, other, fair=True):
    """How often the interval of a difference has the true one in it, of two variants of five seeds.

    The logarithms of the perplexities are those that are given, by value, plus effects of the seeds
    and noise of 0.05. Each variant is worth 0 at its best, so the true difference is 0.
    """
    rng, inside, times, seeds = np.random.default_rng(0), 0, 400, 5
    grid = Grid({"base": BASE, "other": BASE}, {})
    for _ in range(times):
        of_seed, results = rng.normal(0, 0.2, seeds), {}
        for variant, level in {"base": base, "other": other}.items():
            noise = of_seed + rng.normal(0, 0.05, (len(level), seeds))
            noisy = np.exp(np.array(level)[:, None] + noise)
            scores = {str(i): row.tolist() for i, row in enumerate(noisy)}
            if fair:
                chosen = choose(scores, everyone)
            else:
                chosen = [min(scores, key=lambda c: scores[c][seed]) for seed in range(seeds)]
            results[variant] = [
                {"config": {"training": {"seed": seed}}, "perplexity": scores[name][seed]}
                | ({"tuned_to": name} if fair else {})
                for seed, name in enumerate(chosen)
            ]
        change = measure(grid, results, "perplexity").changes["other"]
        inside += change.low <= 0 <= change.high
    return inside / times


@pytest.mark.thorough
@pytest.mark.usefixtures("one_blas_thread")
def test_the_interval_of_tuned_rows_covers_the_truth_and_that_of_the_lowest_scores_does_not():
    """With one good value, with five equal ones, and with neighbours that are nearly as good."""
    clear, level, near = [0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0.2, 0.05, 0, 0.05, 0.2]
    for base, other in ((clear, clear), (clear, level), (level, level), (near, near)):
        assert 0.92 <= _coverage(base, other) <= 0.985
    assert _coverage(clear, level, fair=False) < 0.7


def _coverage_of_new_sentences(split, by_sentences=True):
    """How often the interval of a tuned row has the difference on all sentences, which is 0, in it.

    The base has one value. The other row has five equal ones, which the sentences of dev favour by
    0.05 at random, as those of test do independently.
    """
    rng, inside, times, seeds, size = np.random.default_rng(0), 0, 400, 5, 0.05
    for _ in range(times):
        scores, draws = {}, {}
        for row, values in {"base": 1, "other": 5}.items():
            noise = rng.normal(0, size, (values, seeds))
            on = {name: noise + rng.normal(0, size, (values, 1)) for name in ("dev", "test")}
            group = {str(value): np.exp(on["dev"][value]).tolist() for value in range(values)}
            chosen = dict(enumerate(map(int, choose(group, everyone))))
            samples = rng.normal(0, size, (values, 500))
            scores[row] = {seed: on[split][value, seed] for seed, value in chosen.items()}
            if by_sentences:
                draws[row] = {s: scores[row][s] + samples[value] for s, value in chosen.items()}
        tuned = ["other"] if len({*chosen.values()}) > 1 else []
        one = effects(RowScores(scores, draws, tuned), against("base", scores), "holm")["other"]
        inside += abs(one.estimate) <= one.margin
    return inside / times


@pytest.mark.usefixtures("one_blas_thread")
def test_the_interval_of_tuned_rows_covers_new_sentences_if_sentences_are_counted():
    assert 0.92 <= _coverage_of_new_sentences("dev") <= 0.985
    assert 0.92 <= _coverage_of_new_sentences("test") <= 0.985
    assert _coverage_of_new_sentences("dev", by_sentences=False) < 0.7


def test_a_best_value_at_the_end_of_its_range_is_known():
    assert [is_at_end(x, [0.5, 1, 2]) for x in (0.5, 1, 2)] == [True, False, True]
    assert not is_at_end("relu", ["relu", "gelu"])
    assert not is_at_end(1, [1])
    at = [is_at_end(x, Range(0.01, 100, "log")) for x in (0.012, 0.1, 50, 90)]
    assert at == [True, False, False, True]
    assert [is_at_end(x, Range(0, 1, "lin")) for x in (0.04, 0.06, 0.96)] == [True, False, True]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (GridRules(tune={"model.d_f": [1]}), "unknown config field 'model.d_f'; did you mean"),
        (GridRules(tune={"training.seed": [1]}), r"--tune cannot tune training\.seed, which"),
        (GridRules(tune={"model.d_ff": [32, 64]}), "base and wide differ only in model.d_f"),
        (GridRules(tune={"model.d_ff": []}), r"--tune model\.d_ff has no values"),
        (GridRules(tune={"training.label_smoothing": [7]}), "label_smoothing=7"),
        (GridRules(tune={"data.cache_dir": ["a/b"]}), "dir=a/b', which cannot name a directo"),
        (GridRules(tune=RANGE), "=0.1:10:log is not for all values of a list; write"),
        (GridRules(sampler="optuna:tpe"), "tpe needs --trials, a positive number"),
        (GridRules(trials=3), "--trials 3 needs a --sampler, such as optuna:tpe"),
        (GridRules(None, {}, "optuna:tpe", 3), "tpe needs a range, such as"),
        (GridRules("rungs=3", RANGE, "optuna:tpe", 3), "from complete trials, which --halving"),
        (GridRules(tune={"data.vocab_size": [99, 100]}), "cannot be compared; use --vary"),
        (GridRules(tune={"data.protected_tokens": [(), ("<a>",)]}), "changes the subwords"),
        (GridRules(tune={"training.init_from": [None, "runs/a"]}), "changes the subwords"),
        (GridRules(tune={"decoding.beam_size": [1, 2]}), "does not change the dev perplexity"),
        (GridRules(None, RANGE, "optuna:tpe", 0), "needs --trials, a positive number"),
        (GridRules(None, RANGE, "hyperopt", 2), "no --sampler 'hyperopt'; there are optuna:tpe"),
        (GridRules(None, TUNE, "optuna:tpe", 3), "0.5,1,2 is not for a sampler; write 0.5:2:"),
        (GridRules(None, {FACTOR: Range(1, 10**400, "lin")}, "optuna:tpe", 3), "up to 1e.300"),
        (GridRules(None, {FACTOR: Range(2, 1, "log")}, "optuna:tpe", 3), "2:1:log is not a range"),
    ],
)
def test_rules_that_do_not_fit_are_refused(tmp_path, rules, message):
    with pytest.raises(UserError, match=message):
        plan_grid(GRID, tmp_path, [*GRID.variants], 2, rules)


@pytest.mark.parametrize(
    ("text", "for_sampler", "message"),
    [
        ("d_ff", False, "--tune 'd_ff' is not FIELD=VALUES"),
        ("model.d_f=1", False, "unknown config field 'model.d_f'; did you mean model"),
        ("model.d_ff=32:1:log3", False, r"--tune model\.d_ff=32:1:log3 is an empty range"),
        ("model.d_ff=32:64:log", False, r"=32:64:log is an empty range; write LOW:HIGH:logN"),
        ("model.d_ff=32:64:log3", True, "log3 is not a range for a sampler; write it as"),
        (f"{FACTOR}=0:1:log", True, "0:1:log is not a range for a sampler"),
        (f"{FACTOR}=nan:1:lin", True, "nan:1:lin is not a range for a sampler"),
    ],
)
def test_values_of_a_flag_are_refused_by_its_name(text, for_sampler, message):
    with pytest.raises(UserError, match=message):
        tuned_fields([text], for_sampler=for_sampler)


def test_values_of_a_flag_are_read():
    assert tuned_fields(["model.d_ff=32:64:log3"], for_sampler=False) == {
        "model.d_ff": [32, 45, 64]
    }
    assert tuned_fields([f"{FACTOR}=0.1:10:log"], for_sampler=True) == RANGE
    with pytest.raises(UserError, match=r"--tune names model\.d_ff twice"):
        tuned_fields(["model.d_ff=1", "model.d_ff=2"], for_sampler=False)


def test_a_directory_keeps_its_tuned_fields(tmp_path):
    pytest.importorskip("optuna")
    for name, rules in (
        ("list", GridRules("rungs=2", TUNE)),
        ("range", GridRules(None, RANGE, "optuna:random", 3)),
    ):
        plan = partial(plan_grid, GRID, tmp_path / name, [*GRID.variants], 2)
        record_rules(plan(rules), tmp_path / name)
        assert plan(GridRules()).rules == rules
        with pytest.raises(UserError, match=f"not --tune {FACTOR}=1,2"):
            plan(GridRules(tune={FACTOR: [1, 2]}))


def truth_of(level):
    """The scores of three seeds of each value, by a level that depends on row, value and seed."""
    return {
        f"{name},learning_rate_factor={value}/seed{seed}": dict.fromkeys(
            STEPS, level(name, value, seed) + 0.1 * seed
        )
        for name, value, seed in product(GRID.variants, (0.5, 1, 2), (0, 1, 2))
    }


@pytest.mark.parametrize("halving", [None, "rungs=3"])
def test_the_table_compares_variants_at_their_own_best(tmp_path, quick, halving):
    """Of three values, the base is best with the second one, and the wide variant with the last."""
    levels = {
        "base": {0.5: 5.0, 1: 4.0, 2: 6.0},
        "wide": {0.5: 7.0, 1: 5.0, 2: 3.0},
    }
    launcher = Trained(truth_of(lambda name, value, seed: levels[name][value]))
    outcome = halve(GRID, tmp_path, launcher, rules=GridRules(halving, TUNE))
    rows = {row.variant: row.perplexity for row in outcome.rows}
    assert rows["base"].mean == pytest.approx(4.05)
    assert rows["wide"].difference == pytest.approx(-1.0, rel=1e-3)
    assert outcome.unfinished == ()
    ended = sum(until == 90 for _, until in launcher.launched)
    assert ended == (4 if halving else 12)
    chosen = {name for name, cell in seeds_csv(tmp_path).items() if cell["chosen"] == "yes"}
    best = "base,learning_rate_factor=1", "wide,learning_rate_factor=2"
    assert chosen == {f"{name}/seed{seed}" for name in best for seed in (0, 1)}
    text = (tmp_path / "table.md").read_text()
    assert "| base | learning_rate_factor=1 (seed0, seed1) | 3 |  |" in text
    wide = "learning_rate_factor=2 (seed0, seed1) | 3 | training.learning_rate_factor |"
    assert f"| wide | {wide}" in text
    assert "The perplexities of the other seeds choose the value" in text


def test_a_sampler_asks_for_the_same_trials_after_every_kill(tmp_path):
    pytest.importorskip("optuna")
    rules = GridRules(None, RANGE, "optuna:tpe", 14)

    def score(name):
        value = float(name.partition("=")[2].partition("/")[0])
        return math.inf if value > 8 else 2 + (math.log(value) - 1) ** 2

    def plan():
        return plan_grid(GRID, tmp_path, [*GRID.variants], 2, rules, at_once=3).choose_cells

    scores, unkilled = {}, plan()
    while new := [c for c in unkilled(scores) if c.name not in scores]:
        assert len({c.name.partition("/")[0] for c in new}) <= 2 * 3
        cell = new[len(scores) % len(new)]  # in another order than they were asked for
        scores[cell.name] = {90: score(cell.name)}
        if len(scores) % 5 == 0:
            again = {c.name for c in plan()(scores)}
            assert again == {c.name for c in unkilled(scores)}
    found = statistics.fmean(
        min(of[90] for name, of in scores.items() if name.startswith(variant))
        for variant in GRID.variants
    )
    assert len(scores) == 2 * 2 * 14
    assert found < 2.2


def proposals(planned, number):
    """The values that a sampler proposes one after the other, for scores that they determine."""
    scores, rows = {}, []
    while len(rows) < number:
        (cell,) = (c for c in planned.choose_cells(scores) if c.name not in scores)
        training = cell.config.training
        rows.append((training.learning_rate_factor, training.label_smoothing))
        scores[cell.name] = {90: 2 + abs(math.log(rows[-1][0])) + rows[-1][1]}
    return rows


def test_every_version_of_optuna_proposes_the_rows_of_optuna_4(tmp_path):
    """Optuna 4.9.0 gave these numbers, by the defaults of its sampler with the seed 0."""
    pytest.importorskip("optuna")
    ranges = {FACTOR: Range(0.1, 10, "log"), "training.label_smoothing": Range(0.0, 0.5, "lin")}
    grid = Grid({"base": BASE}, {})
    rules = GridRules(None, ranges, "optuna:tpe", 16)
    assert proposals(plan_grid(grid, tmp_path, ["base"], 1, rules), 16)[10:] == [
        *[(0.3148, 0.02766), (0.5134, 0.3336), (1.263, 0.3319)],
        *[(1.982, 0.3761), (0.3308, 0.1895), (2.918, 0.2088)],
    ]


def test_an_optuna_that_proposes_other_rows_does_not_go_on_with_a_grid(tmp_path):
    optuna = pytest.importorskip("optuna")
    rules = GridRules(None, RANGE, "optuna:tpe", 3)
    plan = partial(plan_grid, GRID, tmp_path, [*GRID.variants], 1, rules)
    record_rules(plan(), tmp_path)
    recorded = json.loads((tmp_path / "rules.json").read_text())
    assert recorded["optuna"] == optuna.__version__
    (tmp_path / "rules.json").write_text(json.dumps(recorded | {"optuna": "3.9"}))
    (cell, _) = plan().choose_cells({})
    cell.workdir.mkdir(parents=True)
    record_rules(plan(), tmp_path)  # the same rows
    assert json.loads((tmp_path / "rules.json").read_text())["optuna"] == "3.9"
    (tmp_path / cell.variant).rename(tmp_path / "base,learning_rate_factor=9")
    with pytest.raises(
        UserError, match=f"optuna 3.9, and .* proposes other rows, such as {cell.variant};"
    ):
        plan()


def test_trials_of_a_row_with_a_longer_name_are_no_trials_of_another_row(tmp_path):
    pytest.importorskip("optuna")
    grid = Grid({"base": BASE, "base,wide": BASE.replace({"model.d_ff": 64})}, {})
    rules = GridRules(None, RANGE, "optuna:tpe", 3)
    plan = partial(plan_grid, grid, tmp_path, [*grid.variants], 1, rules)
    record_rules(plan(), tmp_path)
    recorded = json.loads((tmp_path / "rules.json").read_text())
    (tmp_path / "rules.json").write_text(json.dumps(recorded | {"optuna": "3.9"}))
    *_, wide = plan().choose_cells({})
    assert wide.variant.startswith("base,wide,")
    wide.workdir.mkdir(parents=True)
    assert plan().optuna == "3.9"


def test_a_proposal_that_the_config_refuses_is_passed_over(tmp_path):
    pytest.importorskip("optuna")
    rules = GridRules(None, {"model.num_heads": Range(1, 8, "lin")}, "optuna:tpe", 6)
    planned = plan_grid(GRID, tmp_path, [*GRID.variants], 1, rules, at_once=6)
    heads = {cell.config.model.num_heads for cell in planned.choose_cells({})}
    assert heads
    assert all(GRID.variants["base"].model.d_model % one == 0 for one in heads)
    assert {*planned.rows.values()} == {*GRID.variants}


def test_a_value_that_diverged_under_its_seed_is_said_and_not_passed_over(tmp_path, quick):
    """Under seed 2, the value that the seeds 0 and 1 choose for the wide variant diverges."""

    def level(*cell):
        return math.inf if cell == ("wide", 2, 2) else 5.0 - cell[1]

    launcher = Trained(truth_of(level))
    outcome = halve(GRID, tmp_path, launcher, seeds=3, rules=GridRules(tune=TUNE))
    _, wide = outcome.rows
    assert (wide.num_seeds, wide.verdict) == (2, "diverged under 1 of 3 seeds")
    assert "seed2, where it diverged" in (tmp_path / "table.md").read_text()
