"""The columns of a grid's tables for the figures that papers publish for its variants.

There are two kinds of figures: rows of Table 3, whose experiment a grid repeats, and differences
that other papers publish, from other experiments. Only this module tells the two apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from t2t_jax.config.file import PublishedFigures
from t2t_jax.paper import Table3Row
from t2t_jax.paper.published import PublishedDifference


class Marks(NamedTuple):
    """The places of a published difference from the base in a plot; None for no mark."""

    perplexity: float | None
    """The relative difference in perplexity."""
    bleu: float | None
    """The difference in BLEU."""


@runtime_checkable
class PublishedColumns(Protocol):
    """The columns of tables for published figures of one kind.

    Cells are given by the name of the variant, and are empty if nothing is published of it.
    """

    listed_as: ClassVar[str]
    """The head of the one column in the listing of variants."""
    heads: ClassVar[Sequence[str]]
    """The heads of the columns of the Markdown table."""
    fields: ClassVar[Sequence[str]]
    """The heads of the columns of the CSV file."""
    marked_as: ClassVar[str]
    """The name of the marks in the plot's legend."""

    def listed(self, variant: str) -> str:
        """Return the variant's cell in the listing of variants."""

    def cells(self, variant: str) -> Sequence[str]:
        """Return the variant's cells in the Markdown table."""

    def notes(self) -> Sequence[str]:
        """Return the lines below the Markdown table that explain the cells."""

    def values(self, variant: str) -> Sequence[Any]:
        """Return the variant's cells in the CSV file."""

    def marks(self, variant: str, base: str) -> Marks:
        """Return the variant's differences from the base for the plot."""


def published_columns(
    published: Mapping[str, PublishedFigures], variants: Iterable[str]
) -> PublishedColumns | None:
    """Return the columns for some variants of a grid; None if the grid has no published figures.

    Args:
      published: the figures by variant, all of one kind.
      variants: the variants of a table, in its order.
    """
    if not published:
        return None
    shown = {name: published[name] for name in variants if name in published}
    if any(isinstance(figures, PublishedDifference) for figures in published.values()):
        return DifferenceColumns(
            {name: row for name, row in shown.items() if isinstance(row, PublishedDifference)}
        )
    return Table3Columns({name: row for name, row in shown.items() if isinstance(row, Table3Row)})


class Table3Columns:
    """The columns for rows of Table 3: figures of the experiment that the grid repeats."""

    listed_as: ClassVar[str] = "paper (millions)"
    heads: ClassVar[Sequence[str]] = ("paper: perplexity", "BLEU", "parameters")
    fields: ClassVar[Sequence[str]] = (
        "paper_perplexity",
        "paper_bleu",
        "paper_parameters_millions",
    )
    marked_as: ClassVar[str] = "the paper (BLEU: tokenized_split_bleu)"

    def __init__(self, rows: Mapping[str, Table3Row]) -> None:
        """Keep the rows, by variant."""
        self._rows = rows

    def listed(self, variant: str) -> str:
        """Return the row's number of parameters, in millions."""
        row = self._rows.get(variant)
        return "" if row is None or row.parameters is None else f"{row.parameters:g}"

    def cells(self, variant: str) -> Sequence[str]:
        """Return perplexity, BLEU and parameters in millions as text."""
        row = self._rows.get(variant)
        if row is None:
            return [""] * len(self.heads)
        return [f"{row.dev_perplexity:.2f}", f"{row.dev_bleu:.1f}", self.listed(variant)]

    def notes(self) -> Sequence[str]:
        """Return a line that says what the figures measure."""
        measures = "perplexity per word-piece, tokenized_split_bleu, parameters in millions"
        return [f"- paper: Table 3, on newstest2013: {measures}."]

    def values(self, variant: str) -> Sequence[Any]:
        """Return perplexity, BLEU and parameters in millions as numbers."""
        row = self._rows.get(variant)
        if row is None:
            return [""] * len(self.fields)
        return [row.dev_perplexity, row.dev_bleu, row.parameters]

    def marks(self, variant: str, base: str) -> Marks:
        """Return the row's differences from that of the base."""
        row, other = self._rows.get(variant), self._rows.get(base)
        if row is None or other is None:
            return Marks(None, None)
        return Marks(row.dev_perplexity / other.dev_perplexity - 1, row.dev_bleu - other.dev_bleu)


class DifferenceColumns:
    """The column for differences that other papers publish, with a note on each experiment."""

    listed_as: ClassVar[str] = "published elsewhere"
    heads: ClassVar[Sequence[str]] = ("published elsewhere",)
    fields: ClassVar[Sequence[str]] = (
        "published_measure",
        "published_base",
        "published_variant",
        "published_difference",
        "published_source",
        "published_setting",
    )
    marked_as: ClassVar[str] = "published elsewhere"

    def __init__(self, differences: Mapping[str, PublishedDifference]) -> None:
        """Keep the differences, by variant, and number their experiments in this order."""
        self._differences = differences
        experiments = dict.fromkeys((each.source, each.setting) for each in differences.values())
        self._numbers = {experiment: at for at, experiment in enumerate(experiments, start=1)}

    def listed(self, variant: str) -> str:
        """Return the two scores and the citation of their paper."""
        each = self._differences.get(variant)
        return "" if each is None else f"{each.scores} ({each.source.citation})"

    def cells(self, variant: str) -> Sequence[str]:
        """Return the two scores, their citation, and the number of the note on their experiment."""
        each = self._differences.get(variant)
        if each is None:
            return [""]
        return [f"{self.listed(variant)} [{self._numbers[each.source, each.setting]}]"]

    def notes(self) -> Sequence[str]:
        """Return a line on how to read the differences, and one for each experiment."""
        return [
            "- published elsewhere: a difference from another experiment, from that experiment's "
            "base to its variant. Model, corpus, training and BLEU are its own, so the scores are "
            "not to be compared with those of this table.",
            *(
                f"- [{number}] {source.reference}: {setting}."
                for (source, setting), number in self._numbers.items()
            ),
        ]

    def values(self, variant: str) -> Sequence[Any]:
        """Return the measure, both scores, the difference, the source and the setting."""
        each = self._differences.get(variant)
        if each is None:
            return [""] * len(self.fields)
        scores = (each.base, each.variant, each.difference)
        return [each.measure, *scores, each.source.reference, each.setting]

    def marks(self, variant: str, base: str) -> Marks:
        """Return the difference, if it is in BLEU; the experiment's own base replaces `base`."""
        each = self._differences.get(variant)
        return Marks(None, each.difference if each and each.measure == "BLEU" else None)
