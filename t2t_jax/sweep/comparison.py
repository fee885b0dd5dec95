"""Compare a grid's variants with its base, against the noise of seeds and sentences.

A difference counts only if it is larger than the differences between seeds (Student's t over
seeds), and, for BLEU, if the choice of the sentences is unlikely to explain it (paired bootstrap,
Koehn 2004).

A seed gives all variants the same order of training pairs. So a score is modelled as the sum of an
effect of the variant, an effect of the seed, and noise: variants are compared seed by seed. The
noise is assumed equal for all variants; for perplexities, relative to their size.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from t2t_jax.config import Config, from_dict
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.errors import UserError
from t2t_jax.paper import Table3Row
from t2t_jax.sweep.cell import measures_of
from t2t_jax.sweep.same_code import other_code
from t2t_jax.tasks.measures.significance import paired_bootstrap

if TYPE_CHECKING:
    from t2t_jax.tasks.task import GridMeasures

SIGNIFICANT = 0.05
"""The p-value below which a difference is not attributed to the choice of sentences."""

_LEAST_FREEDOM = 3
"""The least degrees of freedom of the noise for a comparison seed by seed: with fewer, Student's t
is so large that such a comparison loses more than it gains."""

OF_SUBWORDS = (
    *("data.vocab_size", "data.corpus", "data.source_language", "data.target_language"),
    *("data.protected_tokens", "data.fields", "data.task", "data.documents", "data.text_rows"),
    *("data.masked_share", "training.init_from"),
)
"""The fields that decide the vocabulary of a perplexity, or the subwords that it counts."""

Results = Mapping[str, Sequence[dict[str, Any]]]
"""The results of the finished seeds by variant, each as `Cell.result` gives it."""


class Change(NamedTuple):
    """A variant's mean of one measure, and its difference from the base."""

    mean: float
    """The mean of the measure over the variant's seeds."""
    sd: float | None
    """The standard deviation over the variant's seeds; None for a single seed."""
    difference: float | None
    """The mean minus that of the base, over the seeds that both have if variants are compared seed
    by seed; None if the two cannot be compared."""
    error: float | None
    """The standard error of the difference over seeds; None if no variant has two seeds."""
    margin: float | None
    """Half of the difference's 95% confidence interval: `error` times Student's t."""

    @property
    def within_noise(self) -> bool:
        """Return whether the confidence interval of the difference contains zero."""
        return (
            self.difference is not None
            and self.margin is not None
            and abs(self.difference) <= self.margin
        )

    @property
    def shown(self) -> tuple[str, str]:
        """Return the mean and the difference as text, each with its deviation."""
        mean = f"{self.mean:.2f}" + ("" if self.sd is None else f" ± {self.sd:.2f}")
        difference = "" if self.difference is None else f"{self.difference:+.2f}"
        return mean, difference + ("" if self.error is None else f" ± {self.error:.2f}")


class VariantRow(NamedTuple):
    """The row of a variant in the table."""

    variant: str
    """The variant's name in the grid."""
    difference: str
    """The fields in which the variant's config differs from the base's, with their values."""
    num_seeds: int
    """The number of finished seeds."""
    num_diverged: int
    """The number of seeds that diverged, with which nothing can be said of the others' scores."""
    perplexity: Change
    """The perplexity on dev, per subword."""
    measures: "GridMeasures"
    """The names and fields of the task's scores."""
    score: Change
    """The score by which variants are compared."""
    beside: Change | None
    """The score that is shown beside that one, if the task has a second score."""
    p_value: float | None
    """The p-value of the difference in BLEU, the largest over seeds; None for the base itself, and
    for other scores."""
    num_parameters: int
    """The exact number of the model's parameters; of tuned ones of several sizes, the largest."""
    num_train_steps: int
    """The steps of training: those of the config, or fewer if every seed ended before them."""
    target_tokens_per_second: float
    """The speed of training: the mean over the seeds of each seed's median."""
    other_code: str
    """Files, versions and settings that differ from the first cell of the table; "" if none do."""
    published: Table3Row | None
    """The figures of the paper for a variant of this name; None if it has none."""

    @property
    def shown(self) -> str:
        """Return the variant's name for readers, with a mark if its code differs."""
        return f"{self.variant} †" if self.other_code else self.variant

    @property
    def verdicts(self) -> dict[str, str]:
        """Return whether the variant differs from the base, by the name of the measure.

        The values are "lower", "higher" or "equal", or name the noise that covers the difference;
        "" means an unknown difference, as of a variant with a diverged seed.
        """
        if self.num_diverged:
            return {"perplexity": "", self.measures.score.name: ""}
        unknown = self.measures.bootstrap and self.p_value is None
        return {
            "perplexity": verdict_on(self.perplexity),
            self.measures.score.name: "" if unknown else verdict_on(self.score, self.p_value),
        }

    @property
    def verdict(self) -> str:
        """Return the verdicts in a line, each after the name of its measure."""
        if self.num_diverged:
            number = self.num_diverged + self.num_seeds
            return f"diverged under {self.num_diverged} of {number} seeds"
        return "; ".join(f"{name}: {words}" for name, words in self.verdicts.items() if words)


def verdict_on(change: Change, p_value: float | None = None) -> str:
    """Return the verdict on a difference, given the noise of seeds and sentences; "" for none."""
    if change.difference is None:
        return ""
    by_seeds, by_sentences = change.within_noise, p_value is not None and p_value >= SIGNIFICANT
    noises = [name for name, is_it in (("seeds", by_seeds), ("sentences", by_sentences)) if is_it]
    if noises:
        return f"within the noise of {' and '.join(noises)}"
    direction = {1: "higher", -1: "lower"}.get(np.sign(change.difference), "equal")
    return direction if change.error is not None else f"{direction}, noise of seeds unknown"


def compare(
    grid: Grid, results: Results, diverged: Mapping[str, int] | None = None
) -> list[VariantRow]:
    """Return the rows of the table in the order of the grid.

    They have no differences while the base has no result.

    Args:
      diverged: the number of diverged seeds by variant; None means none.

    Raises:
      UserError: there are no results, or variants were scored on different sentences.
    """
    if not results:
        raise UserError("no cell of the grid has a result yet; train some first")
    first = next(iter(results))
    wanted = _scored_on(results[first][0])
    for variant, seeds in results.items():
        if any(_scored_on(result) != wanted for result in seeds):
            raise UserError(
                f"{variant} was scored on other sentences than {first}; scores of different "
                "test sets are not compared: score both on the same one"
            )
    broken, measures = diverged or {}, _measures_of_all(results)
    fields = [one.field for one in (measures.score, measures.beside) if one]
    found = {field: changes(grid, results, field) for field in ("perplexity", *fields)}
    mixed = other_code(results)
    rows = (
        _row(grid, results, variant, broken.get(variant, 0), measures, found)
        for variant in grid.variants
        if variant in results
    )
    return [row._replace(other_code=mixed.get(row.variant, "")) for row in rows]


def _measures_of_all(results: Results) -> "GridMeasures":
    """Return the scores that all results have.

    These are the task's, or with the config's metric as the second if every result has the same
    metric.
    """
    every = [result for seeds in results.values() for result in seeds]
    found = {measures_of(result) for result in every}
    return found.pop() if len(found) == 1 else measures_of(every[0], with_metric=False)


def _scored_on(result: Mapping[str, Any]) -> object:
    """Return a value that is equal for results on the same sentences."""
    whole = measures_of(result).whole_split
    return result["references"] if whole else (result["corpus"], result["split"])


def _row(
    grid: Grid,
    results: Results,
    variant: str,
    num_diverged: int,
    measures: "GridMeasures",
    found: Mapping[str, Mapping[str, Change]],
) -> VariantRow:
    """Return the row of a variant, given the changes of all variants by the field of a measure."""
    config, base, seeds = grid.variants[variant], grid.variants[grid.base], results[variant]
    is_tested = measures.bootstrap and variant != grid.base
    return VariantRow(
        variant,
        describe_difference(base, config),
        len(seeds),
        num_diverged,
        found["perplexity"][variant],
        measures,
        found[measures.score.field][variant],
        measures.beside and found[measures.beside.field][variant],
        _p_value(results.get(grid.base, []), seeds) if is_tested else None,
        _num_parameters(config, seeds),
        max(int(result["steps"]) for result in seeds),
        statistics.fmean(result["target_tokens_per_second"] for result in seeds),
        "",
        grid.published.get(variant),
    )


def _num_parameters(config: Config, seeds: Sequence[dict[str, Any]]) -> int:
    trained = [from_dict(seed["config"]) for seed in seeds if "tuned_to" in seed] or [config]
    return max(num_parameters(one.model, one.data.vocab_size) for one in trained)


def subwords(config: Config) -> tuple[Any, ...]:
    """Return the settings that define the subwords of a perplexity."""
    return tuple(config.value(path) for path in OF_SUBWORDS)


def changes(grid: Grid, results: Results, measure: str) -> dict[str, Change]:
    """Return each variant's mean of a measure, and its difference from the base.

    Perplexities over other subwords than the base's are not compared, and their noise differs too.
    """
    is_relative = measure == "perplexity"
    of_base = subwords(grid.variants[grid.base])
    compared = {
        name: {_seed(result): float(result[measure]) for result in seeds}
        for name, seeds in results.items()
        if not is_relative or subwords(grid.variants[name]) == of_base
    }
    noises = []
    if grid.base in compared:
        noises = [_noise(compared, by_seed=each, relative=is_relative) for each in (True, False)]
    found = {}
    for variant, seeds in results.items():
        own = [result[measure] for result in seeds]
        sd = statistics.stdev(own) if len(own) > 1 else None
        found[variant] = Change(statistics.fmean(own), sd, None, None, None)
        if noises and variant in compared and variant != grid.base:
            pair = compared[variant], compared[grid.base]
            are_tuned = _differ_in_value(seeds) or _differ_in_value(results[grid.base])
            difference = _difference(*pair, noises, is_relative, are_tuned)
            found[variant] = Change(statistics.fmean(own), sd, *difference)
    return found


def _difference(
    own: Mapping[int, float],
    base: Mapping[int, float],
    noises: Sequence[tuple[float, int]],
    is_relative: bool,
    are_tuned: bool,
) -> tuple[float, float | None, float | None]:
    """Return the difference of scores by seed from the base's, its standard error and its margin.

    Args:
      noises: the deviation of the noise and its degrees of freedom, for a comparison seed by seed
        and for one of means.
      is_relative: whether the noise is relative to the scores.
      are_tuned: whether seeds of one of the two have different values of tuned fields.
    """
    (sd, freedom), of_means = noises
    if freedom >= _LEAST_FREEDOM and (shared := own.keys() & base.keys()):
        own, base = ({seed: one[seed] for seed in shared} for one in (own, base))
    else:
        sd, freedom = of_means
    means = [statistics.fmean(one.values()) for one in (own, base)]
    if not freedom:
        return means[0] - means[1], None, None
    sizes = means if is_relative else (1.0, 1.0)
    error = sd * math.hypot(
        sizes[0] * math.sqrt(_variance_of_mean(len(own), are_tuned)),
        sizes[1] * math.sqrt(_variance_of_mean(len(base), are_tuned)),
    )
    return means[0] - means[1], error, _student(freedom) * error


def _student(freedom: int) -> float:
    """Return half of a 95% confidence interval in standard errors, by Student's t."""
    from scipy.stats import t  # slow to import

    return float(t.ppf(0.975, freedom))


def _differ_in_value(results: Sequence[dict[str, Any]]) -> bool:
    """Return whether the seeds of a tuned row have different values of the tuned fields."""
    return len({result.get("tuned_to") for result in results}) > 1


def _variance_of_mean(number: int, are_tuned: bool) -> float:
    """Return the variance of a mean over a number of seeds whose noise has the variance 1.

    If the choice of a tuned value is uncertain, the scores of different seeds are correlated, as
    each influenced the choice for the others. The variance is then from Nadeau and Bengio (2003).
    """
    return 1 / number + (1 / (number - 1) if are_tuned and number > 1 else 0)


def _noise(
    scores: Mapping[str, Mapping[int, float]], *, by_seed: bool, relative: bool
) -> tuple[float, int]:
    """Return the standard deviation of the noise and its degrees of freedom, by least squares.

    All variants share one estimate, as each has too few seeds.

    Args:
      scores: the scores by variant and seed.
      by_seed: whether a seed adds the same effect to all variants; otherwise that effect is noise.
      relative: whether the noise is relative to the score, as noise of its logarithm.
    """
    cells = [(name, seed, score) for name, of in scores.items() for seed, score in of.items()]
    levels = [[name for name, _, _ in cells]]
    if by_seed:
        levels.append([str(seed) for _, seed, _ in cells])
    parts = [np.unique(level, return_inverse=True)[1] for level in levels]
    design = np.concatenate([np.eye(part.max() + 1)[part] for part in parts], axis=1)
    y = np.array([score for _, _, score in cells])
    if relative:
        y = np.log(y)
    fitted, _, rank, _ = np.linalg.lstsq(design, y)
    freedom = len(y) - int(rank)
    squares = float(((y - design @ fitted) ** 2).sum())
    return math.sqrt(squares / max(freedom, 1)), freedom


def _p_value(base: Sequence[dict[str, Any]], seeds: Sequence[dict[str, Any]]) -> float | None:
    """Return the largest p-value over the common seeds of both variants; None if there is none."""
    by_seed = {_seed(result): result for result in base}
    pairs = [(by_seed[_seed(new)], new) for new in seeds if _seed(new) in by_seed]
    p_values = (
        paired_bootstrap(old["hypotheses"], new["hypotheses"], new["references"]).p_value
        for old, new in pairs
    )
    return max(p_values, default=None)


def _seed(result: dict[str, Any]) -> int:
    return int(result["config"]["training"]["seed"])
