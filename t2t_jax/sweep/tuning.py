"""Tune fields for every variant of a grid, so that variants are compared at their best.

A variant becomes as many candidates as there are values. The scores that choose a value are biased
estimates of its quality: the lowest of several is low by chance, too. So the scores of the other
seeds choose the value for a seed (cross-fitting), and the scores of these choices are compared.
Different seeds may choose differently, so the deviation over seeds includes the noise of tuning.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from t2t_jax.sweep.cell import Cell, Scores, mean_of, score_at
from t2t_jax.sweep.halving import best
from t2t_jax.sweep.rules import PlannedGrid
from t2t_jax.sweep.sampling import Range
from t2t_jax.sweep.tables import GridTable
from t2t_jax.system.records import Record

Finalists = Callable[[Sequence[str], int], Sequence[str]]
"""A function that returns those of some candidates that may be chosen, without the scores of the
seed of a number; -1 is for no seed."""


def choose(scores: Mapping[str, Sequence[float | None]], finalists: Finalists) -> list[str]:
    """Choose a candidate for each seed: the best by the mean perplexity of the other seeds.

    A single seed uses its own score.

    Args:
      scores: the perplexity of each candidate at its end, by the index of the seed; None if
        missing.

    Returns:
      The candidate for each seed, by the index of the seed; "" if scores are missing.
    """
    num_seeds = len(next(iter(scores.values())))
    chosen: list[str] = []
    for seed in range(num_seeds):
        left_out = seed if num_seeds > 1 else -1
        means = {
            name: mean_of(score for i, score in enumerate(scores[name]) if i != left_out)
            for name in finalists([*scores], left_out)
        }
        known = {name: mean for name, mean in means.items() if mean is not None}
        # A choice that a later score may change is none.
        first = best(known, 1) if len(known) == len(means) else []
        chosen += first or [""]
    return chosen


def is_at_an_end(value: object, values: Sequence[object] | Range) -> bool:
    """Return whether a number is at the end of a range, beyond which a better one may be.

    Args:
      values: the candidate values, or a `Range`, whose outer twentieths count as its ends.
    """
    if isinstance(values, Range):
        assert isinstance(value, int | float)
        scaled: Callable[[float], float] = math.log if values.scale == "log" else float
        low, high = scaled(values.low), scaled(values.high)
        return not 0.05 <= (scaled(value) - low) / (high - low) <= 0.95
    numbers = [candidate for candidate in values if isinstance(candidate, int | float)]
    return len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers))


def tuned_results(
    plan: PlannedGrid, cells: Mapping[str, list[Cell]], scores: Scores, done: Mapping[str, Record]
) -> tuple[dict[str, list[Record]], dict[str, int], GridTable]:
    """Return the results of the choice for each variant, and a table of the choices.

    If the value chosen for a seed diverged under that seed, the seed has no result.

    Returns:
      The results by variant, the numbers of seeds that diverged, and the table.
    """
    halved = plan.halved
    results: dict[str, list[Record]] = {}
    diverged: dict[str, int] = {}
    rows = []
    for variant, group in plan.candidates.items():
        ends = {
            name: [score_at(scores, c, c.config.training.num_train_steps) for c in cells[name]]
            for name in group
        }
        choice = choose(ends, lambda g, out: halved.finalists[out, *g] if halved else g)
        named: dict[str, list[str]] = {}
        for seed, name in enumerate(choice):
            cell = cells[name][seed] if name else None
            if cell and ends[name][seed] == math.inf:
                diverged[variant] = diverged.get(variant, 0) + 1
                named.setdefault(name, []).append(f"{cell.workdir.name}, where it diverged")
            elif cell and (result := done.get(cell.name)):
                results.setdefault(variant, []).append(result | {"tuned_to": name})
                named.setdefault(name, []).append(cell.workdir.name)
        all_ends = {end for of_candidate in ends.values() for end in of_candidate}
        state = "all diverged" if all_ends == {math.inf} else "not chosen yet"
        values = (f"{n.removeprefix(f'{variant},')} ({', '.join(s)})" for n, s in named.items())
        at_end = [
            path
            for path, choices in plan.rules.tune.items()
            if any(is_at_an_end(group[name].value(path), choices) for name in named)
        ]
        rows.append([variant, "; ".join(values) or state, str(len(group)), ", ".join(at_end)])
    rule = (
        "The value of a seed is chosen by the perplexities of the other seeds alone, so that a "
        "choice does not gain by its own luck. Where the seeds of a row have different values, "
        "its standard error is larger, by the rule of Nadeau and Bengio (2003)."
        if plan.seeds > 1
        else "The value is chosen by the very perplexity that is shown, which the choice makes too "
        "low; two seeds or more would make it fair."
    )
    caption = f"The value of {', '.join(plan.rules.tune)} that each variant has:"
    heads = ["variant", "values, with their seeds", "tried", "at an end of its range"]
    notes = [rule]
    if any(row[3] for row in rows):
        notes.append("Beyond an end of a range there may be a better value: try a wider one.")
    return results, diverged, GridTable(caption, heads, rows, notes)
