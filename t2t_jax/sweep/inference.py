"""Test differences between the rows of a grid, against the noise of seeds and of sentences.

A score varies with the seed of the training and with the sentences that it is computed on. Both
vary at once, as every seed is scored on the same sentences. So the variance of a difference is the
sum of two parts: the variance over seeds, and the variance of the mean over seeds under a bootstrap
of the sentences (Efron 1979; Koehn 2004), which draws the same sentences for all rows and seeds.
What both parts contain, the interaction of seeds and sentences, is subtracted once. The sum is that
of Clark's (1973) test with seeds and sentences as random effects.

Rows share one estimate of the noise of seeds, as each has few of them. A row whose spread is much
larger is left out of this pool by an F test at 1% (between rows the G test of 't Lam 2010), and so
compared by its own spread.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.bleu import bleu_of, sentence_statistics

SIGNIFICANT = 0.05
"""The level of all tests; an interval holds the true difference in 95% of cases."""
POWER = 0.8
"""The probability with which `seeds_needed` finds a true difference."""

_DRAWS = 1000
_LEAST_SENTENCES = 30
"""The number of sentences below which a bootstrap finds too little variance, and so is not used."""
_MOST_GROUPS = 4000
"""The number of sentences above which groups of sentences are drawn, to bound time and memory."""
_LEAST_DEGREES = 3
"""The least degrees of freedom for a comparison seed by seed. With fewer, Student's t is so large
that such a comparison loses more than it gains."""
_OTHER_SPREAD = 0.01
"""The level of the test that leaves rows out of the pool."""
_MAXIMA, _QUANTILES = 50_000, 1000  # for Dunnett's test: the error of a p-value of 0.05 is 0.001
_MOST_SEEDS = 1000
_ROUNDING = 1e-18
"""A variance below which all differences are errors of rounding."""

Weights = Mapping[str, float]
"""A contrast: the weight of each row in a linear combination of their means."""


class RowScores(NamedTuple):
    """The scores of a grid's rows in one measure."""

    scores: Mapping[str, Mapping[int, float]]
    """The scores by row and seed."""
    draws: Mapping[str, Mapping[int, np.ndarray]] = {}
    """The scores on bootstrap samples of the sentences, [draws], by row and seed. All have the same
    samples. Rows without them are compared by seeds only."""
    uncertain: Collection[str] = ()
    """The rows whose seeds were tuned to different values."""


class Effect(NamedTuple):
    """The estimate of a contrast."""

    estimate: float
    error: float | None
    """The standard error; None if neither noise is known."""
    degrees: float
    """The degrees of freedom of `error`; inf for noise of sentences only."""
    noise: str
    """The sources of noise in `error`: "seeds and sentences", one of them, or ""."""
    p_value: float | None
    """The two-sided p-value, for this contrast only."""
    p_adjusted: float | None
    """The p-value for all contrasts together: the chance that any of them looks as different."""
    seed_variance: float = 0.0
    """The variance of the estimate over seeds, with the interaction of seeds and sentences."""
    sentence_variance: float = 0.0
    """The variance of the estimate over sentences, without that interaction."""
    shares: Mapping[tuple[str, int], float] = {}
    """The weights of single scores, by row and seed, if `seed_variance` is from a pool of rows."""
    draws: np.ndarray | None = None
    """The estimate on each bootstrap sample, [draws]; None if the sentences are unknown."""

    @property
    def margin(self) -> float:
        """Return half of the 95% confidence interval; inf if the error is unknown."""
        if self.error is None:
            return math.inf
        return self.error * float(special.stdtrit(self.degrees, 0.975))


class Pool(NamedTuple):
    """The noise that rows share."""

    rows: frozenset[str]
    variance: float
    """The variance of a score over seeds."""
    degrees: float
    """Its degrees of freedom; 0 if no row has two seeds."""


def effects(
    rows: RowScores, contrasts: Mapping[str, Weights], adjust: Literal["dunnett", "holm"]
) -> dict[str, Effect]:
    """Estimate contrasts between rows, and test each against zero.

    Args:
      adjust: the adjustment for many comparisons: Dunnett's (1955) for comparisons with one row, by
        the correlations of the contrasts, or Holm's (1979) for any others.
    """
    pools = pooled(rows.scores, by_seed=True), pooled(rows.scores, by_seed=False)
    estimates = {name: _estimate(rows, weights, *pools) for name, weights in contrasts.items()}
    p_values = {n: effect.p_value for n, effect in estimates.items() if effect.p_value is not None}
    tested = [estimates[name] for name in p_values]
    adjusted = holm([*p_values.values()]) if adjust == "holm" else _dunnett(tested)
    for name, p_value in zip(p_values, adjusted, strict=True):
        estimates[name] = estimates[name]._replace(p_adjusted=p_value)
    return estimates


def _estimate(rows: RowScores, weights: Weights, paired: Pool, unpaired: Pool) -> Effect:
    """Estimate a contrast by the seeds that its rows share, or by all seeds of each row."""
    scores = {name: rows.scores[name] for name in weights}
    shared = set.intersection(*(set(by_seed) for by_seed in scores.values()))
    pool, is_tuned = None, not weights.keys().isdisjoint(rows.uncertain)
    if shared and paired.degrees >= _LEAST_DEGREES and weights.keys() <= paired.rows:
        pool = paired
    elif unpaired.degrees and weights.keys() <= unpaired.rows:
        pool = unpaired
    if pool is paired or (pool is None and len(shared) > 1):
        scores = {name: {seed: scores[name][seed] for seed in shared} for name in scores}
    estimate = sum(w * statistics.fmean(scores[name].values()) for name, w in weights.items())
    by_sentences, draws, shares = None, None, dict[tuple[str, int], float]()
    if pool is not None:
        sizes = (w**2 * _variance_of_mean(len(scores[n]), is_tuned) for n, w in weights.items())
        by_seeds: float | None = pool.variance * sum(sizes)
        degrees = pool.degrees
        shares = {(n, s): w / len(scores[n]) for n, w in weights.items() for s in scores[n]}
    elif len(shared) > 1:  # rows of another spread
        by_seed = [sum(w * scores[name][seed] for name, w in weights.items()) for seed in shared]
        by_seeds = statistics.variance(by_seed) * _variance_of_mean(len(shared), is_tuned)
        degrees = len(shared) - 1
    else:
        by_seeds, degrees = _welch(rows.scores, weights, unpaired, is_tuned)
    if by_seeds is not None and by_seeds < _ROUNDING:  # equal scores say nothing of the noise
        by_seeds = None
    if all(scores[name].keys() <= rows.draws.get(name, {}).keys() for name in scores):
        sampled = {name: {s: rows.draws[name][s] for s in scores[name]} for name in scores}
        means = {name: np.mean([*sampled[name].values()], axis=0) for name in sampled}
        draws = sum((w * means[name] for name, w in weights.items()), np.zeros(()))
        by_sentences = float(draws.var())
        if by_seeds is not None:  # which contains the interaction, too
            by_sentences = max(by_sentences - _interaction(sampled, means, weights), 0.0)
    parts = {"seeds": by_seeds, "sentences": by_sentences}
    noise = " and ".join(name for name, part in parts.items() if part is not None)
    seeds, sentences = by_seeds or 0.0, by_sentences or 0.0
    freedom = _freedom(degrees, seeds, seeds + sentences)
    error = math.sqrt(seeds + sentences) if noise else None
    p_value = None if error is None else _p_value(estimate, error, freedom)
    return Effect(estimate, error, freedom, noise, p_value, None, seeds, sentences, shares, draws)


def _welch(
    scores: Mapping[str, Mapping[int, float]], weights: Weights, unpaired: Pool, is_tuned: bool
) -> tuple[float | None, float]:
    """Return the variance of a contrast over seeds of its own for each row, as by Welch (1947).

    Returns:
      The variance, None if a row outside the pool has a single seed; and its degrees of freedom.
    """
    parts = []
    for name, weight in weights.items():
        variance, degrees, number = unpaired.variance, unpaired.degrees, len(scores[name])
        if name not in unpaired.rows and number > 1:
            variance, degrees = statistics.variance(scores[name].values()), number - 1
        elif name not in unpaired.rows or not degrees:
            return None, 0.0
        parts.append((weight**2 * variance * _variance_of_mean(number, is_tuned), degrees))
    total, squares = sum(part for part, _ in parts), sum(part**2 / d for part, d in parts)
    return total, total**2 / squares if squares else 0.0


def _freedom(degrees: float, by_seeds: float, variance: float) -> float:
    """Return the degrees of freedom of a variance of which a part has few degrees, that of seeds.

    Satterthwaite's (1946) rule squares the ratio. With an estimate of two degrees, it then finds 8%
    of equal rows different at 0.05, and this form at most 6%.
    """
    return degrees * variance / by_seeds if by_seeds else math.inf


def _p_value(estimate: float, error: float, degrees: float) -> float:
    """Return the two-sided p-value of Student's t."""
    if abs(estimate) <= 1e-12:
        return 1.0
    return float(2 * special.stdtr(degrees, -abs(estimate) / error)) if error else 0.0


def _variance_of_mean(number: int, is_uncertain: bool) -> float:
    """Return the variance of a mean over a number of seeds whose noise has the variance 1.

    If the choice of a tuned value is uncertain, the scores of different seeds are correlated, as
    each influenced the choice for the others. The variance is then from Nadeau and Bengio (2003).
    """
    return 1 / number + (1 / (number - 1) if is_uncertain and number > 1 else 0)


def _interaction(
    draws: Mapping[str, Mapping[int, np.ndarray]], means: Mapping[str, np.ndarray], weights: Weights
) -> float:
    """Return the variance of a contrast by sentences that matter under single seeds only.

    Effects of a seed on a sentence that rows share cancel in their difference. So the deviations of
    the rows from their means over seeds are first summed seed by seed.

    Args:
      draws: the scores on bootstrap samples, [draws], by row and seed.
      means: their means over seeds, [draws], by row.
    """
    deviations: dict[int, np.ndarray] = {}
    for name, weight in weights.items():
        number = len(draws[name])
        for seed, values in draws[name].items():
            share = weight / math.sqrt(max(number * (number - 1), 1))
            deviations[seed] = deviations.get(seed, 0.0) + share * (values - means[name])
    return float(sum(deviation.var() for deviation in deviations.values()))


def pooled(scores: Mapping[str, Mapping[int, float]], *, by_seed: bool) -> Pool:
    """Return the noise that rows share, by least squares, without rows of a larger spread.

    Args:
      by_seed: whether a seed adds the same effect to all rows; otherwise that effect is noise.
    """
    names = [*scores]
    squares, degrees = _residual(scores, names, by_seed)
    while len(names) > 1:
        widest = max(names, key=lambda name: squares[name] / len(scores[name]))
        narrower = [name for name in names if name != widest]
        of_narrower, remaining = _residual(scores, narrower, by_seed)
        freedom = degrees - remaining
        if not freedom or not remaining:
            break
        residual = max(sum(of_narrower.values()), _ROUNDING)
        ratio = (sum(squares.values()) - residual) / freedom * remaining / residual
        if special.fdtrc(freedom, remaining, ratio) >= _OTHER_SPREAD / len(names):
            break
        names.remove(widest)
        squares, degrees = of_narrower, remaining
    return Pool(frozenset(names), sum(squares.values()) / max(degrees, 1), degrees)


def _residual(
    scores: Mapping[str, Mapping[int, float]], names: Sequence[str], by_seed: bool
) -> tuple[dict[str, float], int]:
    """Return each row's squares without the effects of rows and seeds, and the degrees of all."""
    cells = [(name, str(seed), y) for name in names for seed, y in scores[name].items()]
    rows, seeds, values = map(np.array, zip(*cells, strict=True))
    levels = [np.unique(level, return_inverse=True)[1] for level in (rows, seeds)[: 1 + by_seed]]
    design = np.concatenate([np.eye(level.max() + 1)[level] for level in levels], axis=1)
    fitted, _, rank, _ = np.linalg.lstsq(design, values)
    squares = (values - design @ fitted) ** 2
    return {name: float(squares[rows == name].sum()) for name in names}, len(values) - int(rank)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by the method of Holm (1979)."""
    order = np.argsort(p_values)
    scaled = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(p) for p in adjusted]


def _dunnett(tested: Sequence[Effect]) -> list[float]:
    """Return p-values adjusted by the distribution of the largest of correlated t statistics.

    The correlations are those of seeds (rows that several contrasts share) and of sentences (the
    bootstrap). With seeds only and one pool, this is the test of Dunnett (1955).
    """
    number = len(tested)
    covariance = np.zeros((number, number))
    for (i, a), (j, b) in product(enumerate(tested), repeat=2):
        norm = math.hypot(*a.shares.values()) * math.hypot(*b.shares.values())
        if i == j or norm:
            shared = sum(w * b.shares.get(cell, 0.0) for cell, w in a.shares.items())
            correlation = 1.0 if i == j else shared / norm
            covariance[i, j] = correlation * math.sqrt(a.seed_variance * b.seed_variance)
    if sampled := [i for i, effect in enumerate(tested) if effect.draws is not None]:
        sd = np.sqrt([tested[i].sentence_variance for i in sampled])
        of_sentences = np.atleast_2d(np.cov([tested[i].draws for i in sampled]))
        covariance[np.ix_(sampled, sampled)] += _correlations(of_sentences) * np.outer(sd, sd)
    values, vectors = np.linalg.eigh(_correlations(covariance))
    normal = np.random.default_rng(0).standard_normal((_MAXIMA, number))
    maxima = np.abs(normal @ (vectors * np.sqrt(values.clip(0))).T).max(1, initial=0)
    maxima.sort()
    adjusted = []
    for effect in tested:
        p_value = effect.p_value or 0.0
        if number > 1 and effect.error and p_value < 1:
            degrees, spread = effect.degrees, np.ones(1)
            if math.isfinite(degrees):
                chance = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
                spread = special.chdtri(degrees, chance) / degrees
            limits = abs(effect.estimate) / effect.error * np.sqrt(spread)
            below = np.searchsorted(maxima, limits) / _MAXIMA
            p_value = max(p_value, float(1 - below.mean()))  # not below by the error of sampling
        adjusted.append(p_value)
    return adjusted


def _correlations(covariance: np.ndarray) -> np.ndarray:
    """Return the correlations of variables; 0 for a variable without variance."""
    sd = np.sqrt(np.diag(covariance))
    scale = np.where(sd, sd, 1)
    return covariance / np.outer(scale, scale)


@cache
def _counts(number: int) -> np.ndarray:
    """Return how often each sentence is in each bootstrap sample: [draws, number], float64."""
    rng = np.random.default_rng(number)
    return rng.multinomial(number, np.full(number, 1 / number), _DRAWS).astype(float)


def _sampled(statistics: np.ndarray) -> np.ndarray:
    """Sum statistics of sentences, [sentences, k], over each bootstrap sample: [draws, k]."""
    if len(statistics) > _MOST_GROUPS:
        groups = np.zeros((_MOST_GROUPS, statistics.shape[1]))
        np.add.at(groups, np.arange(len(statistics)) % _MOST_GROUPS, statistics)
        statistics = groups
    return _counts(len(statistics)) @ statistics


def sampled_scores(result: Record, measure: str) -> np.ndarray | None:
    """Return the score of a cell on bootstrap samples of the sentences, shape [draws].

    Args:
      measure: "bleu", "log_perplexity" or "bits_per_byte".

    Returns:
      The scores; None if the result lacks the sentences that they are computed from, or has fewer
      than 30.
    """
    if len(result.get("references", ())) < _LEAST_SENTENCES:
        return None
    if measure == "bleu":
        counts = sentence_statistics(result["hypotheses"], result["references"])
        return bleu_of(_sampled(counts))
    if "sentence_nll" not in result:
        return None
    nll, unit = result["sentence_nll"], math.log(2)
    sizes = [len(line.encode()) for line in result["references"]]
    if measure == "log_perplexity":
        sizes, unit = result["sentence_tokens"], 1.0
    if len(sizes) != len(nll):
        return None
    sums = _sampled(np.stack([nll, sizes], axis=1))
    return sums[:, 0] / sums[:, 1] / unit


def noise_of_seeds(scores: Mapping[str, Mapping[int, float]]) -> float:
    """Return the variance over seeds that rows share, by the pool that compares them."""
    paired = pooled(scores, by_seed=True)
    pool = paired if paired.degrees >= _LEAST_DEGREES else pooled(scores, by_seed=False)
    return pool.variance


def seeds_needed(
    difference: float, seed_variance: float, sentence_variance: float, comparisons: int = 1
) -> int | None:
    """Return how many seeds of each of two rows find a true difference with a probability of 80%.

    Args:
      sentence_variance: the variance of the difference over sentences, which seeds do not reduce.
      comparisons: the number of comparisons for which p-values are adjusted, here by Šidák (1967).

    Returns:
      The number, at least 2; None if even 1,000 seeds are too few.
    """
    level = 1 - (1 - SIGNIFICANT) ** (1 / comparisons)
    for number in range(2, _MOST_SEEDS + 1):
        by_seeds = 2 * seed_variance / number
        variance = by_seeds + sentence_variance
        degrees = _freedom(2 * (number - 1), by_seeds, variance)
        quantiles = special.stdtrit(degrees, [1 - level / 2, POWER])
        if quantiles.sum() * math.sqrt(variance) <= difference:
            return number
    return None
