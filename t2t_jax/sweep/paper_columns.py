"""The columns with Table 3's figures, for grids that repeat its experiments."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from t2t_jax.paper import Table3Row

HEADS = "paper: perplexity", "BLEU", "parameters"
"""The heads of the columns for readers."""
FIELDS = "paper_perplexity", "paper_bleu", "paper_parameters_millions"
"""The heads of the columns of the CSV file."""
MARKED_AS = "the paper (BLEU: tokenized_split_bleu)"
"""The name of the paper's marks in the plot's legend."""
NOTES = (
    "paper: Table 3, on newstest2013: perplexity per word-piece, tokenized_split_bleu, parameters "
    "in millions.",
    "published sign: confirmed if the difference here has the sign of the published one and is not "
    "within the noise, contradicted if it is not within the noise and has another sign.",
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


def published_sign(verdicts: Mapping[str, str], marks: Marks) -> str:
    """Return whether the differences of a row have the signs of the paper's.

    Args:
      verdicts: the verdicts on the row's differences in perplexity and, if it is a score, in
        BLEU, from `VariantRow.verdicts`.
      marks: the paper's differences.
    """
    parts = {}
    for (name, verdict), published in zip(verdicts.items(), marks, strict=False):
        if published is None or not verdict:
            continue
        sign, _, unknown = verdict.partition(", ")
        is_same = sign == {1: "higher", -1: "lower"}.get(np.sign(published), "equal")
        words = "the same" if is_same else "another"
        if not unknown:
            words = "confirmed" if is_same else "contradicted"
        is_noise = verdict.startswith("within the noise")
        parts[name] = "within the noise" if is_noise else f"{words}{unknown and f', {unknown}'}"
    if len({*parts.values()}) == 1:
        return next(iter(parts.values()))
    return "; ".join(f"{name}: {words}" for name, words in parts.items())
