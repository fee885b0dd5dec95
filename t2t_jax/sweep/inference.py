"""Test differences between the rows of a grid against the noise of seeds and sentences.

A score varies with the training seed and with the scored sentences. All seeds are scored on the
same sentences, so the variance of a difference has two parts: the variance over seeds, and the
variance of the mean over seeds under a bootstrap of sentences (Efron 1979; Koehn 2004). Both parts
contain the interaction of seeds and sentences, which is subtracted once. The sum is the variance of
Clark's (1973) test with seeds and sentences as random effects.
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
"""The significance level of all tests."""
POWER = 0.8
"""The probability with which `seeds_needed` finds a true difference."""

_NUM_DRAWS = 1000
_LEAST_SENTENCES = 30
"""The fewest sentences for a bootstrap. Smaller samples underestimate the variance."""
_MOST_GROUPS = 4000
"""The most units of a bootstrap. More sentences form groups, to limit time and memory."""
_LEAST_DEGREES = 3
"""The fewest degrees of freedom for paired comparisons (seed by seed)."""
# With fewer degrees, the larger quantile of Student's t outweighs the smaller variance.
_OUTLIER_LEVEL = 0.01
"""The level of the F test that excludes rows from the pool."""
_NUM_MAXIMA, _NUM_QUANTILES = 50_000, 1000  # Dunnett's test: p = 0.05 has an error of 0.001
_MOST_SEEDS = 1000
_LEAST_VARIANCE = 1e-18
"""The variance below which differences are rounding errors."""

Contrast = Mapping[str, float]
"""A contrast: the weight of each row in a linear combination of row means."""


class RowScores(NamedTuple):
    """The scores of the rows of a sweep's table in one measure, such as BLEU."""

    scores: Mapping[str, Mapping[int, float]]
    """Scores by row and seed."""
    draws: Mapping[str, Mapping[int, np.ndarray]] = {}
    """Scores on bootstrap samples of sentences, [draws], by row and seed. All rows share the
    samples."""
    tuned_rows: Collection[str] = ()
    """Rows whose seeds were tuned to different values."""


class Effect(NamedTuple):
    """The estimate of a contrast (a weighted sum of row means), with its error and p-values."""

    estimate: float
    error: float | None
    """The standard error; None if it is unknown."""
    degrees: float
    """The degrees of freedom of `error`; inf if only sentences add noise."""
    noise: str
    """The sources of noise in `error`, such as "seeds and sentences"; "" if unknown."""
    p_value: float | None
    """The two-sided p-value, not adjusted for the number of contrasts."""
    p_adjusted: float | None
    """The p-value adjusted for the number of contrasts."""
    seed_variance: float = 0.0
    """The variance over seeds, including the seed-sentence interaction."""
    sentence_variance: float = 0.0
    """The variance over sentences, without the seed-sentence interaction."""
    score_weights: Mapping[tuple[str, int], float] = {}
    """The weight of each score in the estimate, by row and seed; {} without a pool."""
    draws: np.ndarray | None = None
    """The estimate on each bootstrap sample, [draws]; None without bootstrap samples."""

    @property
    def margin(self) -> float:
        """Return half the width of the 95% confidence interval; inf if unknown."""
        if self.error is None:
            return math.inf
        return self.error * float(special.stdtrit(self.degrees, 0.975))


class Pool(NamedTuple):
    """A variance over seeds, estimated from all table rows with similar variances."""

    rows: frozenset[str]
    """The names of these rows."""
    variance: float
    """The variance of a row's score over seeds."""
    degrees: float
    """The degrees of freedom of the variance."""


def effects(
    rows: RowScores, contrasts: Mapping[str, Contrast], adjust: Literal["dunnett", "holm"]
) -> dict[str, Effect]:
    """Estimate named contrasts, which are weighted sums of row means, and test each against zero.

    Args:
      adjust: how to adjust p-values, by Dunnett's test (1955) for comparisons with one row, or by
        Holm's (1979) for other contrasts.
    """
    pools = pool(rows.scores, by_seed=True), pool(rows.scores, by_seed=False)
    estimates = {name: _estimate(rows, weights, *pools) for name, weights in contrasts.items()}
    p_values = {n: effect.p_value for n, effect in estimates.items() if effect.p_value is not None}
    tested_effects = [estimates[name] for name in p_values]
    p_adjusted = holm([*p_values.values()]) if adjust == "holm" else _dunnett(tested_effects)
    for name, p_value in zip(p_values, p_adjusted, strict=True):
        estimates[name] = estimates[name]._replace(p_adjusted=p_value)
    return estimates


def _estimate(rows: RowScores, contrast: Contrast, paired: Pool, unpaired: Pool) -> Effect:
    """Estimate a contrast, its standard error and its p-value.

    If possible, this uses only the seeds that all rows of the contrast share.

    Args:
      paired: the variance over seeds, pooled over rows, without seed effects that all rows share.
      unpaired: the pooled variance that includes these effects.
    """
    scores = {name: rows.scores[name] for name in contrast}
    seeds = set.intersection(*(set(by_seed) for by_seed in scores.values()))
    pool, is_tuned = None, not contrast.keys().isdisjoint(rows.tuned_rows)
    if seeds and paired.degrees >= _LEAST_DEGREES and contrast.keys() <= paired.rows:
        pool = paired
    elif unpaired.degrees and contrast.keys() <= unpaired.rows:
        pool = unpaired
    if pool is paired or (pool is None and len(seeds) > 1):
        scores = {name: {seed: scores[name][seed] for seed in seeds} for name in scores}
    estimate = sum(w * statistics.fmean(scores[name].values()) for name, w in contrast.items())
    sentence_var, draws, weights = None, None, dict[tuple[str, int], float]()
    if pool is not None:
        parts = (w**2 * _variance_of_mean(len(scores[n]), is_tuned) for n, w in contrast.items())
        seed_var: float | None = pool.variance * sum(parts)
        degrees = pool.degrees
        weights = {(n, s): w / len(scores[n]) for n, w in contrast.items() for s in scores[n]}
    elif len(seeds) > 1:  # rows outside the pools
        by_seed = [sum(w * scores[name][seed] for name, w in contrast.items()) for seed in seeds]
        seed_var = statistics.variance(by_seed) * _variance_of_mean(len(seeds), is_tuned)
        degrees = len(seeds) - 1
    else:
        seed_var, degrees = _welch_variance(rows.scores, contrast, unpaired, is_tuned)
    if seed_var is not None and seed_var < _LEAST_VARIANCE:  # equal scores do not show the noise
        seed_var = None
    if all(scores[name].keys() <= rows.draws.get(name, {}).keys() for name in scores):
        row_draws = {name: {s: rows.draws[name][s] for s in scores[name]} for name in scores}
        means = {name: np.mean([*row_draws[name].values()], axis=0) for name in row_draws}
        draws = sum((w * means[name] for name, w in contrast.items()), np.zeros(()))
        sentence_var = float(draws.var())
        if seed_var is not None:  # contains the interaction, too
            sentence_var = max(sentence_var - _interaction(row_draws, means, contrast), 0.0)
    variances = {"seeds": seed_var, "sentences": sentence_var}
    noise = " and ".join(name for name, variance in variances.items() if variance is not None)
    seed_var, sentence_var = seed_var or 0.0, sentence_var or 0.0
    degrees = _dof(degrees, seed_var, seed_var + sentence_var)
    error = math.sqrt(seed_var + sentence_var) if noise else None
    p = None if error is None else _p_value(estimate, error, degrees)
    return Effect(estimate, error, degrees, noise, p, None, seed_var, sentence_var, weights, draws)


def _welch_variance(
    scores: Mapping[str, Mapping[int, float]], contrast: Contrast, unpaired: Pool, is_tuned: bool
) -> tuple[float | None, float]:
    """Return the variance over seeds of a contrast, and its degrees of freedom, by Welch (1947).

    Here, the seeds of rows are not paired. Return (None, 0) if a row outside the pool has a single
    seed.
    """
    parts = []
    for name, weight in contrast.items():
        variance, degrees, num_seeds = unpaired.variance, unpaired.degrees, len(scores[name])
        if name not in unpaired.rows and num_seeds > 1:
            variance, degrees = statistics.variance(scores[name].values()), num_seeds - 1
        elif name not in unpaired.rows or not degrees:
            return None, 0.0
        parts.append((weight**2 * variance * _variance_of_mean(num_seeds, is_tuned), degrees))
    total, denominator = sum(part for part, _ in parts), sum(part**2 / df for part, df in parts)
    return total, total**2 / denominator if denominator else 0.0


def _dof(degrees: float, seed_variance: float, variance: float) -> float:
    """Return the degrees of freedom of a variance, or inf if `seed_variance` is 0.

    Args:
      degrees: the degrees of freedom of `seed_variance`.
      seed_variance: the part of `variance` that seeds cause.
    """
    # Satterthwaite's (1946) rule would square the ratio. At level 0.05 and two degrees, that rule
    # rejects 8% of true null hypotheses, and this formula at most 6%.
    return degrees * variance / seed_variance if seed_variance else math.inf


def _p_value(estimate: float, error: float, degrees: float) -> float:
    if abs(estimate) <= 1e-12:
        return 1.0
    return float(2 * special.stdtr(degrees, -abs(estimate) / error)) if error else 0.0


def _variance_of_mean(num_seeds: int, is_tuned: bool) -> float:
    """Return the variance of the mean score of seeds whose scores have variance 1.

    Args:
      is_tuned: whether each seed's fields were tuned by the scores of the other seeds.
    """
    # Tuning correlates the scores of seeds; the second term is from Nadeau and Bengio (2003).
    return 1 / num_seeds + (1 / (num_seeds - 1) if is_tuned and num_seeds > 1 else 0)


def _interaction(
    draws: Mapping[str, Mapping[int, np.ndarray]], means: dict[str, np.ndarray], contrast: Contrast
) -> float:
    """Return the part of a contrast's variance that comes from interactions of seeds and sentences.

    Args:
      draws: scores on bootstrap samples, [draws], by row and seed.
      means: means of these scores over seeds, [draws], by row.
    """
    # Sum over rows within each seed, so that seed effects on sentences that rows share cancel.
    deviations: dict[int, np.ndarray] = {}
    for name, weight in contrast.items():
        num_seeds = len(draws[name])
        for seed, samples in draws[name].items():
            scale = weight / math.sqrt(max(num_seeds * (num_seeds - 1), 1))
            deviations[seed] = deviations.get(seed, 0.0) + scale * (samples - means[name])
    return float(sum(deviation.var() for deviation in deviations.values()))


def pool(scores: Mapping[str, Mapping[int, float]], *, by_seed: bool) -> Pool:
    """Estimate the variance over seeds that rows of a table share.

    Rows with a much larger variance are excluded.

    Args:
      scores: scores by row and seed.
      by_seed: whether to remove each seed's mean effect.
    """
    # Each row has few seeds, so rows share one estimate. An F test at 1% (between rows the G test
    # of 't Lam 2010) excludes rows with a much larger variance.
    names = [*scores]
    squares, degrees = _residual_squares(scores, names, by_seed)
    while len(names) > 1:
        outlier = max(names, key=lambda name: squares[name] / len(scores[name]))
        inliers = [name for name in names if name != outlier]
        inlier_squares, inlier_degrees = _residual_squares(scores, inliers, by_seed)
        lost_degrees = degrees - inlier_degrees
        if not lost_degrees or not inlier_degrees:
            break
        inlier_sum = max(sum(inlier_squares.values()), _LEAST_VARIANCE)
        f_ratio = (sum(squares.values()) - inlier_sum) / lost_degrees * inlier_degrees / inlier_sum
        if special.fdtrc(lost_degrees, inlier_degrees, f_ratio) >= _OUTLIER_LEVEL / len(names):
            break
        names, squares, degrees = inliers, inlier_squares, inlier_degrees
    return Pool(frozenset(names), sum(squares.values()) / max(degrees, 1), degrees)


def _residual_squares(
    scores: Mapping[str, Mapping[int, float]], names: Sequence[str], by_seed: bool
) -> tuple[dict[str, float], int]:
    """Fit a mean for each row, and an effect for each seed if `by_seed`, to the scores.

    Returns:
      The sum of squared residuals by row, and the degrees of freedom.
    """
    cells = [(name, str(seed), score) for name in names for seed, score in scores[name].items()]
    rows, seeds, values = map(np.array, zip(*cells, strict=True))
    codes = [np.unique(labels, return_inverse=True)[1] for labels in (rows, seeds)[: 1 + by_seed]]
    design = np.concatenate([np.eye(code.max() + 1)[code] for code in codes], axis=1)
    coefficients, _, rank, _ = np.linalg.lstsq(design, values)
    squares = (values - design @ coefficients) ** 2
    return {name: float(squares[rows == name].sum()) for name in names}, len(values) - int(rank)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons by the method of Holm (1979)."""
    ascending = np.argsort(p_values)
    scaled_p = np.asarray(p_values)[ascending] * np.arange(len(ascending), 0, -1)
    p_adjusted = np.empty(len(ascending))
    p_adjusted[ascending] = np.minimum(np.maximum.accumulate(scaled_p), 1)
    return [float(p) for p in p_adjusted]


def _dunnett(contrasts: Sequence[Effect]) -> list[float]:
    """Adjust p-values by the distribution of the largest of several correlated t statistics."""
    # With seeds only and one pool, this is the test of Dunnett (1955).
    num_contrasts = len(contrasts)
    # Contrasts are correlated by shared rows and, in the bootstrap, by shared sentences.
    covariance = np.zeros((num_contrasts, num_contrasts))
    for (i, a), (j, b) in product(enumerate(contrasts), repeat=2):
        norm = math.hypot(*a.score_weights.values()) * math.hypot(*b.score_weights.values())
        if i == j or norm:
            shared = sum(w * b.score_weights.get(cell, 0.0) for cell, w in a.score_weights.items())
            correlation = 1.0 if i == j else shared / norm
            covariance[i, j] = correlation * math.sqrt(a.seed_variance * b.seed_variance)
    if indices := [i for i, effect in enumerate(contrasts) if effect.draws is not None]:
        sd = np.sqrt([contrasts[i].sentence_variance for i in indices])
        sentence_cov = np.atleast_2d(np.cov([contrasts[i].draws for i in indices]))
        covariance[np.ix_(indices, indices)] += _correlations(sentence_cov) * np.outer(sd, sd)
    values, vectors = np.linalg.eigh(_correlations(covariance))
    normal = np.random.default_rng(0).standard_normal((_NUM_MAXIMA, num_contrasts))
    maxima = np.abs(normal @ (vectors * np.sqrt(values.clip(0))).T).max(1, initial=0)
    maxima.sort()
    p_adjusted = []
    for effect in contrasts:
        p_value = effect.p_value or 0.0
        if num_contrasts > 1 and effect.error and p_value < 1:
            degrees, variance_ratios = effect.degrees, np.ones(1)
            if math.isfinite(degrees):
                quantiles = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
                variance_ratios = special.chdtri(degrees, quantiles) / degrees
            bounds = abs(effect.estimate) / effect.error * np.sqrt(variance_ratios)
            p_below = np.searchsorted(maxima, bounds) / _NUM_MAXIMA
            p_value = max(p_value, float(1 - p_below.mean()))  # sampling error must not lower it
        p_adjusted.append(p_value)
    return p_adjusted


def _correlations(covariance: np.ndarray) -> np.ndarray:
    sd = np.sqrt(np.diag(covariance))
    scale = np.where(sd, sd, 1)
    return covariance / np.outer(scale, scale)


@cache
def _draw_counts(size: int) -> np.ndarray:
    """Count the draws of each of `size` sentences in bootstrap samples: [draws, size], float64."""
    rng = np.random.default_rng(size)
    return rng.multinomial(size, np.full(size, 1 / size), _NUM_DRAWS).astype(float)


def _sum_samples(statistics: np.ndarray) -> np.ndarray:
    """Sum statistics of sentences, [sentences, k], over each bootstrap sample: [draws, k]."""
    if len(statistics) > _MOST_GROUPS:
        groups = np.zeros((_MOST_GROUPS, statistics.shape[1]))
        np.add.at(groups, np.arange(len(statistics)) % _MOST_GROUPS, statistics)
        statistics = groups
    return _draw_counts(len(statistics)) @ statistics


def draw_scores(result: Record, measure: str) -> np.ndarray | None:
    """Compute the score of a cell on bootstrap samples of the sentences.

    Args:
      measure: "bleu", "log_perplexity" or "bits_per_byte".

    Returns:
      The scores, [draws]; None for fewer than 30 sentences, or without scores by sentence.
    """
    if len(result.get("references", ())) < _LEAST_SENTENCES:
        return None
    if measure == "bleu":
        counts = sentence_statistics(result["hypotheses"], result["references"])
        return bleu_of(_sum_samples(counts))
    if "sentence_nll" not in result:
        return None
    nll, nats_per_unit = result["sentence_nll"], math.log(2)
    lengths = [len(line.encode()) for line in result["references"]]
    if measure == "log_perplexity":
        lengths, nats_per_unit = result["sentence_tokens"], 1.0
    if len(lengths) != len(nll):
        return None
    sums = _sum_samples(np.stack([nll, lengths], axis=1))
    return sums[:, 0] / sums[:, 1] / nats_per_unit


def seed_noise(scores: Mapping[str, Mapping[int, float]]) -> float:
    """Return the variance of a score over seeds, pooled over rows.

    Args:
      scores: scores by row and seed.
    """
    paired = pool(scores, by_seed=True)
    estimate = paired if paired.degrees >= _LEAST_DEGREES else pool(scores, by_seed=False)
    return estimate.variance


def seeds_needed(
    difference: float, seed_variance: float, sentence_variance: float, comparisons: int = 1
) -> int | None:
    """Return the number of seeds per row that detects a true difference with a power of 80%.

    Args:
      seed_variance: the variance of a score over seeds.
      sentence_variance: the variance of the difference over sentences.
      comparisons: the number of comparisons, for the adjustment of Šidák (1967).

    Returns:
      The number, at least 2; None if 1,000 seeds are too few.
    """
    adjusted_level = 1 - (1 - SIGNIFICANT) ** (1 / comparisons)
    for num_seeds in range(2, _MOST_SEEDS + 1):
        variance_over_seeds = 2 * seed_variance / num_seeds
        variance = variance_over_seeds + sentence_variance
        degrees = _dof(2 * (num_seeds - 1), variance_over_seeds, variance)
        quantiles = special.stdtrit(degrees, [1 - adjusted_level / 2, POWER])
        if quantiles.sum() * math.sqrt(variance) <= difference:
            return num_seeds
    return None
