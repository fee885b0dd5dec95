"""The table of a grid's variants that were not trained to their end."""

from collections.abc import Mapping, Sequence

from t2t_jax.config.file import describe_difference
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.comparison import measure, verdict_on
from t2t_jax.sweep.plan import Scores, score_at
from t2t_jax.sweep.rules import PlannedGrid, by_variant
from t2t_jax.sweep.tables import GridTable
from t2t_jax.system.records import Record


def _paused(cells: Mapping[str, Sequence[Cell]], scores: Scores) -> dict[str, int]:
    """Return the variants that wait at a rung or were stopped there, with the step."""
    steps = {}
    for variant, seeds in cells.items():
        step = seeds[0].until
        perplexities = [score_at(scores[cell.name], step) for cell in seeds]
        if step < seeds[0].config.training.num_train_steps and None not in perplexities:
            steps[variant] = step
    return steps


def rung_table(
    planned: PlannedGrid, wanted: Sequence[Cell], scores: Scores
) -> tuple[GridTable | None, set[str]]:
    """Return a table of the stopped variants, each beside the base at the same step.

    While the grid is not finished, they may still continue, and the table says so.

    Args:
      wanted: the cells of the plan.

    Returns:
      The table, or None if no variant has paused; and the names of the variants that need no more
      training.
    """
    cells, grid = by_variant(wanted), planned.grid
    stopped = _paused(cells, scores)
    open_rows = {c.variant for c in wanted if score_at(scores[c.name], c.until) is None}
    waiting = {*open_rows, *(stopped if open_rows else ())}
    over = {*grid.variants} - {planned.rows[row] for row in waiting}
    if not stopped or planned.candidates:
        return None, over
    rows = []
    for step in sorted(set(stopped.values())):
        finite = {name: _finite(seeds, step) for name, seeds in cells.items()}
        scored = {name: seeds for name, seeds in finite.items() if seeds}
        compared = measure(grid, scored, "perplexity").changes
        for name in (name for name, last in stopped.items() if last == step):
            change, figures = compared.get(name), ["diverged", "", ""]
            if change and len(finite[name]) == len(cells[name]):
                figures = [*change.shown, verdict_on(change)]
            differs = describe_difference(grid.variants[grid.base], grid.variants[name])
            rows.append([name, differs, str(len(cells[name])), f"{step:,}", *figures])
    notes = [
        f"Each of these is compared with `{grid.base}` at the same step, and with no row of "
        "another length."
    ]
    if not open_rows:
        notes.append(
            "Those above, which came to the end, were chosen by scores of the same seeds. So a "
            "perplexity that is lower than the base's is partly luck: confirm it with other seeds."
        )
    if any(config.training.schedule == "wsd" for config in grid.variants.values()):
        notes.append("With the schedule wsd, this is before the decay of the learning rate.")
    heads = ["variant", "differs in", "seeds", "steps", "perplexity", "Δ ± s.e."]
    caption = "Given up before the end, by their perplexity on dev:"
    if open_rows:
        caption = (
            "Paused before the end, by their perplexity on dev, in a grid that is not finished:"
        )
    return GridTable(caption, [*heads, "against the noise"], rows, notes), over


def _finite(cells: Sequence[Cell], step: int) -> list[Record]:
    records = (cell.rungs().get(step) for cell in cells)
    return [record for record in records if record and record["perplexity"] is not None]
