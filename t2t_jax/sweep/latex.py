"""Format the table of a grid in LaTeX. The document needs the package booktabs."""

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
$headers
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
_REPLACEMENTS = {
    "\\": r"\textbackslash{}",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # a bare [ begins an option of the preceding command
    "--": "-{}-",  # LaTeX prints -- as a dash
    "->": r"$\to$",
    ">=": r"$\geq$",
    "±": r"$\pm$",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "Δ": r"$\Delta$",
}
"""LaTeX code for characters that are special in LaTeX or missing in its fonts."""
_SPECIAL = re.compile("|".join(map(re.escape, sorted(_REPLACEMENTS, key=len, reverse=True))))
_MINUS = re.compile(r"(?<![\w.)])-(?=[\d.])")
_NUMBER = re.compile(r"[+-]?\.?\d")


def grid_latex(
    caption: str, rows: Sequence[VariantRow], columns: Sequence[str] = (), notes: Sequence[str] = ()
) -> str:
    """Format the table of a grid in LaTeX.

    Args:
      columns: column names from left to right. The default (variant, perplexity, score and
        parameters) fits into a text column of 80 mm.
      notes: paragraphs below the table.
    """
    for name in columns:
        if name not in _COLUMNS:
            hint = did_you_mean(name, _COLUMNS, f"choose from {', '.join(_COLUMNS)}")
            raise UserError(f"table.tex has no column {quote(name)}; {hint}")
        if columns.count(name) > 1:
            raise UserError(f"--columns names {quote(name)} twice; name each column once")
    columns = columns or _DEFAULT_COLUMNS
    score_name = rows[0].measures.score.name
    headers = [_COLUMNS[name][0].format(score=score_name) for name in columns]
    cells = [[_COLUMNS[name][1](row) for name in columns] for row in rows]
    if any(name.endswith("_effect") for name in columns):
        notes = ["Δ: difference from the base, with its 95% interval, not adjusted.", *notes]
    return latex(caption, headers, cells, notes)


def latex(
    caption: str, headers: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    r"""Format a table in LaTeX, for `\input` in a document.

    Number columns are right-aligned. Columns of long texts wrap.

    Args:
      rows: table rows, each with one cell per header.
      notes: paragraphs below the table, with code between backticks.
    """
    columns = list(zip(*rows, strict=True)) or [()] * len(headers)
    return _TABLE.substitute(
        caption=_escape(caption),
        columns="".join(map(_alignment, columns)),
        headers=_table_line(headers),
        rows="".join(f"{_table_line(row)}\n" for row in rows),
        notes="".join(f"{_paragraph(note)}\\par\n" for note in notes),
    )


def _effect(change: Change) -> str:
    """Format a difference and its 95% confidence interval, as `-0.35 [-0.60, -0.10]`."""
    values = (value for value in (change.difference, change.low, change.high) if value is not None)
    difference, *interval = [perplexity_text(value, sign="+") for value in values] or [""]
    return f"{difference} [{', '.join(interval)}]" if interval else difference


_COLUMNS: dict[str, tuple[str, Callable[[VariantRow], str]]] = {
    "variant": ("variant", lambda row: row.label),
    "differs_in": ("differs in", lambda row: row.difference),
    "seeds": ("seeds", lambda row: str(row.num_seeds)),
    "perplexity": ("perplexity", lambda row: row.perplexity.formatted[0]),
    "perplexity_effect": ("Δ perplexity", lambda row: _effect(row.perplexity)),
    "perplexity_p": ("p", lambda row: row.perplexity.formatted_p),
    "score": ("{score}", lambda row: row.score.formatted[0]),
    "score_effect": ("Δ {score}", lambda row: _effect(row.score)),
    "score_p": ("p", lambda row: row.score.formatted_p),
    "parameters": ("params (M)", lambda row: f"{row.num_parameters / 1e6:,.2f}"),
    "steps": ("steps", lambda row: row.formatted_steps),
}
"""The header and the cell formatter of each column of `table.tex`."""


def _alignment(column: Sequence[str]) -> str:
    if any(column) and all(_NUMBER.match(cell) for cell in column if cell):
        return "r"
    return "p{40mm}" if max(map(len, column), default=0) > _WRAP_LENGTH else "l"


def _table_line(cells: Sequence[str]) -> str:
    escaped_cells = map(_escape, cells)
    # Variant names such as `d_ff=512,num_heads=1` may wrap after a comma.
    breakable_cells = (re.sub(r",(?=[^\W\d])", r",\\allowbreak{}", cell) for cell in escaped_cells)
    return f"{' & '.join(breakable_cells)} \\\\"


def _paragraph(text: str) -> str:
    """Format a paragraph in LaTeX. Code between backticks may wrap at vertical bars."""
    parts = [_escape(part) for part in text.split("`")]
    for index in range(1, len(parts), 2):
        code = parts[index].replace(r"\textbar{}", r"\textbar{}\allowbreak{}")
        parts[index] = rf"\texttt{{{code}}}"
    return "".join(parts)


def _escape(text: str) -> str:
    """Escape the special characters of LaTeX, and typeset minus signs before numbers."""
    quoted_text = re.sub(r'"([^"]*)"', r"``\1''", _MINUS.sub("−", text))
    return _SPECIAL.sub(lambda match: _REPLACEMENTS[match[0]], quoted_text).replace("−", "$-$")
