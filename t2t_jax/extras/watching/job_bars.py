"""The picture of the jobs of a run in time."""

from itertools import cycle

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from t2t_jax.run.job import BUCKETS, REPEATED, Goodput
from t2t_jax.run.progress import PHASES
from t2t_jax.system.drawing import COLORS, canvas
from t2t_jax.system.durations import unit_of_time

_PARTS = (*PHASES, REPEATED)
_COLORS = dict(zip(BUCKETS, cycle((*COLORS, "#999999", "#F0E442")), strict=False))
_TALLEST = 40.0  # inches


def job_bars(found: Goodput) -> Figure:
    """Draw a bar for each job at the time when it ran, with what its time went to in colours.

    A job does not record when it was in which phase, so each part of a bar is the sum of the time
    of one kind.
    """
    begins = [job.account["begun"] for job in found.jobs]
    origin = min(begins)
    unit, length = unit_of_time(sum(found.seconds.values()))
    figure, [axes] = canvas(10, min(_TALLEST, 1.8 + 0.3 * len(begins)))
    numbers = range(1, len(begins) + 1)
    lefts = [(begin - origin) / length for begin in begins]
    for bucket in _PARTS:
        widths = [job.seconds[bucket] / length for job in found.jobs]
        axes.barh(numbers, widths, left=lefts, color=_COLORS[bucket], label=BUCKETS[bucket])
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set(xlabel=f"{unit} since the first start", ylabel="job", ylim=(len(begins) + 0.6, 0.4))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper center", ncols=len(_PARTS), fontsize="small", frameon=False)
    return figure
