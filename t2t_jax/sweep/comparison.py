"""What the results of a grid say: each variant against the base, with the noise.

A difference counts only if it is larger than what another seed would change, and, for BLEU, if the
choice of the sentences is unlikely to have made it (paired bootstrap, Koehn 2004).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t2t_jax.config import Config
from t2t_jax.config_file import Grid, describe_difference
from t2t_jax.cost import num_parameters
from t2t_jax.errors import UserError
from t2t_jax.evaluation.significance import paired_bootstrap
from t2t_jax.sweep.cell import Cell

SIGNIFICANT = 0.05
"""p-values below are not put down to the choice of sentences."""

Results = Mapping[str, Sequence[dict[str, Any]]]
"""The results of the finished seeds of each variant."""


class Change(NamedTuple):
    """How far a variant is from the base in one measure."""

    mean: float
    """Of the variant's seeds."""
    sd: float | None
    """Standard deviation over the variant's seeds; None for a single one."""
    difference: float | None
    """The mean less that of the base; None where the two cannot be compared."""
    error: float | None
    """Standard error of the difference over seeds; None if no variant has two seeds."""

    @property
    def within_noise(self) -> bool:
        """Whether the difference is at most two of its standard errors, or cannot be told."""
        return self.difference is None or (
            self.error is not None and abs(self.difference) <= 2 * self.error
        )


class Row(NamedTuple):
    """A variant in the table."""

    variant: str
    difference: str
    """Its fields that differ from those of the base."""
    num_seeds: int
    perplexity: Change
    bleu: Change
    tokenized_split_bleu: Change
    p_value: float | None
    """Of BLEU's difference: the largest over seeds. None for the base itself."""
    num_parameters: int
    num_train_steps: int
    target_tokens_per_second: float
    published: Any
    """The paper's `Table3Row` for a variant of this name, or None."""

    @property
    def verdict(self) -> str:
        """What the measures say together, in a few words."""
        if self.perplexity.difference is None and self.p_value is None:
            return ""
        if self.perplexity.error is None:
            return "one seed: noise unknown"
        same_bleu = self.bleu.within_noise or (self.p_value or 0) >= SIGNIFICANT
        words = {
            (True, True): "within the noise",
            (True, False): "perplexity within the noise",
            (False, True): "BLEU within the noise",
            (False, False): "differs",
        }
        return words[self.perplexity.within_noise, same_bleu]


def collect(cells: Sequence[Cell]) -> dict[str, list[dict[str, Any]]]:
    """The results of the finished cells by variant; variants without any are left out."""
    results: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if (result := cell.result()) is not None:
            results.setdefault(cell.variant, []).append(result)
    return results


def compare(grid: Grid, results: Results) -> list[Row]:
    """The rows of the table, in the order of the grid.

    Raises:
      UserError: there are no results of the base, or variants were scored on different sentences.
    """
    if grid.base not in results:
        raise UserError(f"the base of the grid, {grid.base!r}, has no result yet; train it first")
    references = results[grid.base][0]["references"]
    for variant, seeds in results.items():
        if any(result["references"] != references for result in seeds):
            raise UserError(
                f"{variant} was scored on other sentences than {grid.base}; scores of different "
                "test sets are not compared: score both on the same one"
            )
    return [_row(grid, results, variant) for variant in grid.variants if variant in results]


def _row(grid: Grid, results: Results, variant: str) -> Row:
    config, base = grid.variants[variant], grid.variants[grid.base]
    seeds = results[variant]
    same_subwords = _subwords(config) == _subwords(base)
    return Row(
        variant,
        describe_difference(base, config),
        len(seeds),
        _change(grid, results, variant, "perplexity", comparable=same_subwords),
        _change(grid, results, variant, "bleu"),
        _change(grid, results, variant, "tokenized_split_bleu"),
        None if variant == grid.base else _p_value(results[grid.base], seeds),
        num_parameters(config.model, config.data.vocab_size),
        config.training.num_train_steps,
        statistics.fmean(result["target_tokens_per_second"] for result in seeds),
        grid.published.get(variant),
    )


def _subwords(config: Config) -> tuple[Any, ...]:
    """What perplexity per subword depends on besides the model."""
    data = config.data
    return data.vocab_size, data.corpus, data.source_language, data.target_language


def _change(
    grid: Grid, results: Results, variant: str, measure: str, *, comparable: bool = True
) -> Change:
    own = [result[measure] for result in results[variant]]
    base = [result[measure] for result in results[grid.base]]
    mean = statistics.fmean(own)
    sd = statistics.stdev(own) if len(own) > 1 else None
    if variant == grid.base or not comparable:
        return Change(mean, sd, None, None)
    pooled = _pooled_sd([[r[measure] for r in seeds] for seeds in results.values()])
    error = None if pooled is None else pooled * math.sqrt(1 / len(own) + 1 / len(base))
    return Change(mean, sd, mean - statistics.fmean(base), error)


def _pooled_sd(groups: Sequence[Sequence[float]]) -> float | None:
    """The standard deviation over seeds, taken to be the same for all variants: with a few seeds
    each, a variant's own says next to nothing."""
    squares = [(statistics.variance(group), len(group) - 1) for group in groups if len(group) > 1]
    freedom = sum(count for _, count in squares)
    return math.sqrt(sum(v * count for v, count in squares) / freedom) if freedom else None


def _p_value(base: Sequence[dict[str, Any]], seeds: Sequence[dict[str, Any]]) -> float:
    pairs = zip(base, seeds, strict=False)
    return max(
        paired_bootstrap(old["hypotheses"], new["hypotheses"], new["references"]).p_value
        for old, new in pairs
    )
