"""The columns of a grid's tables for the figures that papers publish for its variants.

There are two kinds of figures: rows of Table 3, whose experiment a grid repeats, and differences
that other papers publish, from other experiments. Only this module tells the two apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from t2t_jax.config.file import PublishedFigures
from t2t_jax.paper import Table3Row
from t2t_jax.paper.published import PublishedDifference


class Marks(NamedTuple):
    """The places of a published difference from the base in a plot; None for no mark."""

    perplexity: float | None = None
    """The relative difference in perplexity."""
    bleu: float | None = None
    """The difference in BLEU."""


class _Cells(NamedTuple):
    """The cells of a variant: in the listing of variants, in the Markdown table, and in CSV."""

    listed: str
    shown: Sequence[str]
    values: Sequence[Any]


@dataclass(frozen=True)
class PublishedColumns:
    """The columns of tables for published figures of one kind.

    Cells are given by the name of the variant, and are empty if nothing is published of it.
    """

    listed_as: str
    """The head of the one column in the listing of variants."""
    heads: Sequence[str]
    """The heads of the columns of the Markdown table."""
    fields: Sequence[str]
    """The heads of the columns of the CSV file."""
    marked_as: str
    """The name of the marks in the plot's legend."""
    notes: Sequence[str]
    """The notes below the table that explain the cells."""
    rows: Mapping[str, _Cells]
    """The cells of the variants of which something is published."""
    figures: Mapping[str, PublishedFigures]
    """The published figures of these variants."""

    def cells(self, variant: str) -> _Cells:
        """Return the variant's cells."""
        nothing = _Cells("", [""] * len(self.heads), [""] * len(self.fields))
        return self.rows.get(variant, nothing)

    def marks(self, variant: str, base: str) -> Marks:
        """Return the variant's differences from the base for the plot.

        A difference of another experiment is from that experiment's own base, and in BLEU alone.
        """
        own, other = self.figures.get(variant), self.figures.get(base)
        if isinstance(own, PublishedDifference):
            return Marks(bleu=own.difference if own.measure == "BLEU" else None)
        if own is None or not isinstance(other, Table3Row):
            return Marks()
        relative = own.dev_perplexity / other.dev_perplexity - 1
        return Marks(relative, own.dev_bleu - other.dev_bleu)


SIGN_NOTE = (
    "published sign: confirmed if the difference here has the sign of the published one and is not "
    "within the noise, contradicted if it is not within the noise and has another sign."
)


def published_sign(verdicts: Mapping[str, str], marks: Marks) -> str:
    """Return whether the differences of a row have the signs of the published ones.

    Args:
      verdicts: the verdicts on the row's differences in perplexity and, if its score is one, in
        BLEU, as `VariantRow.verdicts` has them.
      marks: the published differences.
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


def published_columns(
    published: Mapping[str, PublishedFigures], variants: Iterable[str]
) -> PublishedColumns | None:
    """Return the columns for the variants of a table, in its order.

    The published figures are all of one kind; None is returned if there are none.
    """
    if not published:
        return None
    shown = {name: published[name] for name in variants if name in published}
    if any(isinstance(figures, PublishedDifference) for figures in published.values()):
        return _differences(
            {name: row for name, row in shown.items() if isinstance(row, PublishedDifference)}
        )
    return _of_table_3({name: row for name, row in shown.items() if isinstance(row, Table3Row)})


def _of_table_3(rows: Mapping[str, Table3Row]) -> PublishedColumns:
    """Return the columns for rows of Table 3: figures of the experiment that the grid repeats."""
    cells = {}
    for name, row in rows.items():
        size = "" if row.parameters is None else f"{row.parameters:g}"
        shown = [f"{row.dev_perplexity:.2f}", f"{row.dev_bleu:.1f}", size]
        cells[name] = _Cells(size, shown, [row.dev_perplexity, row.dev_bleu, row.parameters])
    measures = "perplexity per word-piece, tokenized_split_bleu, parameters in millions"
    return PublishedColumns(
        listed_as="paper (millions)",
        heads=("paper: perplexity", "BLEU", "parameters"),
        fields=("paper_perplexity", "paper_bleu", "paper_parameters_millions"),
        marked_as="the paper (BLEU: tokenized_split_bleu)",
        notes=[f"paper: Table 3, on newstest2013: {measures}."],
        rows=cells,
        figures=rows,
    )


def _differences(rows: Mapping[str, PublishedDifference]) -> PublishedColumns:
    """Return the column for differences that other papers publish, with a note on each experiment.

    The experiments are numbered in the order of the variants.
    """
    experiments = list(dict.fromkeys((each.source, each.setting) for each in rows.values()))
    cells = {}
    for name, each in rows.items():
        text = f"{each.scores} ({each.source.citation})"
        number = experiments.index((each.source, each.setting)) + 1
        scores = (each.base, each.variant, each.difference)
        values = [each.measure, *scores, each.source.reference, each.setting]
        cells[name] = _Cells(text, [f"{text} [{number}]"], values)
    names = "measure", "base", "variant", "difference", "source", "setting"
    return PublishedColumns(
        listed_as="published elsewhere",
        heads=("published elsewhere",),
        fields=[f"published_{name}" for name in names],
        marked_as="published elsewhere",
        notes=[
            "published elsewhere: a difference from another experiment, from that experiment's "
            "base to its variant. Model, corpus, training and BLEU are its own, so the scores are "
            "not to be compared with those of this table.",
            *(
                f"[{number}] {source.reference}: {setting}."
                for number, (source, setting) in enumerate(experiments, start=1)
            ),
        ],
        rows=cells,
        figures=rows,
    )
