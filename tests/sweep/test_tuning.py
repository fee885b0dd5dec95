"""Tuning: each seed has the value that the others choose, and the interval covers the truth."""

import json
import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.commands.sweep import sweep_command
from t2t_jax.commands.vary import values_by_field
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.comparison import against, measure
from t2t_jax.sweep.grid import collect
from t2t_jax.sweep.inference import RowScores, effects
from t2t_jax.sweep.rules import GridRules, plan_grid, record_rules
from t2t_jax.sweep.tuning import choose, is_at_end
from tests.sweep.conftest import QUIET
from tests.sweep.test_gathering import seeds_csv
from tests.sweep.test_halving import BASE, STEPS, Trained, halve

GRID = Grid({"base": BASE, "wide": BASE.replace({"model.d_ff": 64})}, {})
FACTOR = "training.learning_rate_factor"
TUNE = {FACTOR: [0.5, 1, 2]}


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


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (GridRules(tune={"model.d_f": [1]}), "unknown config field 'model.d_f'; did you mean"),
        (GridRules(tune={"training.seed": [1]}), r"--tune cannot tune training\.seed, which"),
        (GridRules(tune={"model.d_ff": [32, 64]}), "base and wide differ only in model.d_f"),
        (GridRules(tune={"training.label_smoothing": [7]}), "label_smoothing=7"),
        (GridRules(tune={"data.cache_dir": ["a/b"]}), "dir=a/b', which cannot name a directo"),
        (GridRules(tune={"data.vocab_size": [99, 100]}), "cannot be compared; use --vary"),
        (GridRules(tune={"data.protected_tokens": [(), ("<a>",)]}), "changes the subwords"),
        (GridRules(tune={"training.init_from": [None, "runs/a"]}), "changes the subwords"),
        (GridRules(tune={"decoding.beam_size": [1, 2]}), "does not change the dev perplexity"),
    ],
)
def test_rules_that_do_not_fit_are_refused(tmp_path, rules, message):
    with pytest.raises(UserError, match=message):
        plan_grid(GRID, tmp_path, [*GRID.variants], 2, rules)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d_ff", "--tune 'd_ff' is not FIELD=VALUES"),
        ("model.d_f=1", "unknown config field 'model.d_f'; did you mean model"),
        ("model.d_ff=32:1:log3", r"--tune model\.d_ff=32:1:log3 is an empty range"),
        ("model.d_ff=32:64:log", r"=32:64:log is an empty range; write LOW:HIGH:logN"),
    ],
)
def test_values_of_a_flag_are_refused_by_its_name(text, message):
    with pytest.raises(UserError, match=message):
        values_by_field("--tune", [text])


def test_values_of_a_flag_are_read():
    assert values_by_field("--tune", ["model.d_ff=32:64:log3"]) == {"model.d_ff": [32, 45, 64]}
    with pytest.raises(UserError, match=r"--tune names model\.d_ff twice"):
        values_by_field("--tune", ["model.d_ff=1", "model.d_ff=2"])


def test_a_directory_keeps_its_tuned_fields(tmp_path):
    plan = partial(plan_grid, GRID, tmp_path, [*GRID.variants], 2)
    rules, file = GridRules("rungs=2", TUNE), tmp_path / "rules.json"
    record_rules(plan(rules), tmp_path)
    assert plan(GridRules()).rules == rules
    old = {"sampler": None, "trials": None, "at_once": 1, "optuna": ""}
    file.write_text(json.dumps(json.loads(file.read_text()) | old))
    assert plan(GridRules()).rules == rules
    with pytest.raises(UserError, match=f"not --tune {FACTOR}=1,2"):
        plan(GridRules(tune={FACTOR: [1, 2]}))


_REMOVED = {  # rules.json of grids that an earlier commit of version 0.3 recorded
    "with --sampler optuna:tpe": {
        **{"halving": None, "sampler": "optuna:tpe", "trials": 3, "optuna": "4.9.0"},
        **{"tune": {FACTOR: {"low": 0.1, "high": 10, "scale": "log"}}, "rungs": []},
    },
    "with --halving rungs=3,keep=0.5,asha": {
        **{"halving": "rungs=3,keep=0.5,asha", "sampler": None, "trials": None, "optuna": ""},
        **{"tune": {}, "rungs": [22, 46, 90]},
    },
}


@pytest.mark.parametrize("use", _REMOVED)
def test_a_grid_with_removed_rules_keeps_its_tables_and_is_refused(tmp_path, use):
    record = _REMOVED[use] | {"at_once": 1, "seeds": 2, "variants": [*GRID.variants]}
    (tmp_path / "rules.json").write_text(json.dumps(record))
    (tmp_path / "table.md").write_text("tables")
    removed = f"{use}: version 0.3 removed .*; the git tag before-cut"
    for again in (
        lambda: halve(GRID, tmp_path, None),
        lambda: collect(GRID, tmp_path, 2, QUIET),
        lambda: halve(GRID, tmp_path, None, rules=GridRules("rungs=3")),
    ):
        with pytest.raises(UserError, match=removed):
            again()
    assert {path.name for path in tmp_path.iterdir()} == {"rules.json", "table.md"}


@pytest.mark.parametrize("flags", ["--sampler=optuna:tpe", "--trials 3", "--halving=rungs=2,asha"])
def test_a_removed_flag_names_the_tag(tmp_path, flags):
    words = ["--config=base", "--vary=model.d_ff=64,128", *flags.split(), str(tmp_path / "runs")]
    with pytest.raises(UserError, match=r"^--.*: version 0\.3 removed .*; the git tag before-cut"):
        sweep_command(words, "t2t-jax sweep").run()
    assert not (tmp_path / "runs").exists()


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


def test_a_value_that_diverged_under_its_seed_is_said_and_not_passed_over(tmp_path, quick):
    """Under seed 2, the value that the seeds 0 and 1 choose for the wide variant diverges."""

    def level(*cell):
        return math.inf if cell == ("wide", 2, 2) else 5.0 - cell[1]

    launcher = Trained(truth_of(level))
    outcome = halve(GRID, tmp_path, launcher, seeds=3, rules=GridRules(tune=TUNE))
    _, wide = outcome.rows
    assert (wide.num_seeds, wide.verdict) == (2, "diverged under 1 of 3 seeds")
    assert "seed2, where it diverged" in (tmp_path / "table.md").read_text()
