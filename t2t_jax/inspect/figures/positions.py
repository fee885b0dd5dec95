"""Pictures of the position encodings of section 3.5."""

import numpy as np
from matplotlib.figure import Figure

from t2t_jax.functional.position import sinusoidal_positions
from t2t_jax.inspect.figures.drawing import COLORS, MAP, canvas


def waves(d_model: int, length: int = 100) -> Figure:
    """Draw a few columns of the encodings: sine waves, slower from column to column."""
    table = np.asarray(sinusoidal_positions(length, d_model))
    figure, (axes,) = canvas(8, 3)
    columns = sorted({min(d_model - 1, d_model * part // 64) for part in (0, 4, 8, 16)})
    for column, color in zip(columns, COLORS, strict=False):
        axes.plot(table[:, column], color=color, label=f"column {column}")
    axes.set(xlabel="position", ylabel="encoding", xlim=(0, length - 1))
    axes.set_title(f"Positions as waves, d_model = {d_model} (section 3.5)")
    axes.legend(loc="upper right")
    return figure


def heat_map(d_model: int, length: int = 100) -> Figure:
    """Draw all numbers of the encodings, with a row for each position."""
    figure, (axes,) = canvas(8, 3.5)
    table = np.asarray(sinusoidal_positions(length, d_model))
    image = axes.imshow(table, aspect="auto", cmap=MAP, vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xlabel="column", ylabel="position")
    axes.set_title("Position encodings: sines in even columns, cosines in odd ones")
    figure.colorbar(image, ax=axes)
    return figure


def products_by_distance(d_model: int, length: int = 100) -> Figure:
    """Draw the dot products of encodings, which depend on the distance of two positions alone.

    A pair of sine and cosine of the same frequency gives sin a sin b + cos a cos b = cos(a - b).
    """
    table = np.asarray(sinusoidal_positions(length, d_model))
    figure, (left, right) = canvas(9, 3.5, 2)
    products = table @ table.T
    image = left.imshow(products, cmap=MAP, interpolation="nearest")
    left.set(xlabel="position", ylabel="position", title="dot product of two encodings")
    figure.colorbar(image, ax=left)
    middle = length // 2
    apart = np.arange(length) - middle
    right.plot(apart, products[middle], color=COLORS[0])
    right.set(xlabel="distance", ylabel="dot product", title=f"from position {middle}")
    return figure
