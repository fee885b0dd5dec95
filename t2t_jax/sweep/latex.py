"""The table of a grid as LaTeX, for a document that has the package booktabs."""

import re
from collections.abc import Callable, Sequence
from string import Template

from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.sweep.comparison import Change, VariantRow
from t2t_jax.tasks.measures.perplexity import perplexity_text

_DEFAULT_COLUMNS = "variant", "perplexity", "score", "parameters"
_TABLE = Template(
    r"""% Written by t2t-jax. The document needs \usepackage{booktabs}.
\begin{table}
\centering\footnotesize
\setlength{\tabcolsep}{4pt}
\caption{$caption}
\begin{tabular}{@{}$columns@{}}
\toprule
$heads
\midrule
$rows\bottomrule
\end{tabular}
\par\medskip
{\raggedright
$notes}
\end{table}
"""
)
_WRAP_LENGTH = 24
"""The number of characters above which a text column wraps."""
_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # otherwise it begins an option of the preceding command
    "--": "-{}-",  # otherwise it is a dash
    "->": r"$\to$",
    ">=": r"$\geq$",
    "±": r"$\pm$",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "Δ": r"$\Delta$",
}
"""Replacements for signs that have another meaning in LaTeX, or that its fonts lack."""
_SIGN = re.compile("|".join(re.escape(sign) for sign in sorted(_SIGNS, key=len, reverse=True)))
_MINUS = re.compile(r"(?<![\w.)])-(?=[\d.])")
_FIGURE = re.compile(r"[+-]?\.?\d")


def grid_latex(
    caption: str, rows: Sequence[VariantRow], columns: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Return the table of a grid as LaTeX, with some of its columns.

    Args:
      columns: names of columns from left to right; empty for variant, perplexity, score and
        parameters, which fit into a text column of 80 mm.
      notes: further paragraphs below the table.
    """
    for name in columns:
        if name not in _COLUMNS:
            hint = did_you_mean(name, _COLUMNS, f"choose from {', '.join(_COLUMNS)}")
            raise UserError(f"table.tex has no column {quote(name)}; {hint}")
        if columns.count(name) > 1:
            raise UserError(f"--columns names {quote(name)} twice; name each column once")
    columns = columns or _DEFAULT_COLUMNS
    score = rows[0].measures.score.name
    heads = [_COLUMNS[name][0].format(score=score) for name in columns]
    cells = [[_COLUMNS[name][1](row) for name in columns] for row in rows]
    if any(name.endswith("_effect") for name in columns):
        notes = ["Δ: difference from the base, with its 95% interval, not adjusted.", *notes]
    return latex(caption, heads, cells, notes)


def latex(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    r"""Return a table as LaTeX, for `\input` in a document.

    Args:
      rows: the cells, one for each head. Columns of numbers are right-aligned, and columns of
        long texts wrap.
      notes: paragraphs below the table, with code between backticks.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(heads)
    return _TABLE.substitute(
        caption=_escaped(caption),
        columns="".join(map(_alignment, columns)),
        heads=_line(heads),
        rows="".join(f"{_line(row)}\n" for row in rows),
        notes="".join(f"{_note(note)}\\par\n" for note in notes),
    )


def _effect(change: Change) -> str:
    """Return a difference with its 95% interval, as `-0.35 [-0.60, -0.10]`."""
    numbers = (x for x in (change.difference, change.low, change.high) if x is not None)
    difference, *ends = [perplexity_text(x, sign="+") for x in numbers] or [""]
    return f"{difference} [{', '.join(ends)}]" if ends else difference


_COLUMNS: dict[str, tuple[str, Callable[[VariantRow], str]]] = {
    "variant": ("variant", lambda row: row.shown),
    "differs_in": ("differs in", lambda row: row.difference),
    "seeds": ("seeds", lambda row: str(row.num_seeds)),
    "perplexity": ("perplexity", lambda row: row.perplexity.shown[0]),
    "perplexity_effect": ("Δ perplexity", lambda row: _effect(row.perplexity)),
    "perplexity_p": ("p", lambda row: row.perplexity.shown_p),
    "score": ("{score}", lambda row: row.score.shown[0]),
    "score_effect": ("Δ {score}", lambda row: _effect(row.score)),
    "score_p": ("p", lambda row: row.score.shown_p),
    "parameters": ("params (M)", lambda row: f"{row.num_parameters / 1e6:,.2f}"),
    "steps": ("steps", lambda row: row.shown_steps),
}
"""The head of each column of `table.tex`, and a function that returns the text of a row."""


def _alignment(column: Sequence[str]) -> str:
    if any(column) and all(_FIGURE.match(cell) for cell in column if cell):
        return "r"  # figures
    return "p{40mm}" if max(map(len, column), default=0) > _WRAP_LENGTH else "l"


def _line(cells: Sequence[str]) -> str:
    escaped = map(_escaped, cells)
    # Names of rows, as `d_ff=512,num_heads=1`, may wrap after a comma.
    breakable = (re.sub(r",(?=[^\W\d])", r",\\allowbreak{}", cell) for cell in escaped)
    return f"{' & '.join(breakable)} \\\\"


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
    return _SIGN.sub(lambda match: _SIGNS[match[0]], quoted).replace("−", "$-$")
