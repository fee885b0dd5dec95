"""Train the cells of a grid, with a live table of their progress."""

import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.console import Console
from rich.live import Live
from rich.table import Table

from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import SPLIT, Cell, GridPlan, Scores
from t2t_jax.sweep.comparison import measures_of
from t2t_jax.sweep.launchers import Job, Launcher
from t2t_jax.sweep.tables import WIDTH_OF_FIGURES, in_lines
from t2t_jax.system.records import Record
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks.measures.perplexity import perplexity_text

_SIGNS = {"waiting": "·", "running": "▶", "done": "✓", "failed": "✗"}
_SEEN_ALONE = {"paused": "‖", "diverged": "∞"}
"""The signs of states that the line on the progress names only where a cell is in them."""
_OPEN = {"waiting", "running"}
"""The states in which a cell is trained, or is to be."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LINES = 60.0


@dataclass
class _Status:
    cell: Cell
    state: str = "waiting"
    scores: dict[int, float] = field(default_factory=dict)
    """The perplexities of the cell by step, as `Cell.scores` gives them."""
    job: Job | None = None
    result: Record | None = None
    message: str = ""
    started: float = field(default_factory=time.monotonic)
    progress: Record = field(default_factory=dict)
    """The last record of training of a running cell."""
    steps_before: int = 0
    """The number of steps that an earlier sweep took."""

    @property
    def steps(self) -> int:
        """Return the number of steps taken so far, at most `cell.until`."""
        is_there = self.state in ("done", "paused")
        return self.cell.until if is_there else self.progress.get("step", self.steps_before)


def run_cells(
    plan: GridPlan, launcher: Launcher, console: Console, max_hours: float | None = None
) -> int:
    """Train and score the cells of a plan; one that fails does not stop the others.

    A signal, such as Ctrl-C, stops the processes of this machine, each with a checkpoint. So does
    the end of `max_hours`, after which nothing more begins. A terminal shows a live table; other
    consoles show a line for each event, and one a minute with an estimate of the end.

    Returns:
      The number of the signal that stopped the sweep; 0 if none came.
    """
    by_name: dict[str, _Status] = {}
    _follow(plan, by_name)
    statuses = by_name.values()
    finished = sum(status.state == "done" for status in statuses)
    console.print(f"{len(statuses)} cells, {finished} of them finished before", highlight=False)
    with StopSignal() as stop:
        try:
            with Live(console=console, auto_refresh=False) as live:
                began = said = now = time.monotonic()
                end = math.inf if max_hours is None else began + 3600 * max_hours
                while not stop.number and now < end and _OPEN & {s.state for s in statuses}:
                    for status in [*statuses]:
                        _advance(status, launcher, console)
                    _follow(plan, by_name)
                    now = time.monotonic()
                    if console.is_terminal or now - said >= _SECONDS_BETWEEN_LINES:
                        said, left = now, _seconds_left(statuses, now - began)
                        if console.is_terminal:
                            live.update(_table(statuses, left, console.width), refresh=True)
                        else:
                            console.print(_summary(statuses, left), highlight=False, soft_wrap=True)
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                    now = time.monotonic()
                if now >= end:
                    console.print(f"max_hours={max_hours:g} are over", highlight=False)
        finally:
            _stop_jobs([status.job for status in statuses if status.job], console)
    for status in statuses:
        if status.state == "failed":
            line = f"{status.cell.name} failed: {status.message}"
            console.print(line, markup=False, soft_wrap=True)
    return stop.number


def _follow(plan: GridPlan, by_name: dict[str, _Status]) -> None:
    """Ask the plan for its decisions, until the scores that are there decide nothing more."""
    before: Scores | None = None
    while before != (scores := {name: status.scores for name, status in by_name.items()}):
        before = scores
        for cell in plan(scores):
            status = by_name.get(cell.name)
            if status is None:
                status = by_name[cell.name] = _Status(cell)
                _look_for_scores(status)
                status.steps_before = status.steps or cell.progress().get("step", 0)
            elif status.cell.until != cell.until:
                status.cell = cell
                if status.state == "paused":
                    status.state = "waiting"
                    _look_for_scores(status)


def _stop_jobs(jobs: Sequence[Job], console: Console) -> None:
    if jobs:
        console.print(f"stopping; what runs here ({len(jobs)}) writes a checkpoint first")
    for job in jobs:
        job.stop()
    for job in jobs:
        job.wait()


def _advance(status: _Status, launcher: Launcher, console: Console) -> None:
    """Poll a cell once: start it if there is room, or check whether it has ended."""
    before = status.state
    if status.state == "waiting":
        _look_for_scores(status)  # another sweep may have trained it
    if status.state == "waiting":
        try:
            status.job = launcher.launch(status.cell)
        except (UserError, OSError) as error:
            status.state, status.message = "failed", str(error)
        if status.job:
            status.state, status.started = "running", time.monotonic()
    elif status.job and (outcome := status.job.poll()) is not None:
        status.job = None
        _look_for_scores(status)
        if status.state == "running":
            # One that a signal stopped has left a checkpoint to go on from, and a job that an
            # earlier sweep submitted may have trained the cell to an earlier step.
            status.state = "waiting" if outcome.code > 128 or not outcome.code else "failed"
            status.message = outcome.message or f"it ended with exit code {outcome.code}"
    if status.state != before and not console.is_terminal:
        console.print(_event(status), highlight=False, markup=False, soft_wrap=True)


def _look_for_scores(status: _Status) -> None:
    """Read the scores of a cell, and use them to decide whether it needs training now."""
    cell = status.cell
    try:
        status.result = cell.result()
        status.scores = cell.scores(status.result)
    except (UserError, OSError) as error:
        status.state, status.message = "failed", str(error)
        return
    if math.inf in status.scores.values():
        status.state = "diverged"
    elif cell.until in status.scores:
        status.state = "done" if status.result is not None else "paused"


def _seconds_left(statuses: Collection[_Status], seconds: float) -> float | None:
    """Read the progress of running cells, and estimate the seconds to the end of a sweep.

    All steps are assumed to take equally long; the result is None while no step is logged.
    """
    for status in statuses:
        if status.state == "running":
            status.progress = status.cell.progress()
    taken = sum(max(s.steps - s.steps_before, 0) for s in statuses)
    over = "failed", "diverged"
    left = sum(max(s.cell.until - s.steps, 0) for s in statuses if s.state not in over)
    return seconds * left / taken if taken else None


def _summary(statuses: Collection[_Status], seconds_left: float | None) -> str:
    """Return a line on the progress of a sweep, with an estimate of its end."""
    counts = Counter(status.state for status in statuses)
    named = [*_SIGNS, *(state for state in _SEEN_ALONE if counts[state])]
    parts = [f"{counts[state]} {state}" for state in named]
    if seconds_left is None:
        return ", ".join([*parts, "no step logged yet to estimate the end from"])
    end = time.strftime("%d %b %H:%M", time.localtime(time.time() + seconds_left))
    until = f"until {end}" if not counts["paused"] else f"until {end}, of what is decided so far"
    return ", ".join([*parts, f"about {seconds_left / 60:,.0f} min left, {until}"])


def _event(status: _Status) -> str:
    text = f"{status.cell.name} {status.state}"
    if status.result:
        minutes = (time.monotonic() - status.started) / 60
        name, signature = _score([status.result])
        *_, perplexity, score = _figures([status])
        text += f" after {minutes:.1f} min: perplexity {perplexity}  {name} {score}"
        text += f" ({signature})" if signature else ""
    return text


def _score(results: Sequence[Record]) -> tuple[str, str]:
    """Return the name of the score, and its definition; "" for a score without one."""
    score = measures_of(results[0]).score
    signatures = {str(result[score.signature_field]) for result in results if score.signature_field}
    return score.name.removeprefix("sacre"), ", ".join(sorted(signatures))


def _table(statuses: Collection[_Status], seconds_left: float | None, width: int) -> Table:
    """Return a table with the states of each variant's seeds, and the progress of running ones."""
    title = _summary(statuses, seconds_left)
    results = [status.result for status in statuses if status.result]
    score_name, signature = _score(results) if results else ("score", "")
    split = next((status.cell.split for status in statuses), SPLIT)
    caption = f"{split} perplexity per subword; {score_name}: {signature}"
    table = Table(title=title, caption=caption, box=None, title_justify="left")
    table.add_column("variant", no_wrap=True)
    table.add_column("seeds", overflow="fold")
    for name in ("step", "loss", "tokens/s", "perplexity", score_name):
        table.add_column(name, justify="right", overflow="fold")
    for variant in dict.fromkeys(status.cell.variant for status in statuses):
        seeds = [status for status in statuses if status.cell.variant == variant]
        signs = "".join((_SIGNS | _SEEN_ALONE)[status.state] for status in seeds)
        table.add_row(in_lines(variant, width - WIDTH_OF_FIGURES), signs, *_figures(seeds))
    return table


def _figures(seeds: Sequence[_Status]) -> list[str]:
    """Return the step, loss and speed of the first running seed, and the means of the scores."""
    step = loss = speed = perplexity = score = ""
    if running := [s for s in seeds if s.state == "running" and s.progress]:
        progress, total = running[0].progress, running[0].cell.until
        step = f"{progress['step']:,} / {total:,}"
        mean, rate = progress.get("loss"), progress.get("target_tokens_per_second")
        loss = "" if mean is None else f"{mean:.3f}"
        speed = "" if rate is None else f"{rate:,.0f}"
    if results := [s.result for s in seeds if s.result]:
        field = measures_of(results[0]).score.field
        perplexity = perplexity_text(fmean(r["perplexity"] for r in results), 3)
        score = f"{fmean(r[field] for r in results):.2f}"
    return [step, loss, speed, perplexity, score]
