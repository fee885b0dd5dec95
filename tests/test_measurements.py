"""Documents quote the figures of result files."""

import runpy

from tests.programs import ROOT

MEASUREMENTS = runpy.run_path(str(ROOT / "docs/measurements.py"))
TABLE = """
["score"]
results = "scores.jsonl"
field = "bleu"
format = ".2f"
quoted = [["page.md", "It scores {} BLEU"]]
"""


def test_documents_quote_the_figures_of_the_result_files():
    assert list(MEASUREMENTS["differences"]()) == []


def test_a_page_with_another_figure_is_named_and_corrected(tmp_path):
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / MEASUREMENTS["TABLE"]).write_text(TABLE)
    (tmp_path / "scores.jsonl").write_text('{"bleu": 19.16}\n{"bleu": 18.666}\n')
    (page := tmp_path / "page.md").write_text("It scores 19.16 BLEU.")
    lines = list(MEASUREMENTS["differences"](tmp_path, write=True))
    assert lines == ["page.md: 'It scores {} BLEU' quotes 19.16, measured: 18.67 (score)"]
    assert page.read_text() == "It scores 18.67 BLEU."
