"""The figure of a grid's effects: each variant's difference from the base, with its interval."""

import io
from collections.abc import Sequence
from typing import Any

from t2t_jax.config.file import Grid
from t2t_jax.errors import needs_extra
from t2t_jax.sweep.comparison import Change, VariantRow
from t2t_jax.sweep.paper_columns import MARKED_AS, paper_marks
from t2t_jax.tasks.measures.perplexity import DIVERGED, perplexity_text

_METADATA = {"table.png": {"Software": None}, "table.pdf": {"CreationDate": None}}
"""Metadata that is omitted, so that equal figures have equal bytes."""
FIGURES = tuple(_METADATA)
"""The files with the figure in a grid's directory."""


def effect_figure(grid: Grid, rows: Sequence[VariantRow]) -> dict[str, bytes]:
    """Draw each variant's difference from the base with its 95% interval, beside the paper's.

    Returns:
      The figure as PNG and PDF, by the names in `FIGURES`.

    Raises:
      UserError: matplotlib is not installed.
    """
    with needs_extra("plots", FIGURES[0]):
        from matplotlib import rc_context
        from matplotlib.figure import Figure  # without pyplot: no display, no global state
        from matplotlib.ticker import PercentFormatter

    base = next((row for row in rows if row.variant == grid.base), rows[0])
    compared = [row for row in rows if row.variant != grid.base]
    inches = 9, max(2.4, 1.5 + 0.3 * len(compared))
    figure = Figure(figsize=inches, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    marks = [paper_marks(grid.published, row.variant, base.variant) for row in compared]
    scale, marks_of_perplexity = 1 / base.perplexity.mean, [mark.perplexity for mark in marks]
    _draw(left, [row.perplexity for row in compared], marks_of_perplexity, scale)
    _draw(right, [row.score for row in compared], [mark.bleu for mark in marks])
    left.set_xlabel("perplexity, relative")
    right.set_xlabel(base.measures.score.name)
    figure.supxlabel(f"difference from {grid.base}", fontsize="medium")
    left.xaxis.set_major_formatter(PercentFormatter(1))
    left.set_yticks(range(len(compared)), [row.shown for row in compared])
    # Half a row of room above the first point and below the last; the first row is at the top.
    left.set_ylim(max(len(compared), 1) - 0.5, -0.5)
    handles: dict[str, Any] = {}
    for axes in (left, right):
        handles |= {line.get_label(): line for line in axes.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=3)
    files = {}
    # Publishers ask for fonts of type 42 (TrueType); matplotlib's default is type 3.
    with rc_context({"pdf.fonttype": 42}):
        for name, metadata in _METADATA.items():
            file = io.BytesIO()
            figure.savefig(file, format=name[-3:], dpi=120, metadata=metadata)
            files[name] = file.getvalue()
    return files


def _draw(
    axes: Any, changes: Sequence[Change], marks: Sequence[float | None], scale: float = 1
) -> None:
    """Draw the scaled differences of one measure and the marks, one row each."""
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
    for at, (change, mark) in enumerate(zip(changes, marks, strict=True)):
        if change.difference is None or perplexity_text(change.difference) == DIVERGED:
            change = Change(change.mean, None)  # the axes have no place for it
        if change.low is not None and change.high is not None:
            ends = scale * change.low, scale * change.high
            axes.plot(ends, (at, at), "|-", color="C0", label="95% interval, not adjusted")
        if change.difference is not None:
            axes.plot(scale * change.difference, at, "o", color="C0", label="this grid")
        if mark is not None:
            axes.plot(mark, at, "D", color="C1", fillstyle="none", label=MARKED_AS)
