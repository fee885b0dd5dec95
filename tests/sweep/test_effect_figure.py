"""The figure of effects: what it draws, where its points lie, and its files."""

from itertools import pairwise
from typing import NamedTuple

import pytest

from t2t_jax.config import Config
from t2t_jax.config.file import Grid
from t2t_jax.paper import TABLE_3
from t2t_jax.sweep.comparison import compare
from t2t_jax.sweep.tables import effect_figure
from tests.sweep.test_comparison import result


class Effect(NamedTuple):
    mean: float
    difference: float | None
    low: float | None = None
    high: float | None = None


def grid_of(*effects):
    """Return a grid with rows of Table 3, and its rows with a perplexity of 5 and these effects."""
    names = list(TABLE_3)[: len(effects)]
    grid = Grid({name: Config() for name in names}, TABLE_3)
    rows = compare(grid, {name: [result(5.0, 20.0)] for name in names}).rows
    every = zip(rows, effects, strict=True)
    return grid, [row._replace(perplexity=one, score=one) for row, one in every]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved, which are laid out but not rendered."""
    figures = []

    def savefig(figure, file, **_):
        figure.draw_without_rendering()
        figures.append(figure)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)
    return figures


def lines(axes):
    """Return the ends of the lines that the legend names."""
    return {
        line.get_label(): [float(x) for x in line.get_xdata()]
        for line in axes.get_legend_handles_labels()[0]
    }


def test_differences_and_their_intervals_are_drawn_beside_the_papers(drawn):
    effect_figure(*grid_of(Effect(5.0, None), Effect(5.5, 0.5, 0.25, 1.0)))
    left, right = drawn[0].axes
    assert left.get_xlabel() == "perplexity, relative"
    assert right.get_xlabel() == "sacreBLEU"
    paper = "the paper (BLEU: tokenized_split_bleu)"
    assert lines(left) == {
        "95% interval, not adjusted": pytest.approx([0.05, 0.2]),
        "this grid": pytest.approx([0.1]),
        paper: pytest.approx([5.29 / 4.92 - 1]),
    }
    assert lines(right)["95% interval, not adjusted"] == [0.25, 1.0]
    assert lines(right)[paper] == pytest.approx([24.9 - 25.8])
    effect_figure(*grid_of(Effect(5.0, None), Effect(5.5, 0.5)))
    assert "95% interval, not adjusted" not in lines(drawn[-1].axes[0])


@pytest.mark.parametrize("others", [1, 2, 19])
def test_points_lie_whole_inside_of_the_axes(drawn, others):
    effects = [Effect(5.0, 0.1 * i - 0.5, 0.1 * i - 0.9, 0.1 * i) for i in range(others)]
    effect_figure(*grid_of(Effect(5.0, None), *effects))
    for axes in drawn[0].axes:
        points = [line for line in axes.lines if line.get_marker() in ("o", "D", "|")]
        assert len(points) == 3 * others
        for line in points:
            radius = line.get_markersize() / 2 * drawn[0].dpi / 72  # pixels
            for x, y in axes.transData.transform(line.get_xydata()):
                assert axes.bbox.x0 + radius <= x <= axes.bbox.x1 - radius
                assert axes.bbox.y0 + radius <= y <= axes.bbox.y1 - radius
        heights = [axes.transData.transform((0, row))[1] for row in range(others)]
        assert all(above - below > 12 for above, below in pairwise(heights))


def test_labels_of_small_differences_differ(drawn):
    grid, rows = grid_of(Effect(5.0, None), Effect(5.001, 0.001, -0.002, 0.004))
    effect_figure(grid._replace(published={}), rows)
    labels = [tick.get_text() for tick in drawn[0].axes[0].get_xticklabels()]
    assert len(labels) > 3
    assert len({*labels}) == len(labels)


def test_equal_figures_have_equal_bytes():
    first, second = (
        effect_figure(*grid_of(Effect(5.0, None), Effect(5.5, 0.5, 0.25, 1.0))) for _ in range(2)
    )
    assert first == second
    assert first["table.png"].startswith(b"\x89PNG")
    assert first["table.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["table.pdf"]
    assert b"/Type3" not in first["table.pdf"]  # fonts that publishers refuse
