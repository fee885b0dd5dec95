"""Laws are fitted to losses of which the law is known, and intervals to simulated grids."""

import numpy as np
import pytest
from scipy.optimize import least_squares, minimize_scalar

from t2t_jax.errors import UserError
from t2t_jax.sweep.scaling.cells import Observations
from t2t_jax.sweep.scaling.frontier import CostLine, cost_line, interval
from t2t_jax.sweep.scaling.isoflop import budgets, fit_isoflop
from t2t_jax.sweep.scaling.parametric import Law, fit_law

# The constants of Hoffmann et al. 2022, appendix D.3.
TRUTH = {"e": 1.69, "a": 406.4, "alpha": 0.34, "b": 410.7, "beta": 0.28}
COMPUTE = np.geomspace(6e18, 6e20, 4)


def loss_of(log_n, log_d, e, a, alpha, b, beta):
    return e + a * np.exp(-alpha * log_n) + b * np.exp(-beta * log_d)


def best_size(c):
    """The best log N for C = 6 N D by a search, which knows no formula."""
    found = minimize_scalar(
        lambda n: loss_of(n, np.log(c / 6) - n, **TRUTH),
        bounds=(10, 35),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return found.x


def observed(noise=0.0, seed=0, sizes=4, compute=COMPUTE, reach=3.0):
    """Cells at several sizes around the best one for each budget."""
    random = np.random.default_rng(seed)
    around = np.log(np.geomspace(1 / reach, reach, sizes))
    log_n = np.concatenate([best_size(c) + around for c in compute])
    log_c = np.repeat(np.log(compute), sizes)
    log_d = log_c - np.log(6) - log_n
    loss = loss_of(log_n, log_d, **TRUTH) * np.exp(noise * random.standard_normal(len(log_n)))
    return Observations(log_n, log_d, log_c, loss)


def test_the_constants_of_a_law_without_noise_are_found():
    law = fit_law(observed(), draws=5)
    assert {name: draws[0] for name, draws in law._asdict().items()} == pytest.approx(
        TRUTH, rel=1e-4
    )
    for name, draws in law._asdict().items():
        assert interval(draws) == pytest.approx((TRUTH[name], TRUTH[name]), rel=1e-3)


def test_the_fit_is_that_of_another_optimiser_and_no_worse_than_the_truth():
    seen = observed(noise=0.003)
    law = fit_law(seen, draws=0)

    def off(point):
        return np.log(loss_of(seen.log_n, seen.log_d, *point)) - np.log(seen.loss)

    def huber(point):
        r = np.abs(off(point))
        return np.where(r < 1e-3, r**2 / 2, 1e-3 * (r - 5e-4)).sum()

    scale = np.array(list(TRUTH.values()))
    other = least_squares(
        lambda x: off(x * scale), np.ones(5), loss="huber", f_scale=1e-3, xtol=1e-12, ftol=1e-12
    )
    ours = [draws[0] for draws in law]
    assert huber(ours) <= huber(list(TRUTH.values()))
    assert huber(ours) <= huber(other.x * scale) * (1 + 1e-4)


def test_the_constants_of_a_noisy_law_are_within_their_intervals():
    law = fit_law(observed(noise=0.002, sizes=8), draws=150)
    for name, truth in TRUTH.items():
        low, high = interval(getattr(law, name))
        assert low < truth < high
        assert high - low < truth  # an interval that says something
    frontier = law.frontier(cost_line(observed()))
    for c in (1e20, 1e22):
        low, high = interval(frontier.log_n(np.log(c)))
        assert low < best_size(c) < high


@pytest.mark.parametrize("gamma", [0.9, 1.0, 1.2])
def test_the_best_size_of_a_law_is_the_one_that_a_search_finds(gamma):
    cost = CostLine(np.log(9.0), gamma, 0.0)
    frontier = Law(*(np.array([value]) for value in TRUTH.values())).frontier(cost)
    log_c = np.log(3e19)
    found = minimize_scalar(
        lambda n: loss_of(n, cost.log_d(np.array([n]), log_c)[0], **TRUTH),
        bounds=(5, 40),
        method="bounded",
    )
    assert frontier.log_n(log_c)[0] == pytest.approx(found.x, abs=1e-4)
    assert cost.log_d(np.array([found.x]), log_c)[0] + gamma * found.x + np.log(
        9.0
    ) == pytest.approx(log_c)


def test_the_operations_of_cells_give_their_rule():
    random = np.random.default_rng(0)
    log_n, log_d = random.uniform(10, 20, 9), random.uniform(10, 20, 9)
    exact = Observations(log_n, log_d, np.log(5.0) + 1.1 * log_n + log_d, log_n)
    line = cost_line(exact)
    assert (np.exp(line.log_k), line.gamma) == pytest.approx((5.0, 1.1))
    assert line.largest_error == pytest.approx(0, abs=1e-9)


def parabolas(noise=0.0, seed=0, bend=0.05, sizes=5):
    """Cells whose losses are exact parabolas: the best N is 1e6 (C / 1e12)^0.5, C is 6 N D."""
    random = np.random.default_rng(seed)
    log_c = np.repeat(np.log([1e12, 2e12, 4e12, 8e12]), sizes)
    best = np.log(1e6) + 0.5 * (log_c - np.log(1e12))
    log_n = best + np.tile(np.linspace(-1.2, 1.0, sizes), 4)
    loss = 5 - 0.1 * (log_c - np.log(1e12)) + bend * (log_n - best) ** 2
    loss += noise * random.standard_normal(len(loss))
    return Observations(log_n, log_c - np.log(6) - log_n, log_c, loss)


def test_exact_parabolas_have_their_minima_and_exponents():
    found = fit_isoflop(parabolas(), draws=50)
    for number, each in enumerate(found.parabolas):
        assert np.exp(each.minimum[0]) == pytest.approx(1e6 * 2 ** (number / 2))
        assert each.least_loss[0] == pytest.approx(5 - 0.1 * number * np.log(2))
        assert not each.is_outside
    assert (found.frontier.a[0], found.frontier.b[0]) == pytest.approx((0.5, 0.5))
    assert np.exp(found.frontier.log_n(np.log(1e14))[0]) == pytest.approx(1e7)


@pytest.mark.parametrize("sizes", [4, 6])
def test_intervals_of_parabolas_hold_the_truth_as_often_as_they_say(sizes):
    hits = []
    for seed in range(300):
        found = fit_isoflop(parabolas(0.01, seed, sizes=sizes), draws=200, seed=seed)
        first = found.parabolas[0]
        truths = (first.minimum, np.log(1e6)), (found.frontier.a, 0.5), (first.least_loss, 5.0)
        hits.append([low <= truth <= high for d, truth in truths for low, high in [interval(d)]])
    shares = np.mean(hits, axis=0)
    assert (shares > 0.9).all()
    assert (shares < 0.99).all()


@pytest.mark.thorough
def test_intervals_of_a_law_hold_the_truth_nearly_as_often_as_they_say():
    hits = []
    for seed in range(40):
        law = fit_law(observed(0.003, seed, sizes=6), draws=80, seed=seed)
        ends = [interval(draws) for draws in law]
        hits.append([low <= TRUTH[n] <= high for n, (low, high) in zip(TRUTH, ends, strict=True)])
    assert (np.mean(hits, axis=0) >= 0.85).all()


def test_a_minimum_outside_the_sizes_is_said_to_be_so():
    seen = parabolas()
    beyond = parabolas()._replace(log_n=seen.log_n + 2.0)
    shifted = 5 + 0.05 * (beyond.log_n - np.log(1e6)) ** 2
    found = fit_isoflop(beyond._replace(loss=shifted), draws=20).parabolas
    assert [each.is_outside for each in found] == [True] * 4
    assert np.exp([each.minimum[0] for each in found]) == pytest.approx(1e6)
    assert found[0].least_loss[0] == pytest.approx(shifted.min())


def test_without_a_bend_nothing_is_claimed():
    with pytest.raises(UserError, match="no best size can be told from these sizes; train smaller"):
        fit_isoflop(parabolas(bend=-0.05))
    one_sided = fit_isoflop(parabolas(noise=0.05, bend=0.005), draws=300)
    assert np.isinf(interval(one_sided.parabolas[0].minimum)).any()


def test_budgets_are_told_apart_by_a_tenth():
    flops = np.array([1.0, 2.08, 1.05, 2.0, 1.12, 8.0])
    assert budgets(np.log(flops)).tolist() == [0, 2, 0, 2, 1, 3]


def test_nonsense_has_wide_intervals_and_no_overflow():
    law = fit_law(observed(noise=0.3), draws=25)
    low, high = interval(law.alpha)
    assert high > 1.2 * low
    assert np.isfinite(law).all()
    assert (law.loss(20.0, 25.0) >= law.e).all()


ONE = observed()


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (observed(compute=COMPUTE[:1]), "1 budget.s. have cells of 3 sizes or more"),
        (observed(sizes=2), "0 budget.s. have cells of 3 sizes or more"),
        (observed(sizes=3), "with 0 cell.s. beyond those that a parabola takes"),
        (ONE._replace(loss=np.full(16, 3.0)), "all losses are 3.0000"),
    ],
    ids=["one budget", "two sizes", "no cell to spare", "equal losses"],
)
def test_parabolas_of_too_little_are_refused(seen, said):
    with pytest.raises(UserError, match=said):
        fit_isoflop(seen)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (observed(compute=COMPUTE[:1]), "4 cell.s. of 4 size.s. .* too few for a law"),
        (ONE._replace(log_n=np.full(16, 9.0)), "16 cell.s. of 1 size.s. .* too few"),
        (ONE._replace(log_d=np.full(16, 9.0)), "and 1 number.s. of tokens are too few"),
        (ONE._replace(loss=np.full(16, 3.0)), "all losses are 3.0000"),
    ],
    ids=["few cells", "one size", "one number of tokens", "equal losses"],
)
def test_a_law_of_too_little_is_refused(seen, said):
    with pytest.raises(UserError, match=said):
        fit_law(seen)
