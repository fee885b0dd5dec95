"""The colours, axes and file formats that all pictures share."""

import io

from t2t_jax.errors import needs_extra

with needs_extra("plots", "a picture"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    """Return the content of a picture's file, which is of the kind svg or png."""
    content = io.BytesIO()
    # Keep text as text, and write the same picture as the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "t2t_jax"}):
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()
