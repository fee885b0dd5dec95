"""Tests of differences: equal to scipy's where it has the test, and right in simulated grids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from t2t_jax.sweep.comparison import against, pairs
from t2t_jax.sweep.inference import RowScores, _dof, effects, holm, pool, seeds_needed
from tests.selection import thorough_after

# Small products are slower with threads of BLAS, above all beside other tests.
pytestmark = pytest.mark.usefixtures("one_blas_thread")
SENTENCES, DRAWS = 300, 500
DIFFERENT_SEEDS = {"base": 0, "a": 100, "b": 200, "c": 300, "d": 400}


def simulated(rng, counts, rows, seeds, sd=(0.5, 0.3, 0.5), effect=0.0, shared=0.0):
    """Return scores of rows that differ from the base by `effect`.

    A score is the mean over sentences of a value that has an effect of the sentence (which all rows
    share), of the row at that sentence, of the seed, and of the seed at that sentence.

    Args:
      sd: the deviations of a score by the last three effects.
      shared: the deviation of a score by an effect of the seed at a sentence that rows share.
    """
    of_row, of_seed, both = sd
    scale = np.sqrt(SENTENCES / 2)
    size = (len(rows), seeds, SENTENCES)
    values = rng.normal(0, 3, SENTENCES) + rng.normal(0, of_row * scale, (len(rows), 1, SENTENCES))
    values = values + rng.normal(0, of_seed, (len(rows), seeds, 1))
    values += rng.normal(0, both * scale, size) + rng.normal(0, shared * scale, size[1:])
    values += effect * np.array([name != "base" for name in rows])[:, None, None]
    draws = (values.reshape(-1, SENTENCES) @ counts.T).reshape(len(rows), seeds, -1)
    of_rows = zip(rows, values.mean(2), draws, strict=True)
    scores = {name: (dict(enumerate(means)), dict(enumerate(of))) for name, means, of in of_rows}
    return RowScores(
        {n: one[0] for n, one in scores.items()}, {n: one[1] for n, one in scores.items()}
    )


def found(repeats, rows, seeds, **how):
    """Return the shares of simulated grids in which some row looks different from the base.

    The first is by unadjusted p-values, the second by adjusted ones.
    """
    rng = np.random.default_rng(seeds)
    counts = rng.multinomial(SENTENCES, [1 / SENTENCES] * SENTENCES, DRAWS) / SENTENCES
    hits = np.zeros(2)
    for _ in range(repeats):
        of_grid = simulated(rng, counts, rows, seeds, **how)
        tested = effects(of_grid, against("base", rows), "dunnett").values()
        p_values = np.array([(one.p_value, one.p_adjusted) for one in tested])
        hits += p_values.min(0) < 0.05
    return hits / repeats


PAIR = ["base", "other"]
SEEDS, SENTENCES_ONLY = (0.1, 0.5, 0.1), (0.5, 0.0, 0.0)
"""Deviations of grids whose noise is mostly of seeds, or only of sentences."""


@pytest.mark.parametrize(
    ("seeds", "sd"),
    thorough_after(1, [(3, SEEDS), (1, SENTENCES_ONLY), (10, (0.5, 0.3, 0.5))], unpacked=True),
)
def test_of_equal_rows_about_five_percent_look_different(seeds, sd):
    assert 0.03 <= found(400, PAIR, seeds, sd=sd)[0] <= 0.07


@pytest.mark.parametrize("rows", thorough_after(1, [PAIR, ["base", *"abcd"]]))
def test_an_effect_of_a_seed_at_a_sentence_that_rows_share_cancels(rows):
    """Two rows are compared by means, five rows seed by seed."""
    false_positives, _ = found(200, rows, 3, sd=(0.5, 0.1, 0.1), shared=1.0)
    assert false_positives <= 0.09 * (len(rows) - 1)


@pytest.mark.thorough
def test_some_row_of_eighteen_equal_ones_looks_different_in_five_percent_of_grids():
    rows = ["base", *map(str, range(18))]
    unadjusted, adjusted = found(100, rows, 3, sd=SEEDS)
    assert unadjusted > 0.25
    assert 0.01 <= adjusted <= 0.1


@pytest.mark.thorough
def test_more_seeds_find_a_true_difference_more_often():
    shares = [found(150, PAIR, seeds, sd=(0.2, 0.5, 0.3), effect=1.0)[0] for seeds in (2, 3, 5, 20)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] > 0.9


@pytest.mark.parametrize(("degrees", "of_sentences"), [(2, 0.1), (4, 0.3), (4, 1.0), (10, 0.3)])
def test_noise_of_sentences_beside_a_variance_of_few_degrees_keeps_the_level(degrees, of_sentences):
    rng, repeats = np.random.default_rng(0), 100_000
    by_seeds = rng.chisquare(degrees, repeats) / degrees
    variance = by_seeds + of_sentences
    t = rng.normal(0, np.sqrt(1 + of_sentences), repeats) / np.sqrt(variance)
    freedom = np.array([*map(_dof, [degrees] * repeats, by_seeds, variance)])
    p_values = 2 * stats.t.sf(abs(t), freedom)
    assert 0.038 <= (p_values < 0.05).mean() <= 0.06


def scores(*rows, seeds=5, paired=False):
    rng = np.random.default_rng(7)
    return {
        name: dict(zip(range(first, first + seeds), rng.normal(mean, sd, seeds), strict=True))
        for (name, first), (mean, sd) in zip(DIFFERENT_SEEDS.items(), rows, strict=False)
    }


def test_a_grid_without_sentences_is_tested_as_by_dunnett_and_by_student():
    of_rows = scores((0, 1), (1, 1), (2, 1), (0, 1), (-1.5, 1))
    ours = effects(RowScores(of_rows), against("base", of_rows), "dunnett")
    base, *others = ([*seeds.values()] for seeds in of_rows.values())
    theirs = stats.dunnett(*others, control=base, rng=np.random.default_rng(0))
    assert [one.p_adjusted for one in ours.values()] == pytest.approx(theirs.pvalue, abs=0.004)
    two = {name: of_rows[name] for name in ("base", "b")}
    (ours_of_two,) = effects(RowScores(two), against("base", two), "dunnett").values()
    theirs_of_two = stats.ttest_ind(others[1], base)
    assert ours_of_two.p_value == ours_of_two.p_adjusted == pytest.approx(theirs_of_two.pvalue)
    interval = theirs_of_two.confidence_interval()
    assert ours_of_two.estimate - ours_of_two.margin == pytest.approx(interval.low)
    assert ours_of_two.estimate + ours_of_two.margin == pytest.approx(interval.high)


def test_rows_with_the_same_seeds_are_compared_seed_by_seed():
    rng = np.random.default_rng(1)
    of_seed = rng.normal(0, 5, 6)
    same = {
        name: dict(enumerate(of_seed + rng.normal(0, 0.1, 6) + n)) for n, name in enumerate("xy")
    }
    (one,) = effects(RowScores(same), {"y": {"y": 1, "x": -1}}, "holm").values()
    theirs = stats.ttest_rel([*same["y"].values()], [*same["x"].values()])
    assert one.p_value == pytest.approx(theirs.pvalue)
    assert one.degrees == theirs.df == 5


def test_a_row_of_a_much_larger_spread_does_not_hide_the_differences_of_others():
    wild = scores((0, 0.1), (1, 0.1), (0, 0.1), (0, 0.1), (0, 30))
    assert pool(wild, by_seed=False).rows == {"base", "a", "b", "c"}
    found = effects(RowScores(wild), against("base", wild), "dunnett")
    assert found["a"].p_adjusted < 0.001
    # No seed in common with the base, and another spread: Welch's test.
    welch = np.var([*wild["d"].values()], ddof=1) / 5 + pool(wild, by_seed=False).variance / 5
    assert found["d"].error == pytest.approx(np.sqrt(welch))
    assert found["d"].degrees == pytest.approx(4, rel=0.01)
    alike = scores((0, 1), (1, 1), (0, 1), (0, 1), (0, 2))
    assert len(pool(alike, by_seed=False).rows) == 5
    same_seeds = {name: dict(enumerate(seeds.values())) for name, seeds in wild.items()}
    found = effects(RowScores(same_seeds), against("base", wild), "dunnett")
    assert found["a"].p_adjusted < 0.001
    differences = np.array([*wild["d"].values()]) - [*wild["base"].values()]
    assert found["d"].error == pytest.approx(differences.std(ddof=1) / np.sqrt(5))


def test_a_wide_row_is_found_among_few_rows_with_the_same_seeds():
    """Three rows of three seeds: one with a spread 1,000 times as large."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        of_seed = rng.normal(0, 1, 3)
        sds = {"base": 1, "other": 1, "wide": 1000}
        rows = {name: dict(enumerate(of_seed + rng.normal(0, sd, 3))) for name, sd in sds.items()}
        assert "wide" not in pool(rows, by_seed=True).rows & pool(rows, by_seed=False).rows
        tested = effects(RowScores(rows), against("base", rows), "dunnett")
        wrong += tested["other"].p_value < 0.05
    assert wrong <= 12


def test_a_base_with_many_seeds_makes_comparisons_correlate_more():
    """scipy's test with its correlations for unequal numbers."""
    rng = np.random.default_rng(3)
    rows = {"base": dict(enumerate(rng.normal(0, 1, 20)))}
    rows |= {
        name: {100 + n: float(y)}
        for n, (name, y) in enumerate(zip("abcd", rng.normal(1.5, 1, 4), strict=True))
    }
    ours = effects(RowScores(rows), against("base", rows), "dunnett")
    samples = [[*rows[name].values()] for name in "abcd"]
    theirs = stats.dunnett(*samples, control=[*rows["base"].values()], rng=np.random.default_rng(0))
    assert [one.p_adjusted for one in ours.values()] == pytest.approx(theirs.pvalue, abs=0.005)


def test_rows_that_are_exactly_equal_have_p_one():
    same = {name: {0: 1.0, 1: 1.0} for name in "xy"}
    draws = {name: {seed: np.full(9, 1.0) for seed in (0, 1)} for name in "xy"}
    (one,) = effects(RowScores(same, draws), {"y": {"y": 1, "x": -1}}, "holm").values()
    assert (one.estimate, one.p_value, one.p_adjusted) == (0, 1, 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_adjustment_rejects_by_his_procedure(p_values):
    """Reject the smallest while it is below the level over the number of those that are left."""
    adjusted, level = holm(p_values), 0.05
    rejected, order = set(), sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        if p_values[index] * (len(order) - rank) > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(adjusted) if p <= level} == rejected
    assert all(p >= before for p, before in zip(adjusted, p_values, strict=True))


def test_the_seeds_that_are_needed_have_the_power_that_they_promise():
    number = seeds_needed(1.0, seed_variance=0.5**2, sentence_variance=0.0)
    assert number == 6  # G*Power: two groups of 6 for d = 2, alpha 0.05, power 0.8
    assert seeds_needed(1.0, 0.25, 0.0, comparisons=18) == 10  # the same with alpha 0.0028
    rng = np.random.default_rng(0)
    a, b = (rng.normal(mean, 0.5, (2000, number)) for mean in (0, 1))
    assert 0.78 <= (stats.ttest_ind(a, b, axis=1).pvalue < 0.05).mean() <= 0.9
    assert seeds_needed(1.0, 0.25, 1.0) is None  # the noise of sentences is as large


def test_all_pairs_are_named_by_both_rows():
    assert pairs("base", ["a", "base", "b"]) == {
        "a - base": {"a": 1, "base": -1},
        "b - base": {"b": 1, "base": -1},
        "b - a": {"b": 1, "a": -1},
    }
