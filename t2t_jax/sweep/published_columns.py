"""What a grid's tables show of the figures that papers publish for its variants.

There are two kinds of them: rows of Table 3, whose experiment a grid repeats, and differences that
other papers publish, which are of other experiments. This is the one place that tells them apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from t2t_jax.config.file import PublishedFigures
from t2t_jax.paper import Table3Row
from t2t_jax.paper.published import PublishedDifference


class Marks(NamedTuple):
    """Where a plot marks a published difference from the base; None where there is none."""

    perplexity: float | None
    """Relative difference in perplexity."""
    bleu: float | None
    """Difference in BLEU."""


@runtime_checkable
class PublishedColumns(Protocol):
    """The columns that tables have for published figures of one kind.

    Cells are asked for by the name of the variant, and are empty if nothing is published of it.
    """

    listed_as: ClassVar[str]
    """Head of the one column in the listing of variants."""
    heads: ClassVar[Sequence[str]]
    """Heads of the columns of the Markdown table."""
    fields: ClassVar[Sequence[str]]
    """Heads of the columns of the CSV file."""
    marked_as: ClassVar[str]
    """What the plot's legend calls the marks."""

    def listed(self, variant: str) -> str:
        """The cell in the listing of variants."""

    def cells(self, variant: str) -> Sequence[str]:
        """The cells in the Markdown table."""

    def notes(self) -> Sequence[str]:
        """The lines below the Markdown table that say what the cells are."""

    def values(self, variant: str) -> Sequence[Any]:
        """The cells in the CSV file."""

    def marks(self, variant: str, base: str) -> Marks:
        """The variant's differences from the base for the plot."""


def published_columns(
    published: Mapping[str, PublishedFigures], variants: Iterable[str]
) -> PublishedColumns | None:
    """The columns for some variants of a grid; None for a grid of which nothing is published.

    Args:
      published: the figures by variant, all of one kind.
      variants: the variants that a table has, in its order.
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
        """Parameters in millions."""
        row = self._rows.get(variant)
        return "" if row is None or row.parameters is None else f"{row.parameters:g}"

    def cells(self, variant: str) -> Sequence[str]:
        """Perplexity, BLEU and parameters in millions."""
        row = self._rows.get(variant)
        if row is None:
            return [""] * len(self.heads)
        return [f"{row.dev_perplexity:.2f}", f"{row.dev_bleu:.1f}", self.listed(variant)]

    def notes(self) -> Sequence[str]:
        """A line on what the figures measure."""
        measures = "perplexity per word-piece, tokenized_split_bleu, parameters in millions"
        return [f"- paper: Table 3, on newstest2013: {measures}."]

    def values(self, variant: str) -> Sequence[Any]:
        """Perplexity, BLEU and parameters in millions."""
        row = self._rows.get(variant)
        if row is None:
            return [""] * len(self.fields)
        return [row.dev_perplexity, row.dev_bleu, row.parameters]

    def marks(self, variant: str, base: str) -> Marks:
        """The row's differences from that of the base."""
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
        """The two scores and whose they are."""
        each = self._differences.get(variant)
        return "" if each is None else f"{each.scores} ({each.source.citation})"

    def cells(self, variant: str) -> Sequence[str]:
        """The two scores, whose they are, and the number of the note on their experiment."""
        each = self._differences.get(variant)
        if each is None:
            return [""]
        return [f"{self.listed(variant)} [{self._numbers[each.source, each.setting]}]"]

    def notes(self) -> Sequence[str]:
        """A line on how to read the differences, and one for each experiment."""
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
        """The difference with all that is known of it."""
        each = self._differences.get(variant)
        if each is None:
            return [""] * len(self.fields)
        scores = (each.base, each.variant, each.difference)
        return [each.measure, *scores, each.source.reference, each.setting]

    def marks(self, variant: str, base: str) -> Marks:
        """The difference, if it is in BLEU; the base is that of the other experiment."""
        each = self._differences.get(variant)
        return Marks(None, each.difference if each and each.measure == "BLEU" else None)
