"""The columns with Table 3's figures, for grids that repeat its experiments."""

from collections.abc import Mapping
from typing import NamedTuple

from t2t_jax.paper import Table3Row
from t2t_jax.sweep.comparison import Change
from t2t_jax.tasks.measures.perplexity import DIVERGED, perplexity_text

HEADS = "paper: perplexity", "BLEU", "parameters"
"""The heads of the columns for readers."""
FIELDS = "paper_perplexity", "paper_bleu", "paper_parameters_millions"
"""The heads of the columns of the CSV file."""
MARKED_AS = "the paper (BLEU: tokenized_split_bleu)"
"""The name of the paper's marks in the plot's legend."""
NOTES = (
    "paper: Table 3, on newstest2013: perplexity per word-piece, tokenized_split_bleu, parameters "
    "in millions.",
    "interval contains paper's Δ: the 95% interval of the difference here, and whether it contains "
    "the paper's difference; of perplexities in percent of the base's.",
)
"""The notes below the table that explain the columns."""


class Marks(NamedTuple):
    """The positions of the paper's differences from the base in a plot; None for no mark."""

    perplexity: float | None = None
    """The relative difference in perplexity."""
    bleu: float | None = None
    """The difference in BLEU."""


def paper_values(row: Table3Row | None) -> tuple[float | str | None, ...]:
    """Return the figures of a row of Table 3 in the order of `FIELDS`; empty texts for None."""
    return ("", "", "") if row is None else (row.dev_perplexity, row.dev_bleu, row.parameters)


def paper_cells(row: Table3Row | None) -> tuple[str, ...]:
    """Return the figures of a row of Table 3 as text, as the paper prints them."""
    if row is None:
        return ("", "", "")
    size = "" if row.parameters is None else f"{row.parameters:g}"
    return f"{row.dev_perplexity:.2f}", f"{row.dev_bleu:.1f}", size


def paper_marks(published: Mapping[str, Table3Row], variant: str, base: str) -> Marks:
    """Return the paper's differences of a variant from the base."""
    row, of_base = published.get(variant), published.get(base)
    if row is None or of_base is None:
        return Marks()
    relative = row.dev_perplexity / of_base.dev_perplexity - 1
    return Marks(relative, row.dev_bleu - of_base.dev_bleu)


def interval_and_published(
    change: Change, published: float | None, base: float | None = None
) -> str:
    """Return the 95% interval of a difference and whether it contains the paper's difference.

    The text is empty if either of the two is unknown.

    Args:
      change: our difference from the base.
      published: the paper's difference, as in `Marks`.
      base: the base's mean if the paper's difference is relative to the base; the text is then in
        percent. None means an absolute difference.
    """
    if published is None or change.low is None or change.high is None:
        return ""
    if DIVERGED in (perplexity_text(change.low), perplexity_text(change.high)):
        return ""
    ours, theirs, unit = (1.0, 1.0, "") if base is None else (100 / base, 100.0, "%")
    low, high, paper = change.low * ours, change.high * ours, published * theirs
    verb = "contains" if low <= paper <= high else "does not contain"
    return f"[{low:+.1f}{unit}, {high:+.1f}{unit}] {verb} {paper:+.1f}{unit}"
