"""The columns of a grid's tables for the figures of Table 3."""

import pytest

from t2t_jax.paper import TABLE_3
from t2t_jax.sweep.paper_columns import (
    FIELDS,
    HEADS,
    Marks,
    paper_cells,
    paper_marks,
    paper_values,
    published_sign,
)


def test_every_row_has_as_many_cells_as_heads():
    for row in (TABLE_3["base"], TABLE_3["A-h1"], None):
        assert len(paper_cells(row)) == len(HEADS)
        assert len(paper_values(row)) == len(FIELDS)
    assert paper_cells(TABLE_3["A-h4"]) == ("5.00", "25.5", "")
    assert paper_cells(None) == ("", "", "")


def test_a_plot_marks_differences_from_the_base():
    marks = paper_marks(TABLE_3, "big", "base")
    assert marks == (pytest.approx(4.33 / 4.92 - 1), pytest.approx(0.6))
    assert paper_marks({"big": TABLE_3["big"]}, "big", "base") == (None, None)
    assert paper_marks(TABLE_3, "unknown", "base") == (None, None)


@pytest.mark.parametrize(
    ("bleu", "verdict", "sign"),
    [
        (0.2, "higher", "confirmed"),
        (-0.2, "higher", "contradicted"),
        (0.0, "lower", "contradicted"),
        (0.2, "within the noise of seeds", "within the noise"),
        (-0.2, "lower, noise of seeds unknown", "the same, noise of seeds unknown"),
        (-0.2, "higher, noise of seeds unknown", "another, noise of seeds unknown"),
        (0.2, "", ""),
        (None, "higher", ""),
    ],
)
def test_a_published_sign_is_confirmed_or_not_beyond_the_noise(bleu, verdict, sign):
    verdicts = {"perplexity": "higher", "sacreBLEU": verdict}
    assert published_sign(verdicts, Marks(bleu=bleu)) == sign


def test_a_sign_is_said_of_each_measure_that_is_published():
    verdicts = {"perplexity": "higher", "sacreBLEU": "higher"}
    assert published_sign(verdicts, Marks(0.1, 0.6)) == "confirmed"
    assert published_sign(verdicts, Marks(-0.1, 0.6)) == (
        "perplexity: contradicted; sacreBLEU: confirmed"
    )
