"""Colors, axes and file formats of all plots."""

import io

from t2t_jax.errors import needs_extra

with needs_extra("plots", "a picture"):
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METADATA = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
"""Metadata to omit, so that identical plots have identical bytes."""
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""A colorblind-safe palette (Okabe and Ito 2008)."""
MAP = "viridis"
"""A colorblind-safe color map; cividis is gray in its middle."""


class Picture(Figure):
    """A figure that notebooks display as the value of a cell."""

    def _repr_png_(self) -> bytes:
        return encode_figure(self, "png")


def canvas(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Make a figure, of a size in inches, with `columns` axes side by side; needs no display."""
    figure = Picture(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def encode_figure(figure: Figure, kind: str) -> bytes:
    """Encode a figure as svg, png or pdf."""
    content = io.BytesIO()
    # Keep text as text. Publishers ask for fonts of type 42 (TrueType); the default is type 3.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "t2t_jax", "pdf.fonttype": 42}):
        figure.savefig(content, format=kind, dpi=150, metadata=_METADATA[kind])
    return content.getvalue()
