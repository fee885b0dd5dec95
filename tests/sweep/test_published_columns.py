"""The columns of a grid's tables for what papers publish of its variants."""

import pytest

from t2t_jax.paper import TABLE_3
from t2t_jax.paper.published import DIFFERENCES
from t2t_jax.sweep.published_columns import Marks, published_columns, published_sign

VARIANTS = ["base", "rotary", "gelu", "swish"]
DIFFERING = {name: DIFFERENCES[name] for name in VARIANTS[1:]}


def test_differences_are_listed_with_both_scores_and_their_paper():
    columns = published_columns(DIFFERING, VARIANTS)
    assert columns.listed_as == "published elsewhere"
    assert [columns.cells(name).listed for name in VARIANTS] == [
        "",
        "BLEU 27.3 -> 27.5 (Su et al. 2021)",
        "BLEU 26.62 -> 26.47 (Narang et al. 2021)",
        "BLEU 26.62 -> 26.75 (Narang et al. 2021)",
    ]


def test_an_experiment_has_one_note_however_many_variants_are_from_it():
    columns = published_columns(DIFFERING, VARIANTS)
    assert [columns.cells(name).shown[0].partition(") ")[2] for name in VARIANTS] == [
        "",
        "[1]",
        "[2]",
        "[2]",
    ]
    general, *notes = columns.notes
    assert "a difference from another experiment" in general
    assert "not to be compared with those of this table" in general
    rotary, gelu = DIFFERENCES["rotary"], DIFFERENCES["gelu"]
    assert notes == [
        f"[1] {rotary.source.reference}: {rotary.setting}.",
        f"[2] {gelu.source.reference}: {gelu.setting}.",
    ]


def test_notes_are_of_the_variants_that_the_table_has():
    columns = published_columns(DIFFERING, ["base", "swish"])
    assert [note.split()[0] for note in columns.notes[1:]] == ["[1]"]
    assert columns.cells("swish").shown[0].endswith("[1]")
    assert published_columns(DIFFERING, ["base"]).fields == columns.fields


def test_every_kind_of_figures_has_as_many_cells_as_heads():
    for published in (DIFFERING, TABLE_3):
        columns = published_columns(published, ["base", "rotary", "big"])
        for name in ("base", "rotary", "big", "unknown"):
            assert len(columns.cells(name).shown) == len(columns.heads)
            assert len(columns.cells(name).values) == len(columns.fields)
    values = published_columns(DIFFERING, VARIANTS).cells("gelu").values
    assert values[:4] == ["BLEU", 26.62, 26.47, -0.15]


def test_a_grid_of_which_nothing_is_published_has_no_columns():
    assert published_columns({}, VARIANTS) is None


def test_a_plot_marks_differences_in_bleu_beside_those_of_the_grid():
    columns = published_columns(DIFFERING, VARIANTS)
    assert columns.marks("rotary", "base") == (None, 0.2)
    assert columns.marks("base", "base") == (None, None)
    in_perplexity = {"rotary": DIFFERENCES["multi_query_log_perplexity"]}
    assert published_columns(in_perplexity, VARIANTS).marks("rotary", "base") == (None, None)
    marks = published_columns(TABLE_3, ["base", "big"]).marks("big", "base")
    assert marks == (pytest.approx(4.33 / 4.92 - 1), pytest.approx(0.6))
    assert published_columns(TABLE_3, ["big"]).marks("big", "base") == (None, None)


@pytest.mark.parametrize(
    ("bleu", "verdict", "said"),
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
def test_a_published_sign_is_confirmed_or_not_beyond_the_noise(bleu, verdict, said):
    verdicts = {"perplexity": "higher", "sacreBLEU": verdict}
    assert published_sign(verdicts, Marks(bleu=bleu)) == said


def test_a_sign_is_said_of_each_measure_that_is_published():
    verdicts = {"perplexity": "higher", "sacreBLEU": "higher"}
    assert published_sign(verdicts, Marks(0.1, 0.6)) == "confirmed"
    assert published_sign(verdicts, Marks(-0.1, 0.6)) == (
        "perplexity: contradicted; sacreBLEU: confirmed"
    )
