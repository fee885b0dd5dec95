"""The table of a grid as LaTeX: its columns, its width, and signs that LaTeX takes."""

import re
import shutil
import subprocess

import pytest
from matplotlib import get_data_path
from matplotlib.ft2font import FT2Font

from t2t_jax.errors import UserError
from t2t_jax.sweep.latex import grid_latex, latex
from t2t_jax.sweep.tables import NO_CONTEXT, TableContext, write_tables
from tests.sweep.test_comparison import GRID, result
from tests.sweep.test_effect_figure import Effect, grid_of

HOSTILE = r"""\input{x} 50% & #1 $a_b$ {c} ~d^2 <p> x|y,z -- "q" -3 ± .5 -> Δ [1] 'r'"""


def read(text):
    """What a reader sees of a line of LaTeX, by the meaning of its commands."""
    shown = {
        r"\textbackslash{}": "\\",
        r"\textasciitilde{}": "~",
        r"\textasciicircum{}": "^",
        r"\textless{}": "<",
        r"\textgreater{}": ">",
        r"\textbar{}": "|",
        r"\allowbreak{}": "",
        r"$\to$": "->",
        r"$\geq$": ">=",
        r"$\pm$": "±",
        r"\textdagger{}": "†",
        r"$\Delta$": "Δ",
        "$-$": "-",
        "``": '"',
        "''": '"',
        "-{}-": "--",
        "{[}": "[",
    } | {rf"\{sign}": sign for sign in "&%$#_{}"}
    text = re.sub(r"\\texttt\{((?:\\.|\{\}|[^{}\\])*)\}", r"`\1`", text)
    return re.sub("|".join(map(re.escape, shown)), lambda found: shown[found[0]], text)


BASE = [result(5.0, 20.0), result(5.2, 22.0, seed=1)]
ONE_HEAD = [result(6.0, 10.0), result(6.4, 14.0, seed=1) | {"steps": 200}]


def table(folder, context=NO_CONTEXT, columns=()):
    """Return the cells of `table.tex` in the order of the page, and the paragraphs below them."""
    write_tables(GRID, {"base": BASE, "A-h1": ONE_HEAD}, folder, context, columns=columns)
    lines = (folder / "table.tex").read_text("utf-8").splitlines()
    cells = [re.split(r"(?<!\\) & ", line[:-3]) for line in lines if line.endswith(r" \\")]
    notes = [read(line.removesuffix(r"\par")) for line in lines if line.endswith(r"\par")]
    return [[read(cell) for cell in row] for row in cells], notes


def test_the_default_columns_are_those_of_a_paper(tmp_path):
    cells, notes = table(tmp_path, TableContext(["Left out: words/seed0."]))
    assert cells == [
        ["variant", "perplexity", "sacreBLEU", "params (M)"],
        ["base", "5.10 ± 0.14", "21.00 ± 1.41", "63.05"],
        ["A-h1", "6.20 ± 0.28", "12.00 ± 2.83", "63.05"],
    ]
    assert notes == ["sacreBLEU: `nrefs:1`.", "Left out: words/seed0."]
    text = (tmp_path / "table.tex").read_text("utf-8")
    assert r"\begin{tabular}{@{}lrrr@{}}" in text
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert re.findall(r"\\end\{(\w+)\}", text) == opened[::-1] == ["tabular", "table"]
    assert "resizebox" not in text


def test_other_columns_can_be_chosen(tmp_path):
    cells, _ = table(tmp_path, columns=["variant", "differs_in", "seeds", "steps"])
    assert cells[1:] == [["base", "", "2", "300"], ["A-h1", "num_heads=1", "2", "300 / 200"]]
    for columns, message in (
        (["scores"], "no column 'scores'; did you mean score"),
        (["x"], "no column 'x'; choose from variant, differs_in"),
        ([""], "no column ''"),
        (["seeds", "steps", "seeds"], "--columns names 'seeds' twice"),
    ):
        with pytest.raises(UserError, match=message):
            table(tmp_path, columns=columns)


def test_an_effect_has_its_interval_and_a_mark_its_note():
    _, rows = grid_of(Effect(20.0, None), Effect(19.5, -0.5, -1.25, 0.25), Effect(20.5, 0.5))
    rows[1] = rows[1]._replace(other_code="loss.py")
    text = grid_latex("Scores", rows, ["variant", "score_effect"], ["† loss.py"])
    assert [line for line in text.splitlines() if line.endswith((r" \\", r"\par"))] == [
        r"variant & $\Delta$ sacreBLEU \\",
        r"base &  \\",
        r"A-h1 \textdagger{} & $-$0.50 {[}$-$1.25, +0.25] \\",
        r"A-h4 & +0.50 \\",
        r"$\Delta$: difference from the base, with its 95\% interval, not adjusted.\par",
        r"\textdagger{} loss.py\par",
    ]


def width_in_mm(text, points):
    """Return the width of a cell in Computer Modern, the font that LaTeX has by default."""
    font = FT2Font(f"{get_data_path()}/fonts/ttf/cmr10.ttf")
    font.set_size(100, 72)
    signs = text.replace("±", "+").replace("_", "-")  # as wide, in other fonts of the family
    advances = [font.load_char(ord(sign)).linearHoriAdvance / 65536 for sign in signs]
    return sum(advances) / 100 * points * 25.4 / 72.27


def test_the_default_columns_fit_into_80_mm():
    """The font has 8 points, and a gap between columns has twice \\tabcolsep, which is 4 points."""
    widest = ["post_norm_gated", "304.01 ± 18.15", "27.30 ± 0.15", "params (M)"]
    width = sum(width_in_mm(cell, points=8) for cell in widest) + 3 * 8 * 25.4 / 72.27
    assert 70 < width <= 80


def test_signs_of_latex_stand_for_themselves():
    text = latex(HOSTILE, ["x", "y"], [[HOSTILE, "-1"]], [f"{HOSTILE}: `{HOSTILE}`."])
    line = next(line for line in text.splitlines() if line.endswith(r" & $-$1 \\"))
    assert read(line.removesuffix(r" & $-$1 \\")) == HOSTILE
    assert r"\begin{tabular}{@{}p{40mm}r@{}}" in text
    assert r"y,\allowbreak{}z" in line  # as in the name of a row, whose lines may break there
    bare = re.sub(r"\\[&%$#_{}]|\$\\?\w*-?\$", "", line.removesuffix(r" & $-$1 \\"))
    assert not re.search(r"[%&#_^~|<>$]", bare)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_makes_a_page_of_it(tmp_path):
    rows = [[HOSTILE, "1,000"], ["base", ""]]
    (tmp_path / "table.tex").write_text(latex(HOSTILE, ["[x]", HOSTILE], rows, [f"`{HOSTILE}`"]))
    (tmp_path / "page.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\n"
        "\\begin{document}\\input{table.tex}\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Missing character" not in done.stdout
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
