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
_RARE_SIGNS = {"paused": "‖", "diverged": "∞"}
"""Signs of states that the progress line omits if no cell has them."""
_OPEN_STATES = {"waiting", "running"}
"""The states of cells that still need training."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BETWEEN_LINES = 60.0


@dataclass
class _Status:
    cell: Cell
    state: str = "waiting"
    scores: dict[int, float] = field(default_factory=dict)
    """Dev perplexities by step, from `Cell.scores`."""
    job: Job | None = None
    result: Record | None = None
    message: str = ""
    start_time: float = field(default_factory=time.monotonic)
    progress: Record = field(default_factory=dict)
    """The last training record of a running cell."""
    steps_before: int = 0
    """The number of steps trained by earlier sweeps."""

    @property
    def steps(self) -> int:
        """Return the number of steps that a cell has trained, at most `cell.last_step`."""
        is_at_end = self.state in ("done", "paused")
        return self.cell.last_step if is_at_end else self.progress.get("step", self.steps_before)


def run_cells(
    plan: GridPlan, launcher: Launcher, console: Console, max_hours: float | None = None
) -> int:
    """Train and score the cells of a plan. A failed cell does not stop other cells.

    A signal, such as Ctrl-C, or the end of `max_hours` stops local processes after a checkpoint.
    No cell starts after `max_hours`. A terminal shows a live table; other consoles show lines.

    Returns:
      The number of the signal that stopped the sweep, or 0.
    """
    statuses = [_Status(cell) for cell in plan({})]
    for status in statuses:
        _read_scores(status)
        status.steps_before = status.steps or status.cell.progress().get("step", 0)
    _update_plan(plan, statuses)
    num_finished = sum(status.state == "done" for status in statuses)
    console.print(f"{len(statuses)} cells, {num_finished} already finished", highlight=False)
    with StopSignal() as stop:
        try:
            with Live(console=console, auto_refresh=False) as live:
                start = last_report = now = time.monotonic()
                end = math.inf if max_hours is None else start + 3600 * max_hours
                while not stop.number and now < end and _OPEN_STATES & {s.state for s in statuses}:
                    for status in statuses:
                        _poll(status, launcher, console)
                    _update_plan(plan, statuses)
                    now = time.monotonic()
                    if console.is_terminal or now - last_report >= _SECONDS_BETWEEN_LINES:
                        last_report, eta = now, _seconds_left(statuses, now - start)
                        if console.is_terminal:
                            live.update(_table(statuses, eta, console.width), refresh=True)
                        else:
                            console.print(_summary(statuses, eta), highlight=False, soft_wrap=True)
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                    now = time.monotonic()
                if now >= end:
                    console.print(f"max_hours={max_hours:g} have passed", highlight=False)
        finally:
            _stop_jobs([status.job for status in statuses if status.job], console)
    for status in statuses:
        if status.state == "failed":
            line = f"{status.cell.name} failed: {status.message}"
            console.print(line, markup=False, soft_wrap=True)
    return stop.number


def _update_plan(plan: GridPlan, statuses: Sequence[_Status]) -> None:
    """Let `plan` choose the last steps of cells by the scores in `statuses`, its cells in order."""
    # A cell that trains on may have scores from an earlier sweep, which decide more.
    previous: Scores | None = None
    while previous != (scores := {status.cell.name: status.scores for status in statuses}):
        previous = scores
        for status, cell in zip(statuses, plan(scores), strict=True):
            if status.cell.last_step != cell.last_step:
                status.cell = cell
                if status.state == "paused":
                    status.state = "waiting"
                    _read_scores(status)


def _stop_jobs(jobs: Sequence[Job], console: Console) -> None:
    if jobs:
        console.print("stopping; local runs write a checkpoint first, cluster jobs continue")
    for job in jobs:
        job.stop()
    for job in jobs:
        job.wait()


def _poll(status: _Status, launcher: Launcher, console: Console) -> None:
    """Start a waiting cell if a slot is free, or check whether a running cell has ended."""
    old_state = status.state
    if status.state == "waiting":
        _read_scores(status)  # another sweep may have trained it
    if status.state == "waiting":
        try:
            status.job = launcher.launch(status.cell)
        except (UserError, OSError) as error:
            status.state, status.message = "failed", str(error)
        if status.job:
            status.state, status.start_time = "running", time.monotonic()
    elif status.job and (outcome := status.job.poll()) is not None:
        status.job = None
        _read_scores(status)
        if status.state == "running":
            # Resume a cell that a signal stopped. A job of an earlier sweep may also exit with code
            # 0 at a step before `last_step`.
            status.state = "waiting" if outcome.code > 128 or not outcome.code else "failed"
            status.message = outcome.message or f"it ended with exit code {outcome.code}"
    if status.state != old_state and not console.is_terminal:
        console.print(_event(status), highlight=False, markup=False, soft_wrap=True)


def _read_scores(status: _Status) -> None:
    cell = status.cell
    try:
        status.result = cell.result()
        status.scores = cell.scores(status.result)
    except (UserError, OSError) as error:
        status.state, status.message = "failed", str(error)
        return
    if math.inf in status.scores.values():
        status.state = "diverged"
    elif cell.last_step in status.scores:
        status.state = "done" if status.result is not None else "paused"


def _seconds_left(statuses: Collection[_Status], elapsed: float) -> float | None:
    """Read the progress of running cells, and estimate the seconds until a sweep ends.

    The estimate is None until a cell logs a step.
    """
    for status in statuses:
        if status.state == "running":
            status.progress = status.cell.progress()
    # Assume equal times for all steps. Steps of earlier sweeps say nothing about this speed.
    steps_taken = sum(max(s.steps - s.steps_before, 0) for s in statuses)
    ended = "failed", "diverged"
    steps_left = sum(max(s.cell.last_step - s.steps, 0) for s in statuses if s.state not in ended)
    return elapsed * steps_left / steps_taken if steps_taken else None


def _summary(statuses: Collection[_Status], seconds_left: float | None) -> str:
    counts = Counter(status.state for status in statuses)
    states = [*_SIGNS, *(state for state in _RARE_SIGNS if counts[state])]
    parts = [f"{counts[state]} {state}" for state in states]
    if seconds_left is None:
        return ", ".join([*parts, "no step logged yet, so no estimate"])
    end = time.strftime("%d %b %H:%M", time.localtime(time.time() + seconds_left))
    until = f"until {end}" if not counts["paused"] else f"until {end}, for the cells planned so far"
    return ", ".join([*parts, f"about {seconds_left / 60:,.0f} min left, {until}"])


def _event(status: _Status) -> str:
    text = f"{status.cell.name} {status.state}"
    if status.result:
        minutes = (time.monotonic() - status.start_time) / 60
        name, signature = _score([status.result])
        *_, perplexity, score = _columns([status])
        text += f" after {minutes:.1f} min: perplexity {perplexity}  {name} {score}"
        text += f" ({signature})" if signature else ""
    return text


def _score(results: Sequence[Record]) -> tuple[str, str]:
    """Return the name of the score in results, such as BLEU, and its signature or ""."""
    score = measures_of(results[0]).score
    signatures = {str(result[score.signature_field]) for result in results if score.signature_field}
    return score.name.removeprefix("sacre"), ", ".join(sorted(signatures))


def _table(statuses: Collection[_Status], seconds_left: float | None, width: int) -> Table:
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
        seed_statuses = [status for status in statuses if status.cell.variant == variant]
        signs = "".join((_SIGNS | _RARE_SIGNS)[status.state] for status in seed_statuses)
        table.add_row(in_lines(variant, width - WIDTH_OF_FIGURES), signs, *_columns(seed_statuses))
    return table


def _columns(seeds: Sequence[_Status]) -> list[str]:
    """Return the step, loss and speed of the first running seed, and mean perplexity and score.

    All are texts, "" if unknown.
    """
    step = loss = speed = perplexity = score = ""
    if running_seeds := [s for s in seeds if s.state == "running" and s.progress]:
        progress, last_step = running_seeds[0].progress, running_seeds[0].cell.last_step
        step = f"{progress['step']:,} / {last_step:,}"
        mean_loss, mean_rate = progress.get("loss"), progress.get("target_tokens_per_second")
        loss = "" if mean_loss is None else f"{mean_loss:.3f}"
        speed = "" if mean_rate is None else f"{mean_rate:,.0f}"
    if results := [s.result for s in seeds if s.result]:
        field = measures_of(results[0]).score.field
        perplexity = perplexity_text(fmean(result["perplexity"] for result in results), 3)
        score = f"{fmean(result[field] for result in results):.2f}"
    return [step, loss, speed, perplexity, score]
