"""Plot several curves as text; only this module uses the plotting library."""

from collections.abc import Sequence

from t2t_jax.errors import needs_extra

_COLOURS = (4, 1, 2, 5, 6, 3)  # of the 16 that terminals have: blue, red, green, magenta, ...
_MARKERS = "*o+x#@=%"
_TICKS = 4

Curve = Sequence[tuple[int, float]]
"""The steps of a run at which a curve is known, rising, each with its finite value."""


def colour_of(number: int) -> int:
    """Return the colour of a curve by its index, as one of the terminal's 16 colours."""
    return _COLOURS[number % len(_COLOURS)]


def marker_of(number: int) -> str:
    """Return the character for a curve by its index, for plots without colours."""
    return _MARKERS[number % len(_MARKERS)]


def plot_in_terminal(
    title: str, curves: Sequence[Curve], width: int, height: int, coloured: bool
) -> str:
    """Draw curves in the same axes.

    Args:
      title: the title of the plot; the last value of a single curve is added to it.
      curves: at least one has a value; curves without any are skipped.
      coloured: draw each curve in its `colour_of`, by ANSI's escape codes, and in fine dots; else
        several curves are drawn with their `marker_of`.

    Raises:
      UserError: plotext is not installed.
    """
    with needs_extra("plots", "a plot in the terminal"):
        import plotext

    # Beyond, the ranges of the axes have no float.
    curves = [[(step, min(max(y, -1e300), 1e300)) for step, y in curve] for curve in curves]
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.title(f"{title}: {_number(curves[0][-1][1])}" if len(curves) == 1 else title)
    fine = coloured or len(curves) == 1
    for number, curve in enumerate(curves):
        if curve:
            steps, values = map(list, zip(*curve, strict=True))
            marker = "braille" if fine else marker_of(number)
            colour = {"color": colour_of(number)} if coloured else {}
            plotext.plot(steps, values, marker=marker, **colour)
    places = _ticks([step for curve in curves for step, _ in curve])
    plotext.xticks(places, [f"{place:,.0f}" for place in places])
    places = _ticks([value for curve in curves for _, value in curve])
    plotext.yticks(places, [_number(place) for place in places])
    drawn = plotext.build()
    return str(drawn if coloured else plotext.uncolorize(drawn))


def _ticks(values: Sequence[float]) -> list[float]:
    """Return the positions of an axis's ticks."""
    low, high = min(values), max(values)
    if low == high:
        return [low]
    return [low + (high - low) * n / (_TICKS - 1) for n in range(_TICKS)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.3g}"
