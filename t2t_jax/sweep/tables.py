"""The table of a grid as Markdown, CSV and a plot."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from t2t_jax.config.file import Grid
from t2t_jax.sweep.comparison import SIGNIFICANT, Change, Results, VariantRow, compare
from t2t_jax.sweep.published_columns import PublishedColumns, published_columns
from t2t_jax.system.atomic_file import write_whole

_FILES = "table.md", "table.csv", "table.png"


def write_tables(grid: Grid, results: Results, workdir: Path) -> list[VariantRow]:
    """Write `table.md`, `table.csv` and `table.png` into a grid's directory.

    Args:
      grid: the variants.
      results: by variant, the results of the seeds that are finished.
      workdir: the directory of the grid.

    Returns:
      The rows of the table.

    Raises:
      UserError: `compare` refuses the results.
    """
    rows = compare(grid, results)
    columns = published_columns(grid.published, [row.variant for row in rows])
    markdown, table, plot = (workdir / name for name in _FILES)
    write_whole(markdown, _markdown(grid, rows, columns, results).encode())
    write_whole(table, _csv(rows, columns, results).encode())
    write_whole(plot, _plot(grid, rows, columns))
    return rows


def summary(rows: Sequence[VariantRow], results: Results) -> Table:
    """The table for a terminal, with the columns that fit."""
    first = next(iter(results.values()))[0]
    caption = f"sacreBLEU: {first['bleu_signature']}"
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("variant")
    for name in ("seeds", "perplexity", "Δ", "sacreBLEU", "Δ"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("against the noise", overflow="fold")
    for row in rows:
        figures = [
            cell
            for change in (row.perplexity, row.bleu)
            for cell in (_mean(change), _signed(change.difference))
        ]
        table.add_row(row.variant, str(row.num_seeds), *figures, row.verdict)
    return table


def _markdown(
    grid: Grid, rows: Sequence[VariantRow], columns: PublishedColumns, results: Results
) -> str:
    first = next(iter(results.values()))[0]
    with_published = any(row.published for row in rows)
    heads = [
        "variant", "differs in", "seeds", "perplexity", "Δ ± s.e.", "sacreBLEU", "Δ ± s.e.", "p",
        "tokenized_split_bleu", "parameters", "steps", "target tokens/s", "against the noise",
    ]  # fmt: skip
    body = [_cells(row) for row in rows]
    if with_published:
        heads += columns.heads
        body = [[*_cells(row), *columns.cells(row.variant)] for row in rows]
    missing = [name for name in grid.variants if name not in results]
    split = f"the {len(first['references']):,} sentences of {first['corpus']} {first['split']}"
    lines = [
        f"Scores on {split}; mean over seeds ± their standard deviation.",
        "",
        *("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *body)),
        "",
        f"- perplexity: exp of the mean negative log-likelihood per subword "
        f"({first['target_tokens']:,} of them).",
        f"- sacreBLEU: `{first['bleu_signature']}`.",
        f"- tokenized_split_bleu, the paper's BLEU: {first['tokenized_split_bleu_signature']}.",
        f"- Δ: less that of `{grid.base}`, of the same seeds, and the standard error of this "
        "difference, from the noise of all rows together (of perplexities, in relation to their "
        "size).",
        f"- p: sacreBLEU's paired bootstrap against `{grid.base}` of the same seed, the largest "
        "over seeds.",
        "- A difference is within the noise if 0 is in its 95% confidence interval over seeds "
        f"(Student's t), BLEU's also if p >= {SIGNIFICANT}. By chance alone, one of twenty rows is "
        "not.",
    ]
    if with_published:
        lines += columns.notes()
    if missing:
        lines.append(f"- Not finished: {', '.join(missing)}.")
    return "\n".join(lines) + "\n"


def _cells(row: VariantRow) -> list[str]:
    return [
        row.variant,
        row.difference or "",
        str(row.num_seeds),
        _mean(row.perplexity),
        _difference(row.perplexity),
        _mean(row.bleu),
        _difference(row.bleu),
        "" if row.p_value is None else f"{row.p_value:.3f}",
        f"{row.tokenized_split_bleu.mean:.2f}",
        f"{row.num_parameters:,}",
        f"{row.num_train_steps:,}",
        f"{row.target_tokens_per_second:,.0f}",
        row.verdict,
    ]


def _mean(change: Change) -> str:
    return f"{change.mean:.2f}" + ("" if change.sd is None else f" ± {change.sd:.2f}")


def _difference(change: Change) -> str:
    error = "" if change.error is None else f" ± {change.error:.2f}"
    return _signed(change.difference) + error


def _signed(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+.2f}"


def _csv(rows: Sequence[VariantRow], columns: PublishedColumns, results: Results) -> str:
    """The table as CSV: every figure in full, a row for each variant."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    measures = ("perplexity", "bleu", "tokenized_split_bleu")
    signatures = ("bleu_signature", "tokenized_split_bleu_signature")
    first = next(iter(results.values()))[0]
    writer.writerow(
        ["variant", "differs_in", "seeds"]
        + [f"{name}_{part}" for name in measures for part in Change._fields]
        + ["bleu_p_value", "parameters", "steps", "target_tokens_per_second", "verdict"]
        + [*columns.fields, *signatures]
    )
    for row in rows:
        writer.writerow(
            [row.variant, row.difference, row.num_seeds]
            + [value for name in measures for value in getattr(row, name)]
            + [row.p_value, row.num_parameters, row.num_train_steps]
            + [row.target_tokens_per_second, row.verdict]
            + [*columns.values(row.variant), *(first[name] for name in signatures)]
        )
    return file.getvalue()


def _plot(grid: Grid, rows: Sequence[VariantRow], columns: PublishedColumns) -> bytes:
    """A PNG of each variant's differences from the base, with 95% intervals, and of published
    ones."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    base = next((row for row in rows if row.variant == grid.base), rows[0])
    others = [row for row in rows if row.variant != grid.base]
    figure = Figure(figsize=(9, 1.5 + 0.28 * len(others)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, [row.perplexity for row in others], scale=1 / base.perplexity.mean)
    _draw(right, [row.tokenized_split_bleu for row in others])
    for at, row in enumerate(others):
        marks = columns.marks(row.variant, base.variant)
        _mark(left, marks.perplexity, at, columns.marked_as)
        _mark(right, marks.bleu, at, columns.marked_as)
    left.set_xlabel(f"perplexity, relative to {grid.base}")
    right.set_xlabel(f"tokenized_split_bleu, less that of {grid.base}")
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
