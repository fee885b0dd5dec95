"""An estimate of the time of a grid and of the memory that its rows take, before it is trained.

Times are those of cells that have run in the directory of the grid, or else of short trials of the
smallest and the largest row on this machine (`sweep.probe`). A line through them, over the
operations of a step, gives the other rows.
"""

import heapq
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from t2t_jax.config import Config
from t2t_jax.config.cost import model_flops_per_step
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import SPLIT, Cell
from t2t_jax.sweep.launchers import Job, Launcher, Local
from t2t_jax.sweep.plan import score_at
from t2t_jax.sweep.probe import TIMING
from t2t_jax.system.records import Schema, read_object
from t2t_jax.system.signals import StopSignal

_LEAST_STEPS = 4
_PATIENCE = 600.0
_SECONDS = Schema(dict.fromkeys(("once", "compiled", "step"), (int, float)))


class Timing(NamedTuple):
    """The seconds of the parts of a cell that has run, or of which a trial was made."""

    flops: float
    """The operations of a step, by `flops_of_step`."""
    once: float
    """The seconds that it takes besides its steps: to start, compile, and translate dev."""
    step: float
    """The seconds of a step, with its share of evaluations and checkpoints."""
    compiled: float = 0.0
    """The part of `once` in which the search is compiled, which other cells with the same model and
    settings of the search find compiled."""


class Estimate(NamedTuple):
    """The estimated seconds of the cells of a grid."""

    of_cells: Mapping[str, float]
    """The seconds of each cell from its first step to its result, by its name."""
    left: Sequence[float]
    """The seconds that are left of each cell without a score at its last step, in their order."""
    source: str
    """The source of the estimate, in words."""

    def seconds(self, jobs: int | None) -> float:
        """Return the seconds until all cells have a result, with so many at once; None is all."""
        ends = [0.0] * min(len(self.left), jobs or len(self.left))
        for seconds in self.left:
            heapq.heapreplace(ends, ends[0] + seconds)
        return max(ends, default=0.0)


def flops_of_step(config: Config) -> float:
    """Return the operations of a full step, without those that depend on the lengths of rows."""
    tokens = config.data.source_tokens_per_step, config.data.target_tokens_per_step
    return model_flops_per_step(config.model, config.data.vocab_size, *tokens)


def estimated(cells: Sequence[Cell], timings: Sequence[Timing], source: str) -> Estimate:
    """Estimate the seconds of the cells of a grid from the timings of some of them.

    Args:
      cells: all cells in the order of training, each with the step until which it is trained.
      timings: at least one timing.
      source: where the timings are from, in words.
    """
    of_cells, left, compiled = {}, [], set()
    flops = [timing.flops for timing in timings]
    for cell in cells:
        work, config = flops_of_step(cell.config), cell.config
        once, step, shared = (
            _on_line(flops, [getattr(timing, part) for timing in timings], work)
            for part in ("once", "step", "compiled")
        )
        if len({*flops}) == 1:  # which is the rate of operations alone
            step *= work / flops[0]
        key = config.model, config.data, config.decoding, config.evaluation
        once -= shared * (key in compiled or cell.pause is not None)
        compiled.add(key)
        of_cells[cell.name] = once + step * cell.until
        if score_at(cell.scores(), cell.until) is None:
            left.append(once + step * max(0, cell.until - cell.progress().get("step", 0)))
    return Estimate(of_cells, left, source)


def _on_line(x: Sequence[float], y: Sequence[float], at: float) -> float:
    """Return the value of the line through some points; a constant where the line would fall.

    Below the least point, the value is at least in proportion to that point.
    """
    least = min(x)
    if max(x) > least:
        slope, start = np.polyfit(x, y, 1)
        if slope > 0:
            floor = min(1.0, at / least) * min(y)
            return max(float(start + slope * at), floor)
    return sum(y) / len(y)


def timings_of(cells: Sequence[Cell]) -> list[Timing]:
    """Return the timings of the cells that have run, by the accounts in their directories.

    The first evaluation of a cell takes longer than later ones, as it compiles the search. As long
    as no cell has a result, those that have begun stand for them, with what they have done once so
    far. Cells with fewer than four steps are left out.
    """
    from t2t_jax.run.job import read_jobs
    from t2t_jax.run.progress import COMPILATION, START
    from t2t_jax.workdir import read_log

    begun = START, COMPILATION
    finished: list[Timing] = []
    started: list[Timing] = []
    for cell in cells:
        jobs = read_jobs(cell.workdir)
        steps = sum(job["step"] - job["first_step"] for job in jobs)
        if steps < _LEAST_STEPS:
            continue
        result = cell.result()
        log = read_log(cell.workdir)
        evaluations = [one.get("seconds", 0.0) for one in log if one["of"] == SPLIT]
        compiled = evaluations[0] - min(evaluations) if evaluations else 0.0
        once = sum(jobs[0]["seconds"].get(phase, 0.0) for phase in begun) + compiled
        once += result.get("seconds", 0.0) if result else 0.0
        each = (item for job in jobs for item in job["seconds"].items())
        repeated = sum(seconds for phase, seconds in each if phase not in begun) - compiled
        timing = Timing(flops_of_step(cell.config), once, max(0.0, repeated) / steps, compiled)
        (started if result is None else finished).append(timing)
    return finished or started


def timings_here(cells: Sequence[Cell], jobs: int, console: Console) -> list[Timing]:
    """Time the cell with the fewest and the one with the most operations a step on this machine.

    The console shows a line that says so.

    Raises:
      UserError: a trial failed, or took more than ten minutes.
    """
    from t2t_jax.data.corpus import open_corpus

    ordered = sorted(cells, key=lambda cell: flops_of_step(cell.config))
    ends = {flops_of_step(cell.config): cell for cell in (ordered[0], ordered[-1])}
    for cell in ends.values():
        if SPLIT not in (corpus := open_corpus(cell.config.data)).splits:
            raise UserError(f"{corpus.name} has no {SPLIT} split to compare variants on; add one")
    launcher = Local(jobs, program="t2t_jax.sweep.probe")
    named = " and ".join(cell.variant for cell in ends.values())
    console.print(
        f"trying {named} on this machine for some steps and translations, which takes a minute or "
        "more, as nothing has run yet",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    with tempfile.TemporaryDirectory(prefix="t2t_jax_trials_") as folder:
        trials = [
            replace(cell, workdir=Path(folder) / cell.variant / "trial") for cell in ends.values()
        ]
        _run_trials(trials, launcher)
        read = [read_object(trial.workdir / TIMING, _SECONDS, "try again") for trial in trials]
    return [Timing(flops, **one) for flops, one in zip(ends, read, strict=True)]


def _run_trials(trials: Sequence[Cell], launcher: Launcher) -> None:
    """Run trials to their ends, as many at once as there is room for; a signal ends the program."""
    waiting, began = [*trials], time.monotonic()
    running: dict[str, Job] = {}
    try:
        with StopSignal() as stop:
            while (waiting or running) and not stop.number:
                if waiting and (job := launcher.launch(waiting[0])):
                    running[waiting.pop(0).variant] = job
                _check_trials(running)
                if time.monotonic() - began > _PATIENCE:
                    named = " and ".join(running)
                    raise UserError(f"the trials of {named} took more than ten minutes")
                time.sleep(0.2)
    finally:
        for _ in range(2 if running else 0):  # the second signal ends what would write a checkpoint
            for job in running.values():
                job.stop()
            time.sleep(0.5)
        for job in running.values():
            job.wait()
    if stop.number:
        raise SystemExit(128 + stop.number)


def _check_trials(running: dict[str, Job]) -> None:
    """Remove the trials that have ended, and refuse one that has failed."""
    for variant, job in [*running.items()]:
        if (outcome := job.poll()) is not None:
            del running[variant]
            if outcome.code:
                raise UserError(f"a trial of {variant} failed: {outcome.message}")


def least_bytes(config: Config, jobs: int) -> int:
    """Return the least memory of a training on each device, which the compiler may double.

    Args:
      jobs: how many cells share the devices of this machine.
    """
    import jax

    from t2t_jax.parallel.mesh import make_mesh
    from t2t_jax.tasks import task_of
    from t2t_jax.training.settling import settled
    from t2t_jax.training.step_memory import least_memory

    devices = jax.devices()
    mesh = make_mesh(config.parallel, devices[: max(1, len(devices) // jobs)])
    config = settled(config, mesh)
    shape = task_of(config.data.corpus, config.data.task).largest_shape(config)
    return least_memory(config, config.data.vocab_size, mesh, [shape]).total
