"""Write the table of a grid as Markdown, LaTeX, CSV and a plot, all from the same rows."""

import csv
import io
import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.errors import UserError, needs_extra, warn
from t2t_jax.paper import Table3Row
from t2t_jax.sweep.comparison import (
    BITS,
    Change,
    Comparison,
    Comparisons,
    Results,
    VariantRow,
    compare,
    factorial,
    grouped,
    p_text,
    pairs,
)
from t2t_jax.sweep.inference import SIGNIFICANT, Effect, effects, seed_noise, seeds_needed
from t2t_jax.sweep.latex import grid_latex, latex
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.console import markdown_row
from t2t_jax.tasks.measures.perplexity import DIVERGED, perplexity_text

_LARGEST_EXPONENT = 50.0  # larger log ratios of perplexities are shown as "diverged"
FIGURES = "table.png", "table.pdf"
"""The files with the figure in a grid's directory."""
WIDTH_OF_FIGURES = 62
"""The console columns that the scores of a grid take; a console has 80 columns."""
_NARROWEST = 12  # minimum characters per line of a wrapped name
PAPER_HEADS = "paper: perplexity", "BLEU", "parameters"
"""The column heads of the paper's results in the table for readers."""
PAPER_FIELDS = "paper_perplexity", "paper_bleu", "paper_parameters_millions"
"""The column names of the paper's results in `table.csv`."""
_MARKED_AS = "the paper (BLEU: tokenized_split_bleu)"
"""The legend entry of the paper's markers."""
_PAPER_NOTES = (
    "paper: Table 3, on newstest2013: perplexity per word-piece, tokenized_split_bleu, parameters "
    "in millions.",
    "interval contains paper's Δ: the 95% interval of the difference here, and whether it contains "
    "the paper's difference; of perplexities in percent of the base's.",
)
"""The notes that explain the columns of the paper's results."""
_FILES = "table.md", "table.tex", "table.csv", *FIGURES


class Budget(NamedTuple):
    """The compute that a run used; a field is None if the jobs did not record it.

    FLOPs and tokens count each step once. Hours also count steps that a later job repeated.
    """

    training_flops: float | None = None
    """The FLOPs of all matmuls, forward and backward, without padding."""
    source_tokens_trained: float | None = None
    """The number of source subwords in all steps, without padding."""
    target_tokens_trained: float | None = None
    """The number of target subwords in all steps, without padding."""
    step_device_hours: float | None = None
    """The device hours of the training steps only."""
    device_hours: float | None = None
    """The device hours of all jobs: startup, compilation, steps, evaluations and checkpoints. The
    time between two jobs does not count."""


class GridTable(NamedTuple):
    """A table on a grid, as texts for Markdown and LaTeX. Its notes mark code by backticks."""

    caption: str
    heads: list[str]
    rows: list[list[str]]
    notes: list[str]


class TableContext(NamedTuple):
    """What a grid's table contains besides scores. The keys of mappings are variants."""

    notes: Sequence[str] = ()
    """Paragraphs below the notes that explain the columns."""
    tables: Sequence[GridTable] = ()
    """Tables below the main table, for example of variants that halving stopped early."""
    diverged: Mapping[str, int] = {}
    """The number of diverged seeds of each variant."""
    other_code: Mapping[str, str] = {}
    """The differences in code and settings of each variant, from `same_code.other_code`."""
    budgets: Mapping[str, Budget] = {}
    """The mean budget of each variant's seeds."""


NO_CONTEXT = TableContext()


def write_tables(
    grid: Grid,
    results: Results,
    workdir: Path,
    context: TableContext = NO_CONTEXT,
    comparisons: Comparisons = "base",
    columns: Sequence[str] = (),
) -> list[VariantRow]:
    """Write `table.md`, `.tex`, `.csv`, `.png` and `.pdf` into a grid's directory.

    Without matplotlib, the function warns and skips the figure. While no cell has a result, it
    writes the notes and tables of `context` into `table.md` and removes the other files.

    Args:
      comparisons: the comparisons for which p-values are adjusted; "all" adds a table of all pairs.
      columns: the columns of `table.tex`, named as in `latex.grid_latex`; empty for the default.
    """
    if (context.notes or context.tables) and not results:
        text = "\n".join([_listed(context.notes), *map(_markdown, context.tables)])
        write_whole(workdir / _FILES[0], text.encode())
        for name in _FILES[1:]:
            (workdir / name).unlink(missing_ok=True)
        return []
    comparison = compare(grid, results, context.diverged, context.other_code, comparisons)
    rows = [*comparison.rows]
    tables = [grid_table(comparison, context), *contrast_tables(comparison), *context.tables]
    notes = _definitions(comparison)[:1]  # the second score is not a column of table.tex
    notes += [*context.notes, *_notes_on_code(rows)]
    main_latex = grid_latex(tables[0].caption, rows, columns, notes)
    records = [
        _values(comparison, row) | context.budgets.get(row.variant, Budget())._asdict()
        for row in rows
    ]
    texts = (
        "\n".join(map(_markdown, tables)),
        "\n".join([main_latex, *(latex(*table) for table in tables[1:])]),
        csv_text(records[0], records),
    )
    files = dict(zip(_FILES, map(str.encode, texts), strict=False))
    try:
        files |= effect_figure(grid, rows)
    except UserError as error:  # a library is missing
        warn(str(error))
    for name, content in files.items():
        write_whole(workdir / name, content)
    return rows


def grid_table(comparison: Comparison, context: TableContext = NO_CONTEXT) -> GridTable:
    """Return the main table of a grid: scores, differences from the base and sizes of its rows."""
    cells = [_cells(comparison, row) for row in comparison.rows]
    result = next(iter(comparison.results.values()))[0]
    split = f"{result['corpus']} {result['split']}"
    if comparison.rows[0].measures.whole_split:
        split = f"the {len(result['references']):,} sentences of {split}"
    return GridTable(
        f"Scores on {split}; mean over seeds ± their standard deviation.",
        [head for head, _ in cells[0]],
        [[text for _, text in row] for row in cells],
        [*_notes(comparison), *context.notes],
    )


def summary(rows: Sequence[VariantRow], results: Results, width: int) -> Table:
    """Return a short table of the rows' scores for a terminal of `width` columns."""
    result = next(iter(results.values()))[0]
    score = rows[0].measures.score
    signature = [f"{score.name}: {result[score.signature_field]}"] if score.signature_field else []
    caption = "\n".join([*signature, *_notes_on_code(rows)]) or None
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("variant", no_wrap=True)
    for column in ("seeds", "perplexity", "Δ", score.name, "Δ"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("against the noise", overflow="fold")
    for row in rows:
        texts = []
        for change in (row.perplexity, row.score):
            mean, difference = change.formatted
            texts += [mean, difference.partition(" ± ")[0]]
        label = in_lines(row.label, width - WIDTH_OF_FIGURES)
        table.add_row(label, str(row.num_seeds), *texts, row.verdict)
    return table


def _cells(comparison: Comparison, row: VariantRow) -> list[tuple[str, str]]:
    """Return the column head and the text of each cell in a row of the main table."""

    def of_measure(name: str, change: Change) -> list[tuple[str, str]]:
        mean, difference = change.formatted
        return [(name, mean), ("Δ ± s.e.", difference), ("p", change.formatted_p)]

    score, secondary, *_ = row.measures
    cells = [("variant", row.label), ("differs in", row.difference), ("seeds", str(row.num_seeds))]
    cells += of_measure("perplexity", row.perplexity) + of_measure(score.name, row.score)
    if row.bits_per_byte:
        cells += of_measure(BITS, row.bits_per_byte)
    if secondary and row.second_score:
        cells.append((secondary.name, f"{row.second_score.mean:.2f}"))
    cells += [
        ("parameters", f"{row.num_parameters:,}"),
        ("steps", row.formatted_steps),
        ("target tokens/s", f"{row.target_tokens_per_second:,.0f}"),
        ("against the noise", row.verdict),
    ]
    if any(row.published for row in comparison.rows):
        cells += zip(PAPER_HEADS, paper_cells(row.published), strict=True)
        cells.append(("interval contains paper's Δ", _intervals(comparison, row)))
    return cells


def _values(comparison: Comparison, row: VariantRow) -> dict[str, object]:
    results, (score, secondary, *_) = comparison.results[row.variant], row.measures
    values: dict[str, object] = {
        "variant": row.variant,
        "differs_in": row.difference,
        "seeds": row.num_seeds,
        "other_code": row.other_code,
    }
    measured = [("perplexity", row.perplexity), (score.field, row.score), (BITS, row.bits_per_byte)]
    measured += [(secondary.field, row.second_score)] if secondary else []
    for field, change in measured:
        if change:
            values |= {f"{field}_{part}": value for part, value in change._asdict().items()}
    values |= {
        "parameters": row.num_parameters,
        "steps": max(row.steps),
        "target_tokens_per_second": row.target_tokens_per_second,
        "perplexity_verdict": row.verdicts["perplexity"],
        f"{score.field}_verdict": row.verdicts[score.name],
    }
    if comparison.grid.published:
        values |= zip(PAPER_FIELDS, paper_values(row.published), strict=True)
        values["interval_contains_paper"] = _intervals(comparison, row)
    signatures = [m.signature_field for m in (score, secondary) if m and m.signature_field]
    return values | {name: results[0][name] for name in signatures}


def _intervals(comparison: Comparison, row: VariantRow) -> str:
    """Describe the 95% intervals of a row, and whether they contain the paper's differences."""
    grid = comparison.grid
    base_mean = next((r.perplexity.mean for r in comparison.rows if r.variant == grid.base), None)
    ppl_change, bleu_change = paper_differences(grid, row.variant)
    texts = {"perplexity": interval_and_paper(row.perplexity, ppl_change, base_mean)}
    if row.measures.bootstrap:
        texts[row.measures.score.name] = interval_and_paper(row.score, bleu_change)
    return "; ".join(f"{name}: {text}" for name, text in texts.items() if text)


def _notes(comparison: Comparison) -> list[str]:
    base, rows = comparison.grid.base, comparison.rows
    adjusted = f"by Dunnett's test for all comparisons with `{base}`"
    if comparison.comparisons == "all":
        adjusted = "by Holm's method for all pairs of rows"
    counts = {name: f"{runs[0]['target_tokens']:,}" for name, runs in comparison.results.items()}
    notes = [
        f"perplexity: exp of the mean negative log-likelihood per subword "
        f"({_by_value(counts)} of them).",
        *_definitions(comparison),
        f"Δ: the mean minus that of `{base}` under the same seeds, with its standard error. It is "
        "empty where the two were scored on other sentences or by another definition, and while "
        f"`{base}` has no result.",
        f"p: two-sided, adjusted {adjusted}. A difference is "
        f"within the noise, of seeds and sentences if both are known, if p >= {SIGNIFICANT}.",
        *power_notes(comparison),
    ]
    if rows[0].bits_per_byte:
        notes.append(f"{BITS}: the negative log-likelihood of all references per UTF-8 byte.")
    if any(row.published for row in rows):
        notes += _PAPER_NOTES
    return notes + _notes_on_code(rows)


def _by_value(values: Mapping[str, str]) -> str:
    """Format the common value of all rows, or each value with the names of its rows."""
    rows_of = grouped((value, row) for row, value in values.items())
    if len(rows_of) == 1:
        return next(iter(rows_of))
    return "; ".join(f"{value} ({', '.join(rows)})" for value, rows in rows_of.items())


def power_notes(comparison: Comparison) -> list[str]:
    """Return how many seeds detect a difference of 1% in perplexity, and of 0.5 in BLEU."""
    notes, measures = [], comparison.rows[0].measures
    targets = [("perplexity", "1% in perplexity", math.log(1.01))]
    if measures.bootstrap:
        targets.append((measures.score.field, f"0.5 {measures.score.name}", 0.5))
    for field, name, difference in targets:
        _, scores, effects_of_rows = comparison.measured[field]
        estimates = [effect for effect in effects_of_rows.values() if "seeds" in effect.noise]
        if not estimates:
            continue
        sentence_var = statistics.median(effect.sentence_variance for effect in estimates)
        seed_var = seed_noise(scores.scores)
        num_seeds = seeds_needed(difference, seed_var, sentence_var, len(estimates))
        need = f"{num_seeds} seeds of each row" if num_seeds else "more sentences, not more seeds"
        notes.append(f"To find a true difference of {name} in 4 of 5 grids takes {need}.")
    return notes


def contrast_tables(comparison: Comparison) -> list[GridTable]:
    """Return a table of all pairs, if requested, and one of the effects of two factors, if any."""
    grid, score = comparison.grid, comparison.rows[0].measures.score
    ppl_rows = comparison.measured["perplexity"].scores
    score_rows = comparison.measured[score.field].scores
    scored_rows = ppl_rows.scores.keys() & score_rows.scores.keys()
    rows = [r.variant for r in comparison.rows if not r.num_diverged and r.variant in scored_rows]
    all_pairs = pairs(grid.base, rows) if comparison.comparisons == "all" else {}
    contrasts_by_caption = {
        "Main effects and interaction of the two fields:": factorial(grid, rows),
        "Differences of all pairs:": all_pairs,
    }
    tables = []
    for caption, contrasts in contrasts_by_caption.items():
        if not contrasts or grid.base not in rows:
            continue
        ppl_effects = effects(ppl_rows, contrasts, "holm")
        score_effects = effects(score_rows, contrasts, "holm")
        body = [
            [name, *_format(ppl_effects[name], relative=True), *_format(score_effects[name])]
            for name in contrasts
        ]
        heads = ["contrast", "Δ perplexity", "95% interval", "p"]
        heads += [f"Δ {score.name}", "95% interval", "p"]
        note = "p: two-sided, adjusted by Holm's method for this table; intervals are not adjusted."
        tables.append(GridTable(caption, heads, body, [note]))
    return tables


def _format(effect: Effect, *, relative: bool = False) -> list[str]:
    """Format an effect, its 95% interval and its p-value; in percent if it is `relative`."""

    def text(value: float) -> str:
        if relative and value > _LARGEST_EXPONENT:
            return "diverged"
        return f"{100 * math.expm1(value):+.2f}%" if relative else f"{value:+.2f}"

    if effect.p_adjusted is None:
        return [text(effect.estimate), "", ""]
    low, high = (text(effect.estimate + margin) for margin in (-effect.margin, effect.margin))
    return [text(effect.estimate), f"[{low}, {high}]", p_text(effect.p_adjusted)]


def _notes_on_code(rows: Sequence[VariantRow]) -> list[str]:
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


def _definitions(comparison: Comparison) -> list[str]:
    lines, (score, secondary, is_bleu, _) = [], comparison.rows[0].measures
    for measure, suffix in ((score, ""), (secondary, ", the paper's BLEU" if is_bleu else "")):
        if field := measure and measure.signature_field:
            signatures = {n: f"`{seeds[0][field]}`" for n, seeds in comparison.results.items()}
            lines.append(f"{measure.name}{suffix}: {_by_value(signatures)}.")
    return lines


def csv_text(heads: Iterable[str], records: Iterable[Mapping[str, object]]) -> str:
    """Format records as CSV with the columns `heads`; missing values are empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [*heads], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def effect_figure(grid: Grid, rows: Sequence[VariantRow]) -> dict[str, bytes]:
    """Plot each variant's difference from the base, its 95% interval and the paper's difference.

    Returns:
      The figure as PNG and PDF, by the names in `FIGURES`.
    """
    with needs_extra("plots", FIGURES[0]):
        from matplotlib.ticker import PercentFormatter
    from t2t_jax.system.drawing import canvas, encode_figure

    base_row = next((row for row in rows if row.variant == grid.base), rows[0])
    other_rows = [row for row in rows if row.variant != grid.base]
    figure, panels = canvas(9, max(2.4, 1.5 + 0.3 * len(other_rows)), 2)
    ppl_axes, score_axes = panels
    score_axes.sharey(ppl_axes)
    marks = [paper_differences(grid, row.variant) for row in other_rows]
    scale = 1 / base_row.perplexity.mean
    _draw(ppl_axes, [row.perplexity for row in other_rows], [mark for mark, _ in marks], scale)
    _draw(score_axes, [row.score for row in other_rows], [mark for _, mark in marks], 1)
    ppl_axes.set_xlabel("perplexity, relative")
    score_axes.set_xlabel(base_row.measures.score.name)
    figure.supxlabel(f"difference from {grid.base}", fontsize="medium")
    ppl_axes.xaxis.set_major_formatter(PercentFormatter(1))
    ppl_axes.set_yticks(range(len(other_rows)), [row.label for row in other_rows])
    # Leave half a line above the first point and below the last; the first variant is at the top.
    ppl_axes.set_ylim(max(len(other_rows), 1) - 0.5, -0.5)
    score_axes.label_outer()
    lines = [line for axes in panels for line in axes.get_legend_handles_labels()[0]]
    handles = {str(line.get_label()): line for line in lines}
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=3)
    return {name: encode_figure(figure, name[-3:]) for name in FIGURES}


def _draw(axes: Any, changes: list[Change], marks: Sequence[float | None], scale: float) -> None:
    """Plot the scaled differences of one measure and the paper's markers, one line per variant."""
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
    for y, (change, mark) in enumerate(zip(changes, marks, strict=True)):
        if change.difference is None or perplexity_text(change.difference) == DIVERGED:
            change = Change(change.mean, None)  # too large for the axes
        if change.low is not None and change.high is not None:
            interval = scale * change.low, scale * change.high
            axes.plot(interval, (y, y), "|-", color="C0", label="95% interval, not adjusted")
        if change.difference is not None:
            axes.plot(scale * change.difference, y, "o", color="C0", label="this grid")
        if mark is not None:
            axes.plot(mark, y, "D", color="C1", fillstyle="none", label=_MARKED_AS)


def listing(grid: Grid, chosen: Sequence[str], num_seeds: int, width: int) -> Table:
    """Return a table of the chosen variants of a grid.

    The table lists differences from the base, numbers of parameters and steps, and the paper's
    results (Table 3), if any.
    """
    title = f"{len(chosen)} variants, {num_seeds} seed(s)"
    table = Table(box=None, title=title, title_justify="left")
    table.add_column("variant", no_wrap=True)
    table.add_column("differs in", overflow="fold")
    for heading in ("parameters", "steps", *(PAPER_HEADS if grid.published else ())):
        table.add_column(heading, justify="right")
    for variant_name in chosen:
        config = grid.variants[variant_name]
        table.add_row(
            in_lines(variant_name, width // 3),
            describe_difference(grid.variants[grid.base], config),
            f"{num_parameters(config.model, config.data.vocab_size):,}",
            f"{config.training.num_train_steps:,}",
            *(paper_cells(grid.published.get(variant_name)) if grid.published else ()),
        )
    return table


def in_lines(name: str, width: int) -> str:
    """Break a name after `,` or `=` into lines of at most `width` characters."""
    width = max(width, _NARROWEST)
    if len(name) <= width:
        return name
    words = name.replace(",", ", ").replace("=", "= ")
    lines = textwrap.wrap(words, width, break_on_hyphens=False)
    return "\n".join(line.replace("= ", "=").replace(", ", ",") for line in lines)


def paper_values(row: Table3Row | None) -> tuple[float | str | None, ...]:
    """Return perplexity, BLEU and parameters of a row of Table 3; None gives empty strings."""
    return ("", "", "") if row is None else (row.dev_perplexity, row.dev_bleu, row.parameters)


def paper_cells(row: Table3Row | None) -> tuple[str, ...]:
    """Format the results in a row of Table 3 as the paper prints them."""
    if row is None:
        return ("", "", "")
    return f"{row.dev_perplexity:.2f}", f"{row.dev_bleu:.1f}", str(row.parameters or "")


def paper_differences(grid: Grid, variant: str) -> tuple[float | None, float | None]:
    """Return the paper's differences of a variant from the base; None without a row in Table 3.

    Returns:
      The relative difference in perplexity and the absolute difference in BLEU.
    """
    row, base_row = grid.published.get(variant), grid.published.get(grid.base)
    if row is None or base_row is None:
        return None, None
    return row.dev_perplexity / base_row.dev_perplexity - 1, row.dev_bleu - base_row.dev_bleu


def interval_and_paper(change: Change, published: float | None, base: float | None = None) -> str:
    """Describe the 95% interval of a difference, and whether it contains the paper's difference.

    The text is empty if the interval or the paper's difference is unknown.

    Args:
      published: the paper's difference, from `paper_differences`.
      base: the base's mean, if `published` is relative; the text is then in percent.
    """
    if published is None or change.low is None or change.high is None:
        return ""
    if DIVERGED in (perplexity_text(change.low), perplexity_text(change.high)):
        return ""
    scale, paper_scale, unit = (1.0, 1.0, "") if base is None else (100 / base, 100.0, "%")
    low, high, paper = (change.low * scale, change.high * scale, published * paper_scale)
    verb = "contains" if low <= paper <= high else "does not contain"
    return f"[{low:+.1f}{unit}, {high:+.1f}{unit}] {verb} {paper:+.1f}{unit}"
