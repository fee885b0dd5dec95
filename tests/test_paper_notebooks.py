"""The notebooks of docs/paper: made of the pages, and run again with the printed numbers."""

import copy
import importlib.util
import re

import nbformat
import pytest

from tests.programs import ROOT

_SPEC = importlib.util.spec_from_file_location("make_notebooks", ROOT / "docs/make_notebooks.py")
make_notebooks = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_notebooks)

NOTEBOOKS = sorted((ROOT / "notebooks/paper").glob("*.ipynb"))
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]\d+)?")


def _page(path):
    return (ROOT / f"docs/paper/{path.stem}.md").read_text("utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_page_and_the_page_has_their_outputs(path):
    page, stored = _page(path), nbformat.read(path, as_version=4)
    assert make_notebooks.refreshed(page) == page, "run python docs/make_notebooks.py"
    assert make_notebooks.with_outputs(page, stored) == page
    for cell, expected in zip(stored.cells, make_notebooks.notebook_of(page).cells, strict=True):
        assert (cell.cell_type, cell.source) == (expected.cell_type, expected.source)
        assert cell.metadata == expected.metadata
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    assert page.count("<details>") >= 3  # the solutions of the exercises


def test_every_page_has_a_notebook():
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in make_notebooks.PAGES]


def test_notebooks_are_small():
    assert sum(path.stat().st_size for path in NOTEBOOKS) <= 4 * 2**20


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_the_stored_numbers_again(path):
    stored = nbformat.read(path, as_version=4)
    notebook = copy.deepcopy(stored)
    make_notebooks.execute(notebook)
    for cell, before in zip(notebook.cells, stored.cells, strict=True):
        texts = [make_notebooks.printed_by(x) for x in (cell, before)]
        assert _NUMBER.sub("#", texts[0]) == _NUMBER.sub("#", texts[1])
        found, expected = (list(map(float, _NUMBER.findall(text))) for text in texts)
        assert found == pytest.approx(expected, rel=0.02, abs=0.02)
