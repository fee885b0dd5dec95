"""Tune config fields for every variant of a grid, and compare the tuned variants.

Each combination of values is a candidate. The score that chose a candidate is biased: the lowest
perplexity of several is partly low by chance. So the other seeds choose the candidate of each seed
(cross-fitting). The deviation over seeds then includes the noise of tuning.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from t2t_jax.sweep.cell import Cell, Scores, score_at
from t2t_jax.sweep.halving import best
from t2t_jax.sweep.rules import PlannedGrid
from t2t_jax.sweep.tables import GridTable
from t2t_jax.system.records import Record

Finalists = Callable[[Sequence[str], int], Sequence[str]]
"""A function from candidate names and a held-out seed index (-1: none) to eligible candidates."""


def choose(scores: Mapping[str, Sequence[float | None]], finalists: Finalists) -> list[str]:
    """Choose for each seed the candidate with the lowest mean perplexity over the other seeds.

    Args:
      scores: final perplexities by candidate name and seed index; None if missing.
      finalists: a function that returns the candidates to choose from.

    Returns:
      The candidate name of each seed; "" if scores are missing.
    """
    num_seeds = len(next(iter(scores.values())))
    chosen_names: list[str] = []
    for seed in range(num_seeds):
        held_out = seed if num_seeds > 1 else -1  # a single seed must use its own score
        candidates = {name: scores[name] for name in finalists([*scores], held_out)}
        chosen_names += best(candidates, held_out, 1) or [""]
    return chosen_names


def is_at_end(value: object, values: Sequence[object]) -> bool:
    """Return whether a tuned number is the lowest or highest, so a better one may lie outside."""
    numbers = [candidate for candidate in values if isinstance(candidate, int | float)]
    return len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers))


def tuned_results(
    plan: PlannedGrid, cells: Mapping[str, list[Cell]], scores: Scores, scored: Mapping[str, Record]
) -> tuple[dict[str, list[Record]], dict[str, int], GridTable]:
    """Choose tuned values for each variant, and return their results and a table.

    Args:
      cells: the cells of each candidate, in the order of seeds.
      scored: results of finished cells by cell name.

    Returns:
      The results by variant, the number of diverged seeds by variant, and the table.
    """

    def finalists(names: Sequence[str], held_out: int) -> Sequence[str]:
        return plan.halved.members(names, held_out, scores)[-1] if plan.halved else names

    results: dict[str, list[Record]] = {}
    num_diverged: dict[str, int] = {}
    rows = []
    for variant, configs in plan.candidates.items():
        final_scores = {
            name: [score_at(scores, c, c.config.training.num_train_steps) for c in cells[name]]
            for name in configs
        }
        seeds_of: dict[str, list[str]] = {}
        for seed, name in enumerate(choose(final_scores, finalists)):
            cell = cells[name][seed] if name else None
            # A run that diverged with the chosen value has no result, but counts.
            if cell and final_scores[name][seed] == math.inf:
                num_diverged[variant] = num_diverged.get(variant, 0) + 1
                seeds_of.setdefault(name, []).append(f"{cell.workdir.name}, where it diverged")
            elif cell and (result := scored.get(cell.name)):
                results.setdefault(variant, []).append(result | {"tuned_to": name})
                seeds_of.setdefault(name, []).append(cell.workdir.name)
        all_scores = {score for scores_by_seed in final_scores.values() for score in scores_by_seed}
        state = "all diverged" if all_scores == {math.inf} else "not chosen yet"
        texts = (f"{n.removeprefix(f'{variant},')} ({', '.join(s)})" for n, s in seeds_of.items())
        at_ends = [
            path
            for path, candidates in plan.rules.tune.items()
            if any(is_at_end(configs[name].value(path), candidates) for name in seeds_of)
        ]
        rows.append([variant, "; ".join(texts) or state, str(len(configs)), ", ".join(at_ends)])
    selection_note = (
        "The perplexities of the other seeds choose the value of each seed, so that the choice "
        "does not bias the seed's score. If the seeds of a variant have different values, its "
        "standard error is larger, by the rule of Nadeau and Bengio (2003)."
        if plan.num_seeds > 1
        else "The perplexity shown here also chose the value, so it is biased downwards; sweep "
        "with at least two seeds to remove the bias."
    )
    caption = f"Values of {', '.join(plan.rules.tune)} chosen for each variant:"
    headers = ["variant", "values, with their seeds", "tried", "at an end of its range"]
    notes = [selection_note]
    if any(row[3] for row in rows):
        notes.append("If an end of a range was chosen, try a wider range for a better value.")
    return results, num_diverged, GridTable(caption, headers, rows, notes)
