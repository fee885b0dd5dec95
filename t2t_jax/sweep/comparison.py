"""Compare a grid's variants with its base, against the noise of seeds and sentences.

`t2t_jax.sweep.inference` implements the statistics. Perplexities are compared by their logarithms,
because their noise is proportional to their size.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from t2t_jax.config import Config, from_stored
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference, values_by_path
from t2t_jax.errors import UserError
from t2t_jax.paper import Table3Row
from t2t_jax.sweep.inference import SIGNIFICANT, Contrast, Effect, RowScores, draw_scores, effects
from t2t_jax.system.records import Record
from t2t_jax.tasks import task_of
from t2t_jax.tasks.measures.perplexity import DIVERGED, perplexity_text
from t2t_jax.tasks.task import GridMeasures, Measure

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

Comparisons = Literal["base", "all"]
"""The family of tested differences: "base" (Dunnett's test), or "all" pairs (Holm's method)."""

OF_SUBWORDS = (
    *("data.vocab_size", "data.corpus", "data.source_language", "data.target_language"),
    *("data.protected_tokens", "data.fields", "data.task", "data.documents", "data.text_rows"),
    *("data.masked_share", "data.dev_lines", "training.init_from"),
)
"""The config fields that set the vocabulary or the subwords over which perplexity is computed."""

BITS = "bits_per_byte"
SAMPLED = ("bleu", "log_perplexity", BITS)
"""The measures tested over sentences and seeds; other measures are tested over seeds only."""

Results = Mapping[str, Sequence[Record]]
"""The results of the finished seeds by variant, from `Cell.result`."""


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Collect the values of (key, value) pairs by key; keys and values keep their order."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def against(base: str, rows: Iterable[str]) -> dict[str, Contrast]:
    """Return the contrast of each row with the base, {row: 1, base: -1}, by row name."""
    return {name: {name: 1, base: -1} for name in rows if name != base}


def pairs(base: str, rows: Collection[str]) -> dict[str, Contrast]:
    """Return the contrasts of all pairs of rows, {b: 1, a: -1}, by names such as `b - a`."""
    ordered = [base, *(name for name in rows if name != base)]
    return {f"{b} - {a}": {b: 1, a: -1} for a, b in combinations(ordered, 2)}


def factorial(grid: Grid, rows: Collection[str]) -> dict[str, Contrast]:
    """Return the main effects and the interaction of a grid of two factors, by name.

    A factor is one config field, or several that change together. A main effect compares a level
    with the factor's first level, averaged over the other factor. An interaction is a factor's
    effect at one level of the other factor, minus its effect at the other factor's first level.

    Returns:
      The contrasts; {} unless the rows are all combinations of the levels of two factors.
    """
    factors = _factors({name: grid.variants[name] for name in grid.variants if name in rows})
    if len(factors) != 2:
        return {}
    levels = [list(dict.fromkeys(level_of.values())) for level_of in factors]
    row_at = {tuple(level_of[name] for level_of in factors): name for name in factors[0]}
    if len(row_at) != len(factors[0]) or row_at.keys() != set(product(*levels)):
        return {}
    # Contrasts are products of "a level minus the first level" and "the mean over all levels".
    changes = [{level: {level: 1.0, first: -1.0} for level in later} for first, *later in levels]
    means = [dict.fromkeys(factor_levels, 1 / len(factor_levels)) for factor_levels in levels]
    weights = {f"{a} - {levels[0][0]}": (change, means[1]) for a, change in changes[0].items()}
    weights |= {f"{b} - {levels[1][0]}": (means[0], change) for b, change in changes[1].items()}
    weights |= {f"({a}) x ({b})": (changes[0][a], changes[1][b]) for a, b in product(*changes)}
    return {
        name: {row_at[a, b]: v * w for a, v in of_first.items() for b, w in of_second.items()}
        for name, (of_first, of_second) in weights.items()
    }


def _factors(variants: dict[str, Config]) -> list[dict[str, str]]:
    """Return each factor's level, such as `d_ff=512`, by row name.

    A factor is a config field or a part's parameter, or several that change together.
    """
    rows = values_by_path(variants.values())
    paths = [path for path in next(iter(rows), {}) if all(path in row for row in rows)]
    columns = [[f"{path.rpartition('.')[2]}={row[path]}" for row in rows] for path in paths]
    # Fields that change together split the rows into the same groups.
    factors = grouped((tuple(map(c.index, c)), c) for c in columns if len(set(c)) > 1)
    levels = (map(" ".join, zip(*columns, strict=True)) for columns in factors.values())
    return [dict(zip(variants, of_rows, strict=True)) for of_rows in levels]


def measures_of(result: Record, *, with_metric: bool = True) -> GridMeasures:
    """Return the measures, such as BLEU, by which a sweep compares results of this kind.

    Args:
      with_metric: whether `evaluation.metric`, if the result has it, is the second measure.
    """

    measures = task_of(result["corpus"], result.get("task", "auto")).grid
    if with_metric and "metric" in result:
        return measures._replace(secondary=Measure("metric_score", str(result["metric"])))
    return measures


def cell_name(variant: str, result: Record) -> str:
    """Return the cell name of a result, such as `wide/seed0`; if tuned, with the chosen value."""
    return f"{result.get('tuned_to', variant)}/seed{result['config']['training']['seed']}"


class Change(NamedTuple):
    """A variant's mean of one measure, and its difference from the base."""

    mean: float
    """The mean of the measure over the variant's seeds."""
    sd: float | None
    """The standard deviation over the variant's seeds; None for a single seed."""
    difference: float | None = None
    """The mean minus the base's mean; None if the two cannot be compared. Comparisons seed by seed
    use the common seeds only. Perplexities have geometric means here."""
    error: float | None = None
    """The standard error of the difference; None if it is unknown."""
    degrees: float | None = None
    """The degrees of freedom of the standard error; inf if only sentences add noise."""
    low: float | None = None
    """The lower end of the difference's 95% confidence interval."""
    high: float | None = None
    """The upper end of the difference's 95% confidence interval."""
    p_value: float | None = None
    """The two-sided p-value of the difference, not adjusted for the number of comparisons."""
    p_adjusted: float | None = None
    """The p-value adjusted for the number of comparisons."""
    noise: str = ""
    """The sources of noise in `error`: "seeds and sentences", "seeds", "sentences" or ""."""

    @property
    def formatted(self) -> tuple[str, str]:
        """Format the mean ± standard deviation and the difference ± standard error."""
        mean_text, difference = perplexity_text(self.mean), self.difference
        if self.sd is not None and mean_text != DIVERGED:
            mean_text += f" ± {perplexity_text(self.sd)}"
        if difference is None or DIVERGED in (mean_text, perplexity_text(difference)):
            return mean_text, ""
        error = "" if self.error is None else f" ± {perplexity_text(self.error)}"
        return mean_text, perplexity_text(difference, sign="+") + error

    @property
    def formatted_p(self) -> str:
        """Format the adjusted p-value; "" if there is none."""
        return "" if self.p_adjusted is None else p_text(self.p_adjusted)


def p_text(p_value: float) -> str:
    """Format a p-value with three decimals."""
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


class VariantRow(NamedTuple):
    """A variant's row in the table that compares the variants of a sweep."""

    variant: str
    """The variant's name in the grid."""
    difference: str
    """The config fields that differ from the base's, with their values."""
    num_seeds: int
    """The number of finished seeds."""
    num_diverged: int
    """The number of diverged seeds; if positive, the variant gets no verdict."""
    perplexity: Change
    """The perplexity on dev, per subword."""
    measures: GridMeasures
    """The names and fields of the task's scores."""
    score: Change
    """The score by which variants are compared."""
    second_score: Change | None
    """The second score of the task; None if the task has only one."""
    bits_per_byte: Change | None
    """The bits per byte of the references, if the grid has several vocabularies."""
    num_parameters: int
    """The exact number of parameters of the model; the largest if tuning chose several sizes."""
    steps: tuple[int, ...]
    """The number of training steps of each seed; smaller than in the config after an early stop."""
    target_tokens_per_second: float
    """The training speed: the mean over seeds of each seed's median."""
    other_code: str
    """Files, versions and settings that differ from those of the table's first cell, or ""."""
    published: Table3Row | None
    """The paper's results (Table 3) for this variant name; None if there are none."""

    @property
    def label(self) -> str:
        """Return the variant's name, marked with † if its code or settings differ."""
        return f"{self.variant} †" if self.other_code else self.variant

    @property
    def formatted_steps(self) -> str:
        """Format the steps of the seeds: `2,400`, or `2,400 / 1,800` if they differ."""
        steps = self.steps if len({*self.steps}) > 1 else self.steps[:1]
        return " / ".join(f"{number:,}" for number in steps)

    @property
    def verdicts(self) -> dict[str, str]:
        """Return the verdict on each measure's difference from the base, by measure name.

        A verdict is a text such as "lower"; "" if the difference is unknown, for example because a
        seed diverged. If the base has another vocabulary, bits per byte replace the perplexity.
        """
        changes = {"perplexity": self.perplexity, self.measures.score.name: self.score}
        if self.perplexity.difference is None and self.bits_per_byte:
            changes = {"bits per byte": self.bits_per_byte} | changes
        if self.num_diverged:
            return dict.fromkeys(changes, "")
        return {name: verdict_on(change) for name, change in changes.items()}

    @property
    def verdict(self) -> str:
        """Return the verdicts of all measures in one line, or how many seeds diverged."""
        if self.num_diverged:
            num_seeds = self.num_diverged + self.num_seeds
            return f"diverged under {self.num_diverged} of {num_seeds} seeds"
        return "; ".join(f"{name}: {text}" for name, text in self.verdicts.items() if text)


def verdict_on(change: Change) -> str:
    """Call a difference "higher", "lower" or "within the noise", by its p-value; "" if unknown."""
    if change.difference is None:
        return ""
    if change.p_adjusted is not None and change.p_adjusted >= SIGNIFICANT:
        return f"within the noise of {change.noise}"
    if not change.noise:
        return "not tested"
    direction = {1: "higher", -1: "lower"}.get(np.sign(change.difference), "equal")
    return direction if "seeds" in change.noise else f"{direction}, noise of seeds unknown"


class Measured(NamedTuple):
    """One measure of all rows of a sweep's table, compared with the row of the base."""

    changes: Mapping[str, Change]
    """The mean and the difference from the base, by row name."""
    scores: RowScores
    """The scores of the comparable rows; perplexities as logarithms."""
    effects: Mapping[str, Effect]
    """The differences of the comparable rows from the base, in the units of `scores`."""


class Comparison(NamedTuple):
    """The comparison of a grid's rows with its base."""

    grid: Grid
    results: Results
    comparisons: Comparisons
    """The comparisons for which p-values are adjusted."""
    rows: Sequence[VariantRow]
    """The rows of the table, in the order of the grid."""
    measured: Mapping[str, Measured]
    """The compared measures, by field of the results."""


def compare(
    grid: Grid,
    results: Results,
    diverged: Mapping[str, int] | None = None,
    other_code: Mapping[str, str] | None = None,
    comparisons: Comparisons = "base",
) -> Comparison:
    """Compare the rows (variants) of a grid with its base, in all measures of their results.

    Rows have no differences while the base has no result. A row has no difference in a measure that
    uses other sentences, or another definition of the score, than the base.

    Args:
      diverged: the number of diverged seeds by variant; None means none.
      other_code: the return value of `same_code.other_code`; None means identical code.
    """
    if not results:
        raise UserError("no cell of the grid has a result yet; train some first")
    base = grid.variants[grid.base]
    cells = [(variant, result) for variant, seeds in results.items() for result in seeds]
    # The config's metric is the second score only if every result has the same metric.
    metrics = {measures_of(result) for _, result in cells}
    measures = metrics.pop() if len(metrics) == 1 else measures_of(cells[0][1], with_metric=False)
    fields = ["perplexity", *(m.field for m in (measures.score, measures.secondary) if m)]
    definitions = {_definition(grid, *cell, "perplexity") for cell in cells}
    if BITS not in fields and len(definitions) > 1:
        results = {name: [_with_bits(seed) for seed in seeds] for name, seeds in results.items()}
        fields += [BITS] * all(BITS in seed for seeds in results.values() for seed in seeds)
    measured = {field: measure(grid, results, field, comparisons) for field in fields}
    rows = []
    for variant in (name for name in grid.variants if results.get(name)):
        config, seeds = grid.variants[variant], results[variant]
        changes = {field: measured[field].changes[variant] for field in fields}
        tuned_configs = [from_stored(seed["config"]) for seed in seeds if "tuned_to" in seed]
        rows.append(
            VariantRow(
                variant,
                describe_difference(base, config),
                len(seeds),
                (diverged or {}).get(variant, 0),
                changes["perplexity"],
                measures,
                changes[measures.score.field],
                measures.secondary and changes[measures.secondary.field],
                None if measures.score.field == BITS else changes.get(BITS),
                max(num_parameters(c.model, c.data.vocab_size) for c in tuned_configs or [config]),
                tuple(int(result["steps"]) for result in seeds),
                statistics.fmean(result["target_tokens_per_second"] for result in seeds),
                (other_code or {}).get(variant, ""),
                grid.published.get(variant),
            )
        )
    return Comparison(grid, results, comparisons, rows, measured)


def _with_bits(result: Record) -> Record:
    """Add bits per byte to a result, if it has the references of the whole split."""
    text = "".join(result["references"]) if measures_of(result).whole_split else ""
    if not text:
        return result
    nats = math.log(result["perplexity"]) * result["target_tokens"]
    return result | {BITS: nats / math.log(2) / len(text.encode())}


def _definition(grid: Grid, variant: str, result: Record, measure: str) -> object:
    """Return a key that is equal for results whose values of `measure` are comparable.

    The key identifies the scored sentences and the measure's settings.
    """
    sentences: object = (result.get("corpus"), result.get("split"))
    if "corpus" in result and measures_of(result).whole_split:
        sentences = tuple(result["references"])
    if measure == "perplexity":
        subwords = tuple(grid.variants[variant].value(path) for path in OF_SUBWORDS)
        vocabulary = result.get("vocabulary", subwords)
        return sentences, vocabulary, result.get("target_tokens")
    score, secondary, *_ = measures_of(result)
    signatures = {m.field: m.signature_field for m in (score, secondary) if m}
    return sentences, result.get(signatures.get(measure) or "")


def measure(grid: Grid, results: Results, name: str, comparisons: Comparisons = "base") -> Measured:
    """Compare all rows of a grid with its base in the result field `name`, such as "bleu"."""
    scores, effect_of, base_perplexity = row_scores(grid, results, name), dict[str, Effect](), None
    if grid.base in scores.scores:
        contrasts = against(grid.base, scores.scores)
        if comparisons == "base":
            effect_of = effects(scores, contrasts, "dunnett")
        else:
            pair_effects = effects(scores, pairs(grid.base, scores.scores), "holm")
            effect_of = {row: pair_effects[f"{row} - {grid.base}"] for row in contrasts}
        if name == "perplexity":
            base_perplexity = math.exp(statistics.fmean(scores.scores[grid.base].values()))
    changes = {}
    for variant, seed_results in results.items():
        values = [result[name] for result in seed_results]
        has_sd = len(values) > 1 and all(map(math.isfinite, values))
        sd = statistics.stdev(values) if has_sd else None
        change = Change(statistics.fmean(values), sd)
        effect = effect_of.get(variant)
        changes[variant] = _with_effect(change, effect, base_perplexity) if effect else change
    return Measured(changes, scores, effect_of)


def row_scores(grid: Grid, results: Results, measure: str) -> RowScores:
    """Return the scores of the rows that are comparable with the base; perplexities as logarithms.

    Rows with a score that is not finite are left out.
    """
    if not (base_results := results.get(grid.base)):
        return RowScores({})
    definition = _definition(grid, grid.base, base_results[0], measure)
    is_relative = measure == "perplexity"
    sampled_measure = "log_perplexity" if is_relative else measure
    scores, draws = dict[str, dict[int, float]](), dict[str, dict[int, np.ndarray]]()
    for name, results_of_row in results.items():
        by_seed = {int(r["config"]["training"]["seed"]): r for r in results_of_row}
        if any(
            not math.isfinite(r[measure]) or _definition(grid, name, r, measure) != definition
            for r in by_seed.values()
        ):
            continue
        transform = math.log if is_relative else float
        scores[name] = {seed: transform(r[measure]) for seed, r in by_seed.items()}
        if sampled_measure in SAMPLED:
            samples = {seed: draw_scores(r, sampled_measure) for seed, r in by_seed.items()}
            draws[name] = {seed: values for seed, values in samples.items() if values is not None}
    tunings = {name: {r.get("tuned_to") for r in results[name]} for name in scores}
    return RowScores(scores, draws, [name for name, values in tunings.items() if len(values) > 1])


def _with_effect(change: Change, effect: Effect, base_ppl: float | None) -> Change:
    """Return a change with the difference from the base filled in.

    Args:
      effect: the difference; for perplexities, the difference of their logarithms.
      base_ppl: the base's perplexity; None for any other measure.
    """

    def in_units(estimate: float) -> float:
        return estimate if base_ppl is None else base_ppl * math.expm1(min(estimate, 700.0))

    difference = in_units(effect.estimate)
    if effect.error is None:
        return change._replace(difference=difference)
    # Scale the error so that the difference in perplexity has the same t-value as in logarithms.
    scale = difference / effect.estimate if abs(effect.estimate) > 1e-9 else base_ppl or 1.0
    return change._replace(
        difference=difference,
        error=scale * effect.error,
        degrees=effect.degrees,
        low=in_units(effect.estimate - effect.margin),
        high=in_units(effect.estimate + effect.margin),
        p_value=effect.p_value,
        p_adjusted=effect.p_adjusted,
        noise=effect.noise,
    )
