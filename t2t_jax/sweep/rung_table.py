"""What the table of a grid says of variants that were not trained to their end."""

import math
from collections.abc import Mapping, Sequence

from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.comparison import perplexity_changes, verdict_on
from t2t_jax.sweep.plan import Scores, score_at
from t2t_jax.sweep.rules import PlannedGrid, by_variant
from t2t_jax.system.records import Record


def given_up(cells: Mapping[str, Sequence[Cell]], scores: Scores) -> dict[str, int]:
    """Return the variants of which no cell is to be trained any further, with their last step."""
    found = {}
    for variant, seeds in cells.items():
        step = seeds[0].until
        known = [score_at(scores[cell.name], step) for cell in seeds]
        if step < seeds[0].config.training.num_train_steps and None not in known:
            found[variant] = step
    return found


def rung_lines(
    grid: Grid, cells: Mapping[str, Sequence[Cell]], stopped: Mapping[str, int]
) -> list[str]:
    """Return a table of the variants that were given up, beside the base at the same step.

    Args:
      cells: the cells by variant.
      stopped: the variants that were given up, with the step that they came to.
    """
    if not stopped:
        return []
    lines = [
        "",
        "Given up before the end, by their perplexity on dev:",
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
    """Return what is said below a table of cells that diverged and of variants that were given up.

    Args:
      wanted: the cells of the plan.

    Returns:
      The lines, and the names of these variants.
    """
    cells = by_variant(wanted)
    stopped = given_up(cells, scores)
    broken = [cell for cell in wanted if math.inf in scores[cell.name].values()]
    lines = []
    if broken:
        names = ", ".join(cell.name for cell in broken)
        lines.append(f"- Diverged, and so worse than every other: {names}.")
    if not planned.candidates:
        lines += rung_lines(planned.grid, cells, stopped)
    return lines, {*stopped, *(cell.variant for cell in broken)}
