"""Plot the jobs of a run as bars over time."""

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


def job_bars(goodput: Goodput) -> Figure:
    """Draw one bar per job over time, divided by color into phases such as compilation."""
    # Jobs record only the total time of each phase, so the order within a bar means nothing.
    begins = [job.account["begun"] for job in goodput.jobs]
    origin = min(begins)
    unit, length = unit_of_time(sum(goodput.seconds.values()))
    figure, [axes] = canvas(10, min(_TALLEST, 1.8 + 0.3 * len(begins)))
    numbers = range(1, len(begins) + 1)
    edges = [(begin - origin) / length for begin in begins]
    for bucket in _PARTS:
        widths = [job.seconds[bucket] / length for job in goodput.jobs]
        axes.barh(numbers, widths, left=edges, color=_COLORS[bucket], label=BUCKETS[bucket])
        edges = [edge + width for edge, width in zip(edges, widths, strict=True)]
    axes.set(xlabel=f"{unit} since the first start", ylabel="job", ylim=(len(begins) + 0.6, 0.4))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper center", ncols=len(_PARTS), fontsize="small", frameon=False)
    return figure
