"""The table of a grid as LaTeX, for a document that has the packages booktabs and graphicx."""

import re
from collections.abc import Sequence

_HEADER = (
    r"""% Written by t2t-jax. The document needs \usepackage{booktabs} and \usepackage{graphicx}."""
)
_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # which would else begin an option of the command before
    "--": "-{}-",  # which would else be a dash
    "->": r"$\to$",
    ">=": r"$\geq$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
}
"""What stands for the signs that mean something else in LaTeX, or that its fonts lack."""
_SIGN = re.compile("|".join(re.escape(sign) for sign in sorted(_SIGNS, key=len, reverse=True)))
_MINUS = re.compile(r"(?<![\w.)])-(?=[\d.])")
_FIGURE = re.compile(r"[+-]?\.?\d")


def latex(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    r"""Return a table as LaTeX, for `\input` in a document.

    Args:
      rows: the cells, one for each head. Columns of numbers are right-aligned.
      notes: paragraphs below the table, with code between backticks.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    kinds = "".join("r" if _is_of_figures(column) else "l" for column in columns)
    lines = [
        _HEADER,
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(caption)}}}",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        _line(heads),
        r"\midrule",
        *map(_line, rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\par\medskip",
        r"{\footnotesize\raggedright",
        *(f"{_note(note)}\\par" for note in notes),
        "}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _is_of_figures(column: Sequence[str]) -> bool:
    return any(column) and all(_FIGURE.match(cell) for cell in column if cell)


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(map(_escaped, cells))} \\\\"


def _note(text: str) -> str:
    """Return a paragraph; code between backticks may break across lines."""
    pieces = [_escaped(piece) for piece in text.split("`")]
    for odd in range(1, len(pieces), 2):
        code = pieces[odd].replace(r"\textbar{}", r"\textbar{}\allowbreak{}")
        pieces[odd] = rf"\texttt{{{code}}}"
    return "".join(pieces)


def _escaped(text: str) -> str:
    """Return a text with all special characters escaped, and minus signs before numbers."""
    quoted = re.sub(r'"([^"]*)"', r"``\1''", _MINUS.sub("−", text))
    return _SIGN.sub(lambda found: _SIGNS[found[0]], quoted).replace("−", "$-$")
