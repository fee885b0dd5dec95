"""The table of a grid as Markdown, CSV and a plot."""

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError, needs_extra, warn
from t2t_jax.sweep.comparison import SIGNIFICANT, Change, Results, VariantRow, compare
from t2t_jax.sweep.published_columns import PublishedColumns, published_columns
from t2t_jax.system.atomic_file import write_whole

if TYPE_CHECKING:
    from t2t_jax.tasks.task import GridMeasures

_FILES = "table.md", "table.csv", "table.png"


def write_tables(
    grid: Grid,
    results: Results,
    workdir: Path,
    notes: Sequence[str] = (),
    over: Collection[str] = (),
) -> list[VariantRow]:
    """Write `table.md`, `table.csv` and `table.png` into a grid's directory, and return the rows.

    Without matplotlib, `table.png` is left out with a warning. Where no cell has a result yet,
    `table.md` has the notes alone.

    Args:
      notes: lines of Markdown below the table.
      over: the variants of which nothing more is to be trained; others without a result are not
        finished.

    Raises:
      UserError: `compare` refuses the results.
    """
    if notes and not results:
        write_whole(workdir / _FILES[0], "\n".join([*notes, ""]).encode())
        return []
    rows = compare(grid, results)
    columns = published_columns(grid.published, [row.variant for row in rows])
    markdown, table, plot = (workdir / name for name in _FILES)
    if missing := [name for name in grid.variants if name not in {*results, *over}]:
        notes = [f"- Not finished: {', '.join(missing)}.", *notes]
    text = "\n".join([_markdown(grid, rows, columns, results), *notes, ""])
    write_whole(markdown, text.encode())
    write_whole(table, _csv(rows, columns, results).encode())
    try:
        write_whole(plot, _plot(grid, rows, columns))
    except UserError as error:  # a library is missing
        warn(str(error))
    return rows


def summary(rows: Sequence[VariantRow], results: Results) -> Table:
    """Return the table for a terminal, with the columns that fit."""
    first = next(iter(results.values()))[0]
    score = rows[0].measures.score
    caption = f"{score.name}: {first[score.signature_field]}" if score.signature_field else None
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("variant")
    for name in ("seeds", "perplexity", "Δ", score.name, "Δ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("against the noise", overflow="fold")
    for row in rows:
        figures = [
            cell
            for change in (row.perplexity, row.score)
            for cell in (change.shown[0], _signed(change.difference))
        ]
        table.add_row(row.variant, str(row.num_seeds), *figures, row.verdict)
    return table


def _markdown(
    grid: Grid, rows: Sequence[VariantRow], columns: PublishedColumns | None, results: Results
) -> str:
    first = next(iter(results.values()))[0]
    if not any(row.published for row in rows):
        columns = None
    measures = rows[0].measures
    score, beside = measures.score, measures.beside
    heads = [
        *("variant", "differs in", "seeds", "perplexity", "Δ ± s.e.", score.name, "Δ ± s.e."),
        *(["p"] if measures.bootstrap else []),
        *([beside.name] if beside else []),
        *("parameters", "steps", "target tokens/s", "against the noise"),
    ]
    body = [_cells(row) for row in rows]
    if columns:
        heads += columns.heads
        body = [[*_cells(row), *columns.cells(row.variant)] for row in rows]
    also = f", and within that of sentences if p >= {SIGNIFICANT}" if measures.bootstrap else ""
    split = f"{first['corpus']} {first['split']}"
    if measures.whole_split:
        split = f"the {len(first['references']):,} sentences of {split}"
    lines = [
        f"Scores on {split}; mean over seeds ± their standard deviation.",
        "",
        *("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *body)),
        "",
        f"- perplexity: exp of the mean negative log-likelihood per subword "
        f"({first['target_tokens']:,} of them).",
        *_definitions(measures, first),
        f"- Δ: less that of `{grid.base}`, of the same seeds, and the standard error of this "
        "difference, from the noise of all rows together (of perplexities, in relation to their "
        "size).",
        *(
            [
                f"- p: sacreBLEU's paired bootstrap against `{grid.base}` of the same seed, the "
                "largest over seeds. It is about the choice of sentences alone, so it is left out "
                "where the difference is within the noise of seeds."
            ]
            if measures.bootstrap
            else []
        ),
        "- A difference is within the noise of seeds if 0 is in its 95% confidence interval over "
        f"seeds (Student's t){also}. By chance alone, one of twenty rows is not.",
    ]
    if columns:
        lines += columns.notes
    return "\n".join(lines)


def _definitions(measures: "GridMeasures", result: Mapping[str, Any]) -> list[str]:
    """Return a line for each score that has a definition."""
    lines = []
    if field := measures.score.signature_field:
        lines.append(f"- {measures.score.name}: `{result[field]}`.")
    if measures.beside and (field := measures.beside.signature_field):
        paper = ", the paper's BLEU" if measures.bootstrap else ""
        lines.append(f"- {measures.beside.name}{paper}: {result[field]}.")
    return lines


def _cells(row: VariantRow) -> list[str]:
    unknown = row.p_value is None or row.score.within_noise
    p_value = "" if unknown else f"{row.p_value:.3f}"
    return [
        row.variant,
        row.difference or "",
        str(row.num_seeds),
        *row.perplexity.shown,
        *row.score.shown,
        *([p_value] if row.measures.bootstrap else []),
        *([f"{row.beside.mean:.2f}"] if row.beside else []),
        f"{row.num_parameters:,}",
        f"{row.num_train_steps:,}",
        f"{row.target_tokens_per_second:,.0f}",
        row.verdict,
    ]


def _signed(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+.2f}"


def _csv(rows: Sequence[VariantRow], columns: PublishedColumns | None, results: Results) -> str:
    """Return the table as CSV: every figure in full, a row for each variant."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    first, of_task = next(iter(results.values()))[0], rows[0].measures
    scores = [one for one in (of_task.score, of_task.beside) if one]
    signatures = [one.signature_field for one in scores if one.signature_field]
    writer.writerow(
        ["variant", "differs_in", "seeds"]
        + [
            f"{name}_{part}"
            for name in ("perplexity", *(one.field for one in scores))
            for part in Change._fields
        ]
        + [
            f"{of_task.score.field}_p_value",
            "parameters",
            "steps",
            "target_tokens_per_second",
            "perplexity_verdict",
            f"{of_task.score.field}_verdict",
        ]
        + [*(columns.fields if columns else ()), *signatures]
    )
    for row in rows:
        writer.writerow(
            [row.variant, row.difference, row.num_seeds]
            + [
                value
                for change in (row.perplexity, row.score, row.beside or ())
                for value in change
            ]
            + [row.p_value, row.num_parameters, row.num_train_steps]
            + [row.target_tokens_per_second, *row.verdicts.values()]
            + [*(columns.values(row.variant) if columns else ())]
            + [first[name] for name in signatures]
        )
    return file.getvalue()


def _plot(grid: Grid, rows: Sequence[VariantRow], columns: PublishedColumns | None) -> bytes:
    """Draw each variant's differences from the base as a PNG, with 95% intervals, and the published
    differences."""
    with needs_extra("plots", "table.png"):
        from matplotlib.figure import Figure  # without pyplot: no display, no global state

    base = next((row for row in rows if row.variant == grid.base), rows[0])
    others = [row for row in rows if row.variant != grid.base]
    figure = Figure(figsize=(9, 1.5 + 0.28 * len(others)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, [row.perplexity for row in others], scale=1 / base.perplexity.mean)
    _draw(right, [row.score for row in others])
    for at, row in enumerate(others):
        if columns:
            marks = columns.marks(row.variant, base.variant)
            _mark(left, marks.perplexity, at, columns.marked_as)
            _mark(right, marks.bleu, at, columns.marked_as)
    left.set_xlabel(f"perplexity, relative to {grid.base}")
    right.set_xlabel(f"{base.measures.score.name}, less that of {grid.base}")
    left.xaxis.set_major_formatter(lambda x, _: f"{x:+.0%}")
    left.set_yticks(range(len(others)), [row.variant for row in others])
    left.invert_yaxis()
    handles = {
        label: handle
        for axes in (left, right)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=2)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=120, metadata={"Software": None})
    return png.getvalue()


def _draw(axes: Any, changes: Sequence[Change], scale: float = 1) -> None:
    axes.axvline(0, color="0.6", linewidth=0.8)
    for at, change in enumerate(changes):
        if change.difference is not None:
            error = scale * (change.margin or 0)
            x = scale * change.difference
            axes.errorbar(x, at, xerr=error, fmt="o", color="C0", label="this grid")


def _mark(axes: Any, difference: float | None, at: int, label: str) -> None:
    if difference is not None:
        axes.plot(difference, at, "D", color="C1", fillstyle="none", label=label)
