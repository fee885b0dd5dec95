"""Format tables for notebooks."""

from collections.abc import Iterable
from html import escape


def html_table(rows: Iterable[Iterable[str]]) -> str:
    """Format rows of texts as an HTML table, without scripts; the texts are escaped."""
    cells = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
