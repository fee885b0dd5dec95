"""The table of a grid in every format: Markdown, LaTeX, CSV and a plot, from one source of rows."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.table import Table

from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError, warn
from t2t_jax.run.report.page import markdown_row
from t2t_jax.sweep.budget import Budget, steps_of_seeds
from t2t_jax.sweep.comparison import (
    BITS,
    Change,
    Comparisons,
    Results,
    VariantRow,
    compare,
    effects_of,
    p_text,
    row_scores,
)
from t2t_jax.sweep.contrasts import factorial, pairs
from t2t_jax.sweep.effect_figure import FIGURES, effect_figure
from t2t_jax.sweep.inference import SIGNIFICANT, Effect, effects, noise_of_seeds, seeds_needed
from t2t_jax.sweep.latex import grid_latex, latex
from t2t_jax.sweep.paper_columns import (
    FIELDS,
    HEADS,
    NOTES,
    interval_and_published,
    paper_cells,
    paper_marks,
    paper_values,
)
from t2t_jax.system.atomic_file import write_whole

_FILES = "table.md", "table.tex", "table.csv", *FIGURES


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
    budgets: Mapping[str, Budget] = MappingProxyType({})
    """The mean budget of each variant's seeds."""
    selected: Collection[str] = ()
    """The variants that these very scores selected, such as finalists of halving scored on dev."""


NOTHING = Beside()


def write_tables(
    grid: Grid,
    results: Results,
    workdir: Path,
    beside: Beside = NOTHING,
    comparisons: Comparisons = "base",
    columns: Sequence[str] = (),
) -> list[VariantRow]:
    """Write `table.md`, `.tex`, `.csv`, `.png` and `.pdf` into a grid's directory.

    Without matplotlib, the figure is skipped with a warning. While no cell has a result, only
    `table.md` is written, with the contents of `beside`, and the other files are removed.

    Args:
      beside: texts, tables and budgets beside the scores.
      comparisons: the comparisons for which p-values are adjusted; "all" also writes a table of all
        pairs.
      columns: the columns of `table.tex`, as names from `latex.grid_latex`; empty for the default.

    Returns:
      The rows of the table.

    Raises:
      UserError: `compare` refuses the results, or a column is unknown.
    """
    markdown_file, latex_file, csv_file, *figure_files = (workdir / name for name in _FILES)
    if (beside.notes or beside.tables) and not results:
        text = "\n".join([_listed(beside.notes), *map(_markdown, beside.tables)])
        write_whole(markdown_file, text.encode())
        for stale in (latex_file, csv_file, *figure_files):
            stale.unlink(missing_ok=True)
        return []
    rows = compare(grid, results, beside.diverged, comparisons)
    tables = [grid_table(grid, rows, results, beside, comparisons)]
    tables += [*contrast_tables(grid, rows, results, comparisons), *beside.tables]
    write_whole(markdown_file, "\n".join(map(_markdown, tables)).encode())
    notes = _definitions(rows, results)[:1]  # the second score is no column of table.tex
    notes += [*_notes_on_cells(grid, results, beside), *_notes_on_code(rows)]
    main = grid_latex(tables[0].caption, rows, results, columns, notes)
    write_whole(latex_file, "\n".join([main, *(latex(*one) for one in tables[1:])]).encode())
    groups = _columns(grid, rows, results)
    fields = [field for group in groups for field in group.fields]
    lines: list[list[Any]] = [[*fields, *Budget._fields]]
    for row in rows:
        values = [value for group in groups for value in group.values(row)]
        lines.append([*values, *beside.budgets.get(row.variant, Budget())])
    write_whole(csv_file, csv_text(lines).encode())
    try:
        for name, content in effect_figure(grid, rows).items():
            write_whole(workdir / name, content)
    except UserError as error:  # a library is missing
        warn(str(error))
    return rows


def grid_table(
    grid: Grid,
    rows: Sequence[VariantRow],
    results: Results,
    beside: Beside = NOTHING,
    comparisons: Comparisons = "base",
) -> GridTable:
    """Return the table for readers, from the rows of `compare`."""
    columns = [one for one in _columns(grid, rows, results) if one.heads]
    heads = [head for one in columns for head in one.heads]
    body = [[cell for one in columns for cell in one.cells(row)] for row in rows]
    first = next(iter(results.values()))[0]
    split = f"{first['corpus']} {first['split']}"
    if rows[0].measures.whole_split:
        split = f"the {len(first['references']):,} sentences of {split}"
    notes = _notes(grid, rows, results, comparisons)
    notes += _notes_on_cells(grid, results, beside)
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
    measures = rows[0].measures
    score, scores = measures.score, [one for one in (measures.score, measures.beside) if one]
    signatures = [one.signature_field for one in scores if one.signature_field]
    columns = [
        Columns(
            ("variant", "differs in", "seeds"),
            lambda row: (row.shown, row.difference, str(row.num_seeds)),
            ("variant", "differs_in", "seeds", "other_code"),
            lambda row: (row.variant, row.difference, row.num_seeds, row.other_code),
        ),
        _measure_columns("perplexity", "perplexity", lambda row: row.perplexity),
        _measure_columns(score.name, score.field, lambda row: row.score),
        *_further_columns(rows),
        Columns(
            ("parameters", "steps", "target tokens/s", "against the noise"),
            lambda row: (
                f"{row.num_parameters:,}",
                steps_of_seeds(results[row.variant]),
                f"{row.target_tokens_per_second:,.0f}",
                row.verdict,
            ),
            (
                *("parameters", "steps", "target_tokens_per_second"),
                *("perplexity_verdict", f"{score.field}_verdict"),
            ),
            lambda row: (
                *(row.num_parameters, row.num_train_steps, row.target_tokens_per_second),
                *(row.verdicts["perplexity"], row.verdicts[score.name]),
            ),
        ),
    ]
    if grid.published:
        columns.append(_paper_columns(grid, rows))

    def signed(row: VariantRow) -> list[Any]:
        return [results[row.variant][0][name] for name in signatures]

    return [*columns, Columns((), lambda row: (), signatures, signed)]


def _measure_columns(name: str, field: str, change: Callable[[VariantRow], Change]) -> Columns:
    """Return the columns of a measure that is compared with the base."""
    return Columns(
        (name, "Δ ± s.e.", "p"),
        lambda row: (*change(row).shown, change(row).shown_p),
        _fields_of(field),
        change,
    )


def _further_columns(rows: Sequence[VariantRow]) -> list[Columns]:
    """Return the columns of the second score, and of bits per byte for several vocabularies."""
    columns, unknown = [], Change(math.nan, None)
    if rows[0].bits_per_byte:
        columns += [_measure_columns(BITS, BITS, lambda row: row.bits_per_byte or unknown)]
    if beside := rows[0].measures.beside:
        further = _measure_columns(beside.name, beside.field, lambda row: row.beside or unknown)
        shown = further._replace(
            heads=[beside.name], cells=lambda row: [f"{(row.beside or unknown).mean:.2f}"]
        )
        columns += [shown]
    return columns


def _paper_columns(grid: Grid, rows: Sequence[VariantRow]) -> Columns:
    """Return the columns of Table 3's figures, and of whether our intervals contain them."""
    base = next((row.perplexity.mean for row in rows if row.variant == grid.base), None)

    def intervals(row: VariantRow) -> str:
        marks = paper_marks(grid.published, row.variant, grid.base)
        texts = {"perplexity": interval_and_published(row.perplexity, marks.perplexity, base)}
        if row.measures.bootstrap:
            score = row.measures.score.name
            texts[score] = interval_and_published(row.score, marks.bleu)
        return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)

    is_shown = any(row.published for row in rows)
    return Columns(
        (*HEADS, "interval contains paper's Δ") if is_shown else (),
        lambda row: (*paper_cells(row.published), intervals(row)),
        (*FIELDS, "interval_contains_paper"),
        lambda row: (*paper_values(row.published), intervals(row)),
    )


def _fields_of(measure: str) -> list[str]:
    return [f"{measure}_{part}" for part in Change._fields]


def _notes(
    grid: Grid, rows: Sequence[VariantRow], results: Results, comparisons: Comparisons
) -> list[str]:
    """Explain the columns of the table, a paragraph for each."""
    base = grid.base
    adjusted = f"by Dunnett's test for all comparisons with `{base}`"
    if comparisons == "all":
        adjusted = "by Holm's method for all pairs of rows"
    counts = {name: f"{seeds[0]['target_tokens']:,}" for name, seeds in results.items()}
    notes = [
        f"perplexity: exp of the mean negative log-likelihood per subword "
        f"({_by_value(counts)} of them).",
        *_definitions(rows, results),
        f"Δ: the mean minus that of `{base}` under the same seeds, with its standard error. It is "
        "empty where the two were scored on other sentences or by another definition, and while "
        f"`{base}` has no result.",
        f"p: two-sided, adjusted {adjusted}. A difference is "
        f"within the noise, of seeds and sentences if both are known, if p >= {SIGNIFICANT}.",
        *power_notes(grid, rows, results),
    ]
    if rows[0].bits_per_byte:
        notes.append(
            f"{BITS}: the negative log-likelihood of all references over their UTF-8 bytes."
        )
    if any(row.published for row in rows):
        notes += NOTES
    return notes + _notes_on_code(rows)


def _by_value(values: Mapping[str, str]) -> str:
    """Return the value of all rows, or each of several values with the names of its rows."""
    named: dict[str, list[str]] = {}
    for name, value in values.items():
        named.setdefault(value, []).append(name)
    if len(named) == 1:
        return next(iter(named))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in named.items())


def power_notes(grid: Grid, rows: Sequence[VariantRow], results: Results) -> list[str]:
    """Return how many seeds find a difference of 1% in perplexity, and of 0.5 in BLEU."""
    notes, measures = [], rows[0].measures
    sizes = [("perplexity", "1% in perplexity", math.log(1.01))]
    if measures.bootstrap:
        sizes.append((measures.score.field, f"0.5 {measures.score.name}", 0.5))
    for field, name, difference in sizes:
        scores = row_scores(grid, results, field)
        compared = [e for e in effects_of(grid, scores, "base").values() if "seeds" in e.noise]
        if not compared:
            continue
        sentences = statistics.median(effect.sentence_variance for effect in compared)
        noise = noise_of_seeds(scores.scores)
        number = seeds_needed(difference, noise, sentences, len(compared))
        of_rows = f"{number} seeds of each row" if number else "more sentences, not more seeds"
        notes.append(f"To find a true difference of {name} in 4 of 5 grids takes {of_rows}.")
    return notes


def contrast_tables(
    grid: Grid, rows: Sequence[VariantRow], results: Results, comparisons: Comparisons
) -> list[GridTable]:
    """Return tables of all pairs, if they are asked for, and of the effects of two factors."""
    score = rows[0].measures.score
    of_perplexity = row_scores(grid, results, "perplexity")
    of_score = row_scores(grid, results, score.field)
    compared = [
        row.variant
        for row in rows
        if not row.num_diverged
        and row.variant in of_perplexity.scores.keys() & of_score.scores.keys()
    ]
    kinds = {
        "Main effects and interaction of the two fields:": factorial(grid, compared),
        "Differences of all pairs:": pairs(grid.base, compared) if comparisons == "all" else {},
    }
    tables = []
    for caption, contrasts in kinds.items():
        if not contrasts or grid.base not in compared:
            continue
        likelihoods = effects(of_perplexity, contrasts, "holm")
        scores = effects(of_score, contrasts, "holm")
        body = [
            [name, *_shown(likelihoods[name], relative=True), *_shown(scores[name])]
            for name in contrasts
        ]
        heads = ["contrast", "Δ perplexity", "95% interval", "p"]
        heads += [f"Δ {score.name}", "95% interval", "p"]
        note = (
            "p: two-sided, adjusted by Holm's method for the lines of this table; intervals are "
            "not adjusted."
        )
        tables.append(GridTable(caption, heads, body, [note]))
    return tables


def _shown(effect: Effect, *, relative: bool = False) -> list[str]:
    """Return an effect, its interval and its p-value as text; of logarithms in percent."""

    def text(value: float) -> str:
        return f"{100 * math.expm1(value):+.2f}%" if relative else f"{value:+.2f}"

    if effect.p_adjusted is None:
        return [text(effect.estimate), "", ""]
    ends = effect.estimate - effect.margin, effect.estimate + effect.margin
    return [
        text(effect.estimate),
        f"[{text(ends[0])}, {text(ends[1])}]",
        p_text(effect.p_adjusted),
    ]


def _notes_on_cells(grid: Grid, results: Results, beside: Beside) -> list[str]:
    """Return the notes on variants that are unfinished or selected, and those of `beside`."""
    notes = []
    if missing := [name for name in grid.variants if name not in {*results, *beside.over}]:
        notes.append(f"Not finished: {', '.join(missing)}.")
    if selected := [name for name in results if name in beside.selected]:
        notes.append(
            f"After selection: {', '.join(selected)}. These very scores chose the rows, so their "
            "differences are too good; score them on a test split (`--split test`)."
        )
    return [*notes, *beside.notes]


def _notes_on_code(rows: Sequence[VariantRow]) -> list[str]:
    """Return a note on each row with cells of other code or settings than the table's first one."""
    return [
        f"† {row.variant}: some of its cells have other code or settings than the first cell of "
        f"the table ({row.other_code}). --allow-mixed pooled them, so this may explain part of the "
        "differences."
        for row in rows
        if row.other_code
    ]


def _markdown(table: GridTable) -> str:
    lines = [table.heads, ["---"] * len(table.heads), *table.rows]
    return "\n".join([table.caption, "", *map(markdown_row, lines), "", _listed(table.notes)])


def _listed(notes: Iterable[str]) -> str:
    return "".join(f"- {note}\n" for note in notes)


def _definitions(rows: Sequence[VariantRow], results: Results) -> list[str]:
    """Return a line for each score that has a definition."""
    lines, (score, beside, is_bleu, _) = [], rows[0].measures
    for measure, suffix in ((score, ""), (beside, ", the paper's BLEU" if is_bleu else "")):
        if field := measure and measure.signature_field:
            signed = {name: f"`{seeds[0][field]}`" for name, seeds in results.items()}
            lines.append(f"{measure.name}{suffix}: {_by_value(signed)}.")
    return lines


def _signed(difference: float | None) -> str:
    return "" if difference is None else f"{difference:+.2f}"


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Return lines of cells as CSV; the first has the column names."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()
