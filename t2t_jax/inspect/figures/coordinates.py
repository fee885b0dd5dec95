"""The picture of a coordinate check."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from t2t_jax.inspect.coordinates import Coordinates
from t2t_jax.inspect.figures.drawing import COLORS, canvas

_LINES = "-", "--", ":"


def curves(found: Mapping[str, Coordinates]) -> Figure:
    """Draw the sizes of parts at the start, and of their changes, over the width or the depth.

    Args:
      found: the coordinate checks by their titles, which have two pictures each.
    """
    figure, axes = canvas(4.2 * len(found) * 2, 4.5, 2 * len(found))
    for number, (title, one) in enumerate(found.items()):
        sides = {"at the start": one.start, "change": one.change}
        for place, (label, parts) in zip(axes[2 * number :], sides.items(), strict=False):
            for at, (part, sizes) in enumerate(parts.items()):
                color, line = COLORS[at % len(COLORS)], _LINES[at // len(COLORS) % len(_LINES)]
                place.plot(one.values, sizes.mean(1), line, color=color, label=part, marker=".")
            place.set(xscale="log", yscale="log", xlabel=one.name, title=f"{title}: {label}")
            place.set_xticks(one.values, [str(value) for value in one.values])
            place.minorticks_off()
    axes[0].set_ylabel("root mean square")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
