"""Plot the curves of runs in a terminal, once or whenever a log has grown, by plotext."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from t2t_jax.commands.tables import grid
from t2t_jax.config import Config
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.extras.watching.page import UNKNOWN, series
from t2t_jax.run.history import History, plateau, score_name
from t2t_jax.run.job import Goodput, read_goodput
from t2t_jax.run.profile import read_profiles
from t2t_jax.system.durations import duration
from t2t_jax.system.records import Record
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks import task_of
from t2t_jax.workdir import LOG, is_run, log_signature, read_config, read_log

_NARROWEST_PAIR = 80  # columns of a console in which two plots are side by side
_WIDEST_IN_FILE = 100  # columns of plots in a file or a pipe
_LOWEST, _HIGHEST = 8, 14  # lines of a plot
_TIMED_LINES = 10  # lines of the log from which the time of a step is estimated
_POLL_SECONDS = 0.1  # the longest sleep before a signal is noticed


Curve = Float[np.ndarray, "2 n"]
"""The steps of a run at which a figure is known, and the figure there."""


class WatchedRun(NamedTuple):
    """A run as it was read from its directory."""

    name: str
    """The name that distinguishes the run from the others."""
    config: Config
    """The config of the run."""
    log: Sequence[Record]
    """The records of its log so far."""
    history: History
    """The same by kind."""
    profiles: list[Path]
    """The directories of its profiles."""
    goodput: Goodput | None
    """What its time went to; None if it is not the only run, or has no accounts of its jobs."""


def show_runs(places: Sequence[Path], console: Console) -> None:
    """Print the page of runs once.

    Args:
      places: the run directories, or directories of grids, which hold runs.
      console: if it is not a terminal, the page is plain text.
    """
    workdirs = _runs_in(places)
    runs = _read(workdirs)
    for workdir, run in zip(workdirs, runs, strict=True):
        if workdir in places and not run.history.training:
            raise UserError(
                f"{workdir / LOG} has no line of training yet; wait for it with --follow"
            )
    console.print(_page(runs, console))


def follow_runs(places: Sequence[Path], console: Console, interval: float) -> int:
    """Draw the page of runs again whenever a log has changed, until all runs have ended.

    A grid never ends, as more of its runs may begin.

    Args:
      places: the run directories, or directories of grids, which hold runs.
      console: a terminal redraws the page; otherwise pages follow each other.
      interval: seconds between two checks of the logs.

    Returns:
      The number of the signal that ended the drawing; 0 if all runs have ended.
    """
    seen = _signature(places)  # before the logs are read, so that nothing they get is missed
    runs = _read(_runs_in(places))  # warns of damaged lines, only this time
    may_grow = not all(map(is_run, places))
    with StopSignal() as stop, Live(console=console, auto_refresh=False) as live:

        def draw() -> None:
            page = _page(runs, console)
            if console.is_terminal:
                live.update(page, refresh=True)
            else:
                console.print(page)

        draw()
        while not stop.number and (may_grow or not all(run.history.end for run in runs)):
            _sleep(interval, lambda: bool(stop.number))
            if (now := _signature(places)) != seen:
                seen = now
                with redirect_stderr(None):
                    runs = _read(_runs_in(places))
                draw()
            elif console.is_terminal:
                draw()  # the terminal's size may have changed
        return stop.number


def _sleep(seconds: float, until: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not until() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_SECONDS))


def _runs_in(places: Sequence[Path]) -> list[Path]:
    """Return the run directories at or below some paths; a path without any is kept."""
    return [run for place in places for run in _below(place, 2) or [place]]


def _below(place: Path, levels: int) -> list[Path]:
    """Return a run itself, or the runs some levels below, such as VARIANT/seedN in a grid."""
    if is_run(place):
        return [place]
    inner = sorted(place.iterdir()) if levels and place.is_dir() else []
    return [run for each in inner for run in _below(each, levels - 1)]


def _signature(places: Sequence[Path]) -> list[object]:
    """Return a value that changes when a log grows or a run begins."""
    return [log_signature(workdir) for workdir in _runs_in(places)]


def _read(workdirs: Sequence[Path]) -> list[WatchedRun]:
    runs = []
    for name, workdir in zip(_names(workdirs), workdirs, strict=True):
        config, log = read_config(workdir), read_log(workdir)
        goodput = read_goodput(workdir) if len(workdirs) == 1 else None
        runs.append(WatchedRun(name, config, log, History.of(log), read_profiles(workdir), goodput))
    return runs


def _names(workdirs: Sequence[Path]) -> list[str]:
    """Return the paths of the runs, relative to their innermost common directory."""
    if len(workdirs) == 1:
        return [str(workdirs[0])]
    paths = [os.path.abspath(workdir) for workdir in workdirs]
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, common) for path in paths]


def _page(runs: Sequence[WatchedRun], console: Console) -> Group:
    """Return the page: the table of runs, their warnings and ends, and their curves."""
    told = _told(runs)
    lines = console.height - len(runs) - len(told) - 3 if console.is_terminal else 100
    plots = _plots(runs, console, max(_LOWEST, min(_HIGHEST, lines // 3)))
    return Group(_table(runs), *told, *plots)


def _table(runs: Sequence[WatchedRun]) -> Table:
    """Return a table with a row for each run, which is the legend of the plots."""
    score = next((score_name(r.history.evaluations[-1]) for r in runs if r.history.evaluations), "")
    best, speed = f"best dev {score}".rstrip(), f"{_unit_of(runs)}s/s"
    table = grid("run", "step", "loss", best, speed, "waiting", "left", "warnings")
    table.header_style = "dim"
    for number, run in enumerate(runs):
        name = Text(run.name)
        if len(runs) > 1:
            marker, colour = _style_of(number)
            name = Text(f"{marker} {run.name}", f"color({colour})")
        table.add_row(name, *_cells(run))
    return table


def _cells(run: WatchedRun) -> list[str]:
    """Return the cells of a run's row, without its name."""
    history = run.history
    last = history.training[-1] if history.training else {"step": 0}
    since, left = plateau(history.evaluations), _seconds_left(run)
    return [
        f"{last['step']:,} / {run.config.training.num_train_steps:,}",
        _shown(last.get("loss"), ".3f"),
        UNKNOWN if since is None else f"{since.best:.2f} at {since.best_step:,}",
        _shown(last.get("target_tokens_per_second"), ",.0f"),
        _shown(last.get("data_wait"), ".0%"),
        "ended" if history.end else UNKNOWN if left is None else duration(left),
        f"{len(history.warnings)}",
    ]


def _shown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _seconds_left(run: WatchedRun) -> float | None:
    """Estimate the time to the last step from the last lines of the log; None if unknown.

    The median of their times per step is robust to a few evaluations or pauses.
    """
    steps, times = series(run.log, "train", "step", "time")[:, -_TIMED_LINES - 1 :]
    gaps = np.diff(steps)
    per_step = np.diff(times)[gaps > 0] / gaps[gaps > 0]
    if not len(per_step):
        return None
    return float(np.median(per_step)) * (run.config.training.num_train_steps - float(steps[-1]))


def _told(runs: Sequence[WatchedRun]) -> list[Text]:
    """Return the runs' warnings and profiles, and why runs have ended."""
    lines = []
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        lines += [Text(f"time: {run.goodput.summary()}")] if run.goodput else []
        lines += [
            Text(f"{name}step {record['step']:,}: warning: {record.get('text', '')}", "yellow")
            for record in run.history.warnings
        ]
        lines += [Text(f"{name}profile: {place}") for place in run.profiles]
        if run.history.end:
            lines.append(Text(f"{name}{run.history.end.get('text', '')}"))
    return lines


def _plots(runs: Sequence[WatchedRun], console: Console, height: int) -> list[RenderableType]:
    """Return plots of all figures that any run has, in two columns if there is room."""
    width = console.width if console.is_terminal else min(console.width, _WIDEST_IN_FILE)
    columns = 2 if width >= _NARROWEST_PAIR else 1
    coloured = console.color_system is not None
    drawn = [
        Text.from_ansi(plot_in_terminal(title, curves, width // columns, height, coloured))
        for title, curves in _curves(runs).items()
        if any(curve.size for curve in curves)
    ]
    rows = Table.grid()
    for first in range(0, len(drawn), columns):
        rows.add_row(*drawn[first : first + columns])
    return [rows] if drawn else [Text("nothing to draw yet")]


def _curves(runs: Sequence[WatchedRun]) -> dict[str, list[Curve]]:
    """Return the curves of the runs, empty if a run lacks the figure, by the title of the plot."""
    unit = _unit_of(runs)
    evaluations = [record for run in runs for record in run.history.evaluations]
    score = score_name(evaluations[-1]) if evaluations else "score"
    speed = "target tokens/s" if unit == "token" else f"{unit}s/s"
    figures = {
        f"training loss, nats per {unit}": ("train", "nll"),
        "perplexity on dev": ("dev", "perplexity"),
        f"{score} on dev": ("dev", "score"),
        "gradient norm": ("train", "gradient_norm"),
        speed: ("train", "target_tokens_per_second"),
        "learning rate": ("train", "learning_rate"),
    }
    return {
        title: [series(run.log, of, "step", figure) for run in runs]
        for title, (of, figure) in figures.items()
    }


def _unit_of(runs: Sequence[WatchedRun]) -> str:
    """Return the name of what the models predict, such as token; "target" if it differs."""
    units = {task_of(run.config.data.corpus, run.config.data.task).unit for run in runs}
    unit = units.pop() if len(units) == 1 else "target"
    return "token" if unit == "subword" else unit


_COLOURS = (4, 1, 2, 5, 6, 3)  # of the 16 that terminals have: blue, red, green, magenta, ...
_MARKERS = "*o+x#@=%"
_TICKS = 4


def _style_of(number: int) -> tuple[str, int]:
    """Return the character of a curve in plots without colours, and its terminal colour."""
    return _MARKERS[number % len(_MARKERS)], _COLOURS[number % len(_COLOURS)]


def plot_in_terminal(
    title: str, curves: Sequence[Curve], width: int, height: int, coloured: bool
) -> str:
    """Draw curves in the same axes.

    Args:
      title: the title of the plot; the last value of a single curve is added to it.
      curves: at least one has a value; curves without any are skipped.
      coloured: draw each curve in a colour, by ANSI's escape codes, and in fine dots; else several
        curves are drawn with a character each.
    """
    with needs_extra("plots", "a plot in the terminal"):
        import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.title(f"{title}: {_number(curves[0][1, -1])}" if len(curves) == 1 else title)
    fine = coloured or len(curves) == 1
    for number, curve in enumerate(curves):
        if curve.size:
            steps, values = curve.tolist()
            marker, colour = _style_of(number)
            style = {"color": colour} if coloured else {}
            plotext.plot(steps, values, marker="braille" if fine else marker, **style)
    places, levels = map(_ticks, np.concatenate(curves, axis=1))
    plotext.xticks(places, [f"{place:,.0f}" for place in places])
    plotext.yticks(levels, [_number(level) for level in levels])
    drawn = plotext.build()
    return str(drawn if coloured else plotext.uncolorize(drawn))


def _ticks(values: Float[np.ndarray, " n"]) -> list[float]:
    """Return the positions of an axis's ticks."""
    return np.unique(np.linspace(values.min(), values.max(), _TICKS)).tolist()


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.3g}"
