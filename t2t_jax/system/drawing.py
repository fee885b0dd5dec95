"""The colours, axes and file formats that all pictures share."""

import io

from t2t_jax.errors import needs_extra

with needs_extra("plots", "a picture"):
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METADATA = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
"""Metadata that is omitted, so that equal pictures have equal bytes."""
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours that colour-blind people tell apart (Okabe and Ito 2008)."""
MAP = "viridis"
"""A scale of colours that colour-blind people can read; cividis is grey in its middle."""


class Picture(Figure):
    """A picture that notebooks show as the value of a cell."""

    def _repr_png_(self) -> bytes:
        return encoded(self, "png")


def canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a picture, of a size in inches, with axes in columns; it needs no display."""
    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def encoded(figure: Figure, kind: str) -> bytes:
    """Return the content of a picture's file, which is of the kind svg, png or pdf."""
    content = io.BytesIO()
    # Keep text as text. Publishers ask for fonts of type 42 (TrueType); the default is type 3.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "t2t_jax", "pdf.fonttype": 42}):
        figure.savefig(content, format=kind, dpi=150, metadata=_METADATA[kind])
    return content.getvalue()
