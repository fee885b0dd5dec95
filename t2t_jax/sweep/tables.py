"""The table of a grid in every format: Markdown, LaTeX, CSV and a plot, from one source of rows."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError, needs_extra, warn
from t2t_jax.run.report.page import markdown_row
from t2t_jax.sweep.comparison import SIGNIFICANT, Change, Results, VariantRow, compare
from t2t_jax.sweep.latex import latex
from t2t_jax.sweep.paper_columns import (
    FIELDS,
    HEADS,
    MARKED_AS,
    NOTES,
    paper_cells,
    paper_marks,
    paper_values,
    published_sign,
)
from t2t_jax.system.atomic_file import write_whole

if TYPE_CHECKING:
    from t2t_jax.tasks.task import GridMeasures

_FILES = "table.md", "table.tex", "table.csv", "table.png"


class Columns(NamedTuple):
    """Neighbouring columns of the table: as text for readers, and as values for programs."""

    heads: Sequence[str]
    """The heads of the columns for readers."""
    cells: Callable[[VariantRow], Sequence[str]]
    """A function that returns the text of a variant, a cell for each head."""
    fields: Sequence[str]
    """The heads of the columns for programs, in which every figure stands in full."""
    values: Callable[[VariantRow], Sequence[Any]]
    """A function that returns the values of a variant, one for each field."""


class GridTable(NamedTuple):
    """The table of a grid for readers. Its notes have code between backticks."""

    caption: str
    heads: list[str]
    rows: list[list[str]]
    notes: list[str]


class Beside(NamedTuple):
    """Texts and tables beside the scores of a grid's cells."""

    notes: Sequence[str] = ()
    """Paragraphs below the table, after those that explain its columns."""
    tables: Sequence[GridTable] = ()
    """Tables that follow it, as of variants that were given up."""
    over: Collection[str] = ()
    """The variants of which nothing more is to be trained; others without a result are not
    finished."""
    diverged: Mapping[str, int] = MappingProxyType({})
    """The number of seeds that diverged, by variant."""


NOTHING = Beside()


def write_tables(
    grid: Grid, results: Results, workdir: Path, beside: Beside = NOTHING
) -> list[VariantRow]:
    """Write `table.md`, `table.tex`, `table.csv` and `table.png` into a grid's directory.

    Without matplotlib, `table.png` is skipped with a warning. While no cell has a result, only
    `table.md` is written, with the contents of `beside`, and the other files are removed.

    Returns:
      The rows of the table.

    Raises:
      UserError: `compare` refuses the results.
    """
    markdown_file, latex_file, csv_file, plot_file = (workdir / name for name in _FILES)
    if (beside.notes or beside.tables) and not results:
        text = "\n".join([_listed(beside.notes), *map(_markdown, beside.tables)])
        write_whole(markdown_file, text.encode())
        for stale in (latex_file, csv_file, plot_file):
            stale.unlink(missing_ok=True)
        return []
    rows = compare(grid, results, beside.diverged)
    tables = [grid_table(grid, rows, results, beside), *beside.tables]
    write_whole(markdown_file, "\n".join(map(_markdown, tables)).encode())
    write_whole(latex_file, "\n".join(latex(*one) for one in tables).encode())
    columns = _columns(grid, rows, results)
    lines = [[field for one in columns for field in one.fields]]
    lines += ([value for one in columns for value in one.values(row)] for row in rows)
    write_whole(csv_file, csv_text(lines).encode())
    try:
        write_whole(plot_file, _plot(grid, rows))
    except UserError as error:  # a library is missing
        warn(str(error))
    return rows


def grid_table(
    grid: Grid,
    rows: Sequence[VariantRow],
    results: Results,
    beside: Beside = NOTHING,
) -> GridTable:
    """Return the table for readers, from the rows of `compare`."""
    columns = [one for one in _columns(grid, rows, results) if one.heads]
    heads = [head for one in columns for head in one.heads]
    body = [[cell for one in columns for cell in one.cells(row)] for row in rows]
    first = next(iter(results.values()))[0]
    split = f"{first['corpus']} {first['split']}"
    if rows[0].measures.whole_split:
        split = f"the {len(first['references']):,} sentences of {split}"
    notes = _notes(grid, rows, first)
    if missing := [name for name in grid.variants if name not in {*results, *beside.over}]:
        notes.append(f"Not finished: {', '.join(missing)}.")
    notes += beside.notes
    caption = f"Scores on {split}; mean over seeds ± their standard deviation."
    return GridTable(caption, heads, body, notes)


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
        table.add_row(row.shown, str(row.num_seeds), *figures, row.verdict)
    for note in _notes_on_code(rows):
        table.caption = f"{table.caption or ''}\n{note}".strip()
    return table


def _columns(grid: Grid, rows: Sequence[VariantRow], results: Results) -> list[Columns]:
    """Return all columns of the table, from left to right."""
    measures, first = rows[0].measures, next(iter(results.values()))[0]
    score, scores = measures.score, [one for one in (measures.score, measures.beside) if one]
    signatures = [one.signature_field for one in scores if one.signature_field]
    columns = [
        Columns(
            ("variant", "differs in", "seeds"),
            lambda row: (row.shown, row.difference, str(row.num_seeds)),
            ("variant", "differs_in", "seeds", "other_code"),
            lambda row: (row.variant, row.difference, row.num_seeds, row.other_code),
        ),
        Columns(
            ("perplexity", "Δ ± s.e."),
            lambda row: row.perplexity.shown,
            _fields_of("perplexity"),
            lambda row: row.perplexity,
        ),
        _score_columns(measures),
        Columns(
            ("parameters", "steps", "target tokens/s", "against the noise"),
            lambda row: (
                f"{row.num_parameters:,}",
                f"{row.num_train_steps:,}",
                f"{row.target_tokens_per_second:,.0f}",
                row.verdict,
            ),
            (
                *("parameters", "steps", "target_tokens_per_second"),
                *("perplexity_verdict", f"{score.field}_verdict"),
            ),
            lambda row: (
                *(row.num_parameters, row.num_train_steps, row.target_tokens_per_second),
                *row.verdicts.values(),
            ),
        ),
    ]
    if grid.published:
        columns.append(_paper_columns(grid, rows))
    signed = [first[name] for name in signatures]
    return [*columns, Columns((), lambda row: (), signatures, lambda row: signed)]


def _score_columns(measures: "GridMeasures") -> Columns:
    """Return the columns of the score that compares variants, and of the second score."""
    score, beside, bootstrap, _ = measures

    def cells(row: VariantRow) -> list[str]:
        unknown = row.p_value is None or row.score.within_noise
        return [
            *row.score.shown,
            *(["" if unknown else f"{row.p_value:.3f}"] if bootstrap else []),
            *([f"{row.beside.mean:.2f}"] if row.beside else []),
        ]

    return Columns(
        (
            *(score.name, "Δ ± s.e."),
            *(["p"] if bootstrap else []),
            *([beside.name] if beside else []),
        ),
        cells,
        (
            *_fields_of(score.field),
            *(_fields_of(beside.field) if beside else []),
            f"{score.field}_p_value",
        ),
        lambda row: (*row.score, *(row.beside or ()), row.p_value),
    )


def _paper_columns(grid: Grid, rows: Sequence[VariantRow]) -> Columns:
    """Return the columns of Table 3's figures, and of whether the grid has their signs."""

    def sign(row: VariantRow) -> str:
        is_bleu = row.measures.bootstrap
        verdicts = row.verdicts if is_bleu else {"perplexity": row.verdicts["perplexity"]}
        return published_sign(verdicts, paper_marks(grid.published, row.variant, grid.base))

    is_shown = any(row.published for row in rows)
    return Columns(
        (*HEADS, "published sign") if is_shown else (),
        lambda row: (*paper_cells(row.published), sign(row)),
        (*FIELDS, "published_sign"),
        lambda row: (*paper_values(row.published), sign(row)),
    )


def _fields_of(measure: str) -> list[str]:
    return [f"{measure}_{part}" for part in Change._fields]


def _notes(grid: Grid, rows: Sequence[VariantRow], first: Mapping[str, Any]) -> list[str]:
    """Explain the columns of the table, a paragraph for each."""
    measures = rows[0].measures
    also = f", and within that of sentences if p >= {SIGNIFICANT}" if measures.bootstrap else ""
    notes = [
        f"perplexity: exp of the mean negative log-likelihood per subword "
        f"({first['target_tokens']:,} of them).",
        *_definitions(measures, first),
        f"Δ: less that of `{grid.base}`, of the same seeds, and the standard error of this "
        "difference, from the noise of all rows together (of perplexities, in relation to their "
        "size).",
    ]
    if measures.bootstrap:
        notes.append(
            f"p: sacreBLEU's paired bootstrap against `{grid.base}` of the same seed, the largest "
            "over seeds. It is about the choice of sentences alone, so it is left out where the "
            "difference is within the noise of seeds."
        )
    notes.append(
        "A difference is within the noise of seeds if 0 is in its 95% confidence interval over "
        f"seeds (Student's t){also}. By chance alone, one of twenty rows is not."
    )
    if any(row.published for row in rows):
        notes += NOTES
    return notes + _notes_on_code(rows)


def _notes_on_code(rows: Sequence[VariantRow]) -> list[str]:
    """Return a note on each row that has cells of other code than the first cell of the table."""
    return [
        f"† {row.variant}: some of its cells have other code than the first cell of the table "
        f"({row.other_code}). --allow-mixed pooled them, so the code may explain "
        "part of the differences."
        for row in rows
        if row.other_code
    ]


def _markdown(table: GridTable) -> str:
    lines = [table.heads, ["---"] * len(table.heads), *table.rows]
    return "\n".join([table.caption, "", *map(markdown_row, lines), "", _listed(table.notes)])


def _listed(notes: Iterable[str]) -> str:
    return "".join(f"- {note}\n" for note in notes)


def _definitions(measures: "GridMeasures", result: Mapping[str, Any]) -> list[str]:
    """Return a line for each score that has a definition."""
    lines = []
    if field := measures.score.signature_field:
        lines.append(f"{measures.score.name}: `{result[field]}`.")
    if measures.beside and (field := measures.beside.signature_field):
        paper = ", the paper's BLEU" if measures.bootstrap else ""
        lines.append(f"{measures.beside.name}{paper}: {result[field]}.")
    return lines


def _signed(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+.2f}"


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of cells as CSV; the first has the column names."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def _plot(grid: Grid, rows: Sequence[VariantRow]) -> bytes:
    """Draw the differences from the base as a PNG, with 95% intervals, beside the paper's."""
    with needs_extra("plots", "table.png"):
        from matplotlib.figure import Figure  # without pyplot: no display, no global state

    base = next((row for row in rows if row.variant == grid.base), rows[0])
    others = [row for row in rows if row.variant != grid.base]
    figure = Figure(figsize=(9, 1.5 + 0.28 * len(others)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, [row.perplexity for row in others], scale=1 / base.perplexity.mean)
    _draw(right, [row.score for row in others])
    for at, row in enumerate(others):
        marks = paper_marks(grid.published, row.variant, base.variant)
        _mark(left, marks.perplexity, at)
        _mark(right, marks.bleu, at)
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


def _mark(axes: Any, difference: float | None, at: int) -> None:
    if difference is not None:
        axes.plot(difference, at, "D", color="C1", fillstyle="none", label=MARKED_AS)
