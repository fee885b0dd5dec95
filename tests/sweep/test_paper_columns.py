"""The columns of a grid's tables for the figures of Table 3."""

from collections import namedtuple

import pytest

from t2t_jax.config.file import Grid
from t2t_jax.paper import TABLE_3
from t2t_jax.sweep.tables import interval_and_paper, paper_differences

GRID = Grid(dict.fromkeys(TABLE_3), TABLE_3)


def test_a_plot_marks_differences_from_the_base():
    marks = paper_differences(GRID, "big")
    assert marks == (pytest.approx(4.33 / 4.92 - 1), pytest.approx(0.6))
    lone = GRID._replace(published={"big": TABLE_3["big"]})
    assert paper_differences(lone, "big") == paper_differences(GRID, "unknown") == (None, None)


Change = namedtuple("Change", ["low", "high"])
"""The ends of the 95% interval of a difference, as in the table's rows."""


@pytest.mark.parametrize(
    ("change", "published", "text"),
    [
        (Change(-0.3, 1.2), 0.9, "[-0.3, +1.2] contains +0.9"),
        (Change(-0.3, 1.2), -0.9, "[-0.3, +1.2] does not contain -0.9"),
        (Change(0.1, 1.2), 1.2, "[+0.1, +1.2] contains +1.2"),
        (Change(None, None), 0.9, ""),
        (Change(-0.3, 1.2), None, ""),
    ],
)
def test_a_cell_says_whether_our_interval_contains_the_papers_difference(change, published, text):
    assert interval_and_paper(change, published) == text


def test_differences_in_perplexity_are_compared_in_percent_of_the_base():
    """One head: 5.29 beside 4.92 is 7.5% more; 1 to 3 more than 20 are 5% to 15% more."""
    published = paper_differences(GRID, "A-h1")[0]
    text = interval_and_paper(Change(1.0, 3.0), published, base=20.0)
    assert text == "[+5.0%, +15.0%] contains +7.5%"
