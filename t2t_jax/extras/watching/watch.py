"""Plot the curves of runs in a terminal with plotext, once or whenever a log grows."""

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
from t2t_jax.extras.watching.page import UNKNOWN, has_own_loss, metric_names, series
from t2t_jax.run.history import History, plateau, score_name
from t2t_jax.run.job import Goodput, read_goodput
from t2t_jax.run.profile import read_profiles
from t2t_jax.system.durations import duration
from t2t_jax.system.records import Record
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks import task_of
from t2t_jax.workdir import LOG, is_run, log_signature, read_config, read_log

_NARROWEST_PAIR = 80  # columns of a console with room for two plots side by side
_WIDEST_IN_FILE = 100  # columns of plots in a file or a pipe
_MIN_LINES, _MAX_LINES = 8, 14  # of a plot
_TIMED_LINES = 10  # log lines that estimate the time per step
_POLL_SECONDS = 0.1  # the longest delay before a signal takes effect


Curve = Float[np.ndarray, "2 n"]
"""The steps at which a run logged a figure, and the values of the figure."""


class WatchedRun(NamedTuple):
    """A run, as last read from its directory."""

    name: str
    """The name that distinguishes the run from other runs."""
    config: Config
    log: Sequence[Record]
    """The records of the log so far."""
    history: History
    """The records of the log, grouped by kind."""
    profiles: list[Path]
    """The directories of the profiles."""
    goodput: Goodput | None
    """The use of time; None if several runs are shown, or the run has no records of its jobs."""


def show_runs(paths: Sequence[Path], console: Console) -> None:
    """Print the table and curves of runs once.

    Args:
      paths: run directories, or sweep directories that hold runs.
      console: prints plain text if it is not a terminal.
    """
    workdirs = _runs_in(paths)
    runs = _read_runs(workdirs)
    for workdir, run in zip(workdirs, runs, strict=True):
        if workdir in paths and not run.history.training:
            raise UserError(f"{workdir / LOG} has no training step yet; wait for it with --follow")
    console.print(_page(runs, console))


def follow_runs(paths: Sequence[Path], console: Console, interval: float) -> int:
    """Redraw the table and curves of runs whenever a log changes, until all runs have ended.

    A sweep never ends, because more of its runs may start.

    Args:
      paths: run directories, or sweep directories that hold runs.
      interval: seconds between two checks of the logs.

    Returns:
      The number of the signal that stopped the redrawing; 0 if all runs have ended.
    """
    signature = _signature(paths)  # taken before the logs are read, so that no change is missed
    runs = _read_runs(_runs_in(paths))  # warns about damaged lines, which later reads do not
    may_grow = not all(map(is_run, paths))
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
            if (new_signature := _signature(paths)) != signature:
                signature = new_signature
                with redirect_stderr(None):
                    runs = _read_runs(_runs_in(paths))
                draw()
            elif console.is_terminal:
                draw()  # the size of the terminal may have changed
        return stop.number


def _sleep(seconds: float, until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not until() and (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(remaining, _POLL_SECONDS))


def _runs_in(paths: Sequence[Path]) -> list[Path]:
    return [run for path in paths for run in _find_runs(path, 2) or [path]]


def _find_runs(path: Path, levels: int) -> list[Path]:
    if is_run(path):
        return [path]
    children = sorted(path.iterdir()) if levels and path.is_dir() else []
    return [run for child in children for run in _find_runs(child, levels - 1)]


def _signature(paths: Sequence[Path]) -> list[object]:
    """Return a value that changes when a log grows or a run starts."""
    return [log_signature(workdir) for workdir in _runs_in(paths)]


def _read_runs(workdirs: Sequence[Path]) -> list[WatchedRun]:
    runs = []
    for name, workdir in zip(_names(workdirs), workdirs, strict=True):
        config, log = read_config(workdir), read_log(workdir)
        goodput = read_goodput(workdir) if len(workdirs) == 1 else None
        runs.append(WatchedRun(name, config, log, History.of(log), read_profiles(workdir), goodput))
    return runs


def _names(workdirs: Sequence[Path]) -> list[str]:
    """Return the paths of runs, relative to their deepest common directory."""
    if len(workdirs) == 1:
        return [str(workdirs[0])]
    paths = [os.path.abspath(workdir) for workdir in workdirs]
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [os.path.relpath(path, common) for path in paths]


def _page(runs: Sequence[WatchedRun], console: Console) -> Group:
    messages = _messages(runs)
    free_lines = console.height - len(runs) - len(messages) - 3 if console.is_terminal else 100
    plots = _plots(runs, console, max(_MIN_LINES, min(_MAX_LINES, free_lines // 3)))
    return Group(_table(runs), *messages, *plots)


def _table(runs: Sequence[WatchedRun]) -> Table:
    # The names in the table are also the legend of the plots.
    score = next((score_name(r.history.evaluations[-1]) for r in runs if r.history.evaluations), "")
    best_score, speed = f"best dev {score}".rstrip(), f"{_unit_of(runs)}s/s"
    table = grid("run", "step", "loss", best_score, speed, "waiting", "left", "warnings")
    table.header_style = "dim"
    for index, run in enumerate(runs):
        name = Text(run.name)
        if len(runs) > 1:
            marker, color = _style_of(index)
            name = Text(f"{marker} {run.name}", f"color({color})")
        table.add_row(name, *_cells(run))
    return table


def _cells(run: WatchedRun) -> list[str]:
    history = run.history
    record = history.training[-1] if history.training else {"step": 0}
    best_so_far, remaining = plateau(history.evaluations), _seconds_left(run)
    return [
        f"{record['step']:,} / {run.config.training.num_train_steps:,}",
        _format(record.get("loss"), ".3f"),
        UNKNOWN if best_so_far is None else f"{best_so_far.best:.2f} at {best_so_far.best_step:,}",
        _format(record.get("target_tokens_per_second"), ",.0f"),
        _format(record.get("data_wait"), ".0%"),
        "ended" if history.end else UNKNOWN if remaining is None else duration(remaining),
        f"{len(history.warnings)}",
    ]


def _format(value: float | None, spec: str) -> str:
    return UNKNOWN if value is None else format(value, spec)


def _seconds_left(run: WatchedRun) -> float | None:
    # The median is robust to a few log lines that include an evaluation or a pause.
    steps, times = series(run.log, "train", "step", "time")[:, -_TIMED_LINES - 1 :]
    gaps = np.diff(steps)
    step_times = np.diff(times)[gaps > 0] / gaps[gaps > 0]
    if not len(step_times):
        return None
    return float(np.median(step_times)) * (run.config.training.num_train_steps - float(steps[-1]))


def _messages(runs: Sequence[WatchedRun]) -> list[Text]:
    lines = []
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        lines += [Text(f"time: {run.goodput.summary()}")] if run.goodput else []
        lines += [
            Text(f"{name}step {record['step']:,}: warning: {record.get('text', '')}", "yellow")
            for record in run.history.warnings
        ]
        lines += [Text(f"{name}profile: {path}") for path in run.profiles]
        if run.history.end:
            lines.append(Text(f"{name}{run.history.end.get('text', '')}"))
    return lines


def _plots(runs: Sequence[WatchedRun], console: Console, height: int) -> list[RenderableType]:
    width = console.width if console.is_terminal else min(console.width, _WIDEST_IN_FILE)
    num_columns = 2 if width >= _NARROWEST_PAIR else 1
    has_colors = console.color_system is not None
    plots = [
        Text.from_ansi(plot_in_terminal(title, curves, width // num_columns, height, has_colors))
        for title, curves in _curves(runs).items()
        if any(curve.size for curve in curves)
    ]
    table = Table.grid()
    for start in range(0, len(plots), num_columns):
        table.add_row(*plots[start : start + num_columns])
    return [table] if plots else [Text("nothing to draw yet")]


def _curves(runs: Sequence[WatchedRun]) -> dict[str, list[Curve]]:
    """Return a curve per run for each plot title; curves may be empty."""
    unit = _unit_of(runs)
    evaluations = [record for run in runs for record in run.history.evaluations]
    score = score_name(evaluations[-1]) if evaluations else "score"
    speed = "target tokens/s" if unit == "token" else f"{unit}s/s"
    is_own = any(has_own_loss(run.config) for run in runs)
    figures = {
        f"training loss, nats per {unit}": ("train", "nll"),
        **({"training loss": ("train", "loss")} if is_own else {}),
        "perplexity on dev": ("dev", "perplexity"),
        f"{score} on dev": ("dev", "score"),
        "gradient norm": ("train", "gradient_norm"),
        speed: ("train", "target_tokens_per_second"),
        "learning rate": ("train", "learning_rate"),
        **{name: ("train", name) for run in runs for name in metric_names(run.log)},
    }
    return {
        title: [series(run.log, kind, "step", name) for run in runs]
        for title, (kind, name) in figures.items()
    }


def _unit_of(runs: Sequence[WatchedRun]) -> str:
    units = {task_of(run.config.data.corpus, run.config.data.task).unit for run in runs}
    unit = units.pop() if len(units) == 1 else "target"
    return "token" if unit == "subword" else unit


_COLORS = (4, 1, 2, 5, 6, 3)  # ANSI terminal colors: blue, red, green, magenta, cyan, yellow
_MARKERS = "*o+x#@=%"
_TICKS = 4


def _style_of(index: int) -> tuple[str, int]:
    return _MARKERS[index % len(_MARKERS)], _COLORS[index % len(_COLORS)]


def plot_in_terminal(
    title: str, curves: Sequence[Curve], width: int, height: int, has_colors: bool
) -> str:
    """Return a plot of all curves as text of `width` by `height` characters.

    Args:
      title: the title, to which the value of a single curve's last point is added.
      curves: at least one curve with values. Empty curves are skipped.
      has_colors: whether to draw dots in ANSI colors. Without colors, each of several curves has
        another marker character.
    """
    with needs_extra("plots", "a plot in the terminal"):
        import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.title(f"{title}: {_number(curves[0][1, -1])}" if len(curves) == 1 else title)
    uses_braille = has_colors or len(curves) == 1
    for index, curve in enumerate(curves):
        if curve.size:
            steps, values = curve.tolist()
            marker, color = _style_of(index)
            style = {"color": color} if has_colors else {}
            plotext.plot(steps, values, marker="braille" if uses_braille else marker, **style)
    x_ticks, y_ticks = map(_ticks, np.concatenate(curves, axis=1))
    plotext.xticks(x_ticks, [f"{tick:,.0f}" for tick in x_ticks])
    plotext.yticks(y_ticks, [_number(tick) for tick in y_ticks])
    plot = plotext.build()
    return str(plot if has_colors else plotext.uncolorize(plot))


def _ticks(values: Float[np.ndarray, " n"]) -> list[float]:
    return np.unique(np.linspace(values.min(), values.max(), _TICKS)).tolist()


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.3g}"
