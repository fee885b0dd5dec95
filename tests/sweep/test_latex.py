"""The table of a grid as LaTeX: the cells and notes of the Markdown, which LaTeX takes."""

import re
import shutil
import subprocess

import pytest

from t2t_jax.sweep.latex import latex
from t2t_jax.sweep.tables import Beside, write_tables
from tests.sweep.test_comparison import GRID, result

HOSTILE = r"""\input{x} 50% & #1 $a_b$ {c} ~d^2 <p> x|y -- "q" -3 ± .5 -> Δ [1] 'r'"""


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
        r"$\Delta$": "Δ",
        "$-$": "-",
        "``": '"',
        "''": '"',
        "-{}-": "--",
        "{[}": "[",
    } | {rf"\{sign}": sign for sign in "&%$#_{}"}
    text = re.sub(r"\\texttt\{((?:\\.|\{\}|[^{}\\])*)\}", r"`\1`", text)
    return re.sub("|".join(map(re.escape, shown)), lambda found: shown[found[0]], text)


def test_the_cells_and_notes_are_those_of_the_markdown(tmp_path):
    base = [result(5.0, 20.0), result(5.2, 22.0, seed=1)]
    results = {"base": base, "A-h1": [result(6.0, 10.0)]}
    write_tables(GRID, results, tmp_path, Beside(["Left out: words/seed0."]))
    markdown = (tmp_path / "table.md").read_text().splitlines()
    lines = (tmp_path / "table.tex").read_text().splitlines()
    heads, rule, *rows = [line[2:-2].split(" | ") for line in markdown if line.startswith("|")]
    found = [re.split(r"(?<!\\) & ", line[:-3]) for line in lines if line.endswith(r" \\")]
    assert [[read(cell) for cell in cells] for cells in found] == [heads, *rows]
    notes = [read(line.removesuffix(r"\par")) for line in lines if line.endswith(r"\par")]
    assert notes == [line[2:] for line in markdown if line.startswith("- ")]
    [kinds] = re.findall(r"begin\{tabular\}\{(\w+)\}", "\n".join(lines))
    assert len(kinds) == len(rule)
    assert kinds.startswith("llrr")


def test_signs_of_latex_stand_for_themselves():
    text = latex(HOSTILE, ["x", "y"], [[HOSTILE, "-1"]], [f"{HOSTILE}: `{HOSTILE}`."])
    line = next(line for line in text.splitlines() if line.endswith(r" & $-$1 \\"))
    assert read(line.removesuffix(r" & $-$1 \\")) == HOSTILE
    assert "\\begin{tabular}{lr}" in text
    bare = re.sub(r"\\[&%$#_{}]|\$\\?\w*-?\$", "", line.removesuffix(r" & $-$1 \\"))
    assert not re.search(r"[%&#_^~|<>$]", bare)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_makes_a_page_of_it(tmp_path):
    rows = [[HOSTILE, "1,000"], ["base", ""]]
    (tmp_path / "table.tex").write_text(latex(HOSTILE, ["[x]", HOSTILE], rows, [f"`{HOSTILE}`"]))
    (tmp_path / "page.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\usepackage{graphicx}\n"
        "\\begin{document}\\input{table.tex}\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Missing character" not in done.stdout
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
