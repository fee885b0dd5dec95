"""What the table of a grid says of variants that were not trained to their end."""

import math
from collections.abc import Mapping, Sequence

from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.comparison import perplexity_changes, verdict_on
from t2t_jax.sweep.plan import Scores, score_at
from t2t_jax.sweep.rules import PlannedGrid, by_variant
from t2t_jax.system.records import Record


def paused(cells: Mapping[str, Sequence[Cell]], scores: Scores) -> dict[str, int]:
    """Return the variants that wait for a decision or are given up, with the step they came to."""
    found = {}
    for variant, seeds in cells.items():
        step = seeds[0].until
        known = [score_at(scores[cell.name], step) for cell in seeds]
        if step < seeds[0].config.training.num_train_steps and None not in known:
            found[variant] = step
    return found


def rung_lines(
    grid: Grid, cells: Mapping[str, Sequence[Cell]], stopped: Mapping[str, int], is_over: bool
) -> list[str]:
    """Return a table of the variants that have paused, beside the base at the same step.

    Args:
      cells: the cells by variant.
      stopped: the variants that have paused, with the step that they came to.
      is_over: whether none of them is to go on.
    """
    if not stopped:
        return []
    lines = [
        "",
        "Given up before the end, by their perplexity on dev:"
        if is_over
        else "Paused before the end, by their perplexity on dev, in a grid that is not finished:",
        "",
        "| variant | differs in | seeds | steps | perplexity | Δ ± s.e. | against the noise |",
        "|" + "---|" * 7,
    ]
    for step in sorted(set(stopped.values())):
        there = {name: _finite(own, step) for name, own in cells.items()}
        changes = perplexity_changes(grid, {name: own for name, own in there.items() if own})
        for name in (name for name, last in stopped.items() if last == step):
            change, own = changes.get(name), grid.variants[name]
            figures = ["diverged", "", ""]
            if change and len(there[name]) == len(cells[name]):
                figures = [*change.shown, verdict_on(change)]
            differs = describe_difference(grid.variants[grid.base], own)
            row = name, differs, str(len(cells[name])), f"{step:,}", *figures
            lines.append("| " + " | ".join(row) + " |")
    is_cut = any(one.training.schedule == "wsd" for one in grid.variants.values())
    return [
        *lines,
        "",
        f"- Each of these is compared with `{grid.base}` at the same step, and with no row of "
        "another length.",
        *(
            ["- With the schedule wsd, this is before the decay of the learning rate."]
            if is_cut
            else []
        ),
    ]


def _finite(cells: Sequence[Cell], step: int) -> list[Record]:
    records = (cell.rungs().get(step) for cell in cells)
    return [record for record in records if record and record["perplexity"] is not None]


def unfinished(
    planned: PlannedGrid, wanted: Sequence[Cell], scores: Scores
) -> tuple[list[str], set[str]]:
    """Return what is said below a table of cells that diverged and of variants that have paused.

    Args:
      wanted: the cells of the plan.

    Returns:
      The lines, and the names of the variants of which nothing more is to be trained.
    """
    cells = by_variant(wanted)
    stopped = paused(cells, scores)
    is_over = all(score_at(scores[cell.name], cell.until) is not None for cell in wanted)
    broken = [cell for cell in wanted if math.inf in scores[cell.name].values()]
    lines = []
    if broken:
        names = ", ".join(cell.name for cell in broken)
        lines.append(f"- Diverged, and so worse than every other: {names}.")
    if not planned.candidates:
        lines += rung_lines(planned.grid, cells, stopped, is_over)
    return lines, {*(stopped if is_over else ()), *(cell.variant for cell in broken)}
