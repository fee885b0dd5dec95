"""The records of jobs, and the time use (goodput) of a run over all of its jobs.

A job is one start of a training run. Its record, or account, is `W/jobs/NUMBER.json`, from 1 on. A
run that is stopped or killed resumes in a new job, which never changes the accounts of earlier
jobs. Process 0 writes the account at every checkpoint, at the end, and every few seconds.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from threading import Event, Lock, Thread
from typing import NamedTuple, TypedDict

import jax
import numpy as np

from t2t_jax.config import Config
from t2t_jax.config.cost import model_flops_per_step
from t2t_jax.data.batching import Batches
from t2t_jax.errors import UserError, in_one_line, warn
from t2t_jax.parallel.devices import hardware_name
from t2t_jax.parallel.hardware import peaks
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.progress import DATA, PHASES, STEPS, PhaseTimer
from t2t_jax.run.provenance import SoftwareRecord
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.exit_codes import exit_code_of
from t2t_jax.system.host import host_name
from t2t_jax.system.records import COUNT, NUMBER, TIME, Record, as_line, read_object, schema

_JOBS = "jobs"
_INTERVAL = 2.0  # seconds between two writes of an account
_LONGEST_REASON = 300  # characters; compiler errors are long
_WAY_OUT = "this start of the training is left out"


class _Measurement(TypedDict):
    step: COUNT
    steps: TIME


_SCHEMA = schema(
    {
        **dict.fromkeys(("begun", "written"), TIME),
        **dict.fromkeys(("first_step", "step", "devices"), COUNT),
        "seconds": schema({}, dict.fromkeys(PHASES, TIME)),
        "at": list[_Measurement],
        "ended": str | None,
        "exit_code": int | None,
    },
    {
        **dict.fromkeys(("flops", "peak", "source_tokens", "target_tokens"), NUMBER),
        "host": str,
        "kind": str,
        "processes": COUNT,
        "hardware": str,
        "provenance": SoftwareRecord,
    },
)


def read_jobs(workdir: Path) -> list[Record]:
    """Read the accounts (time use) of a run's jobs, oldest first; warn about unreadable files."""
    jobs = []
    for path in _accounts(workdir):
        try:
            jobs.append(read_object(path, _SCHEMA, _WAY_OUT))
        except UserError as error:
            warn(str(error))
    return jobs


def _accounts(workdir: Path) -> Iterator[Path]:
    directory = workdir / _JOBS
    paths = directory.iterdir() if directory.is_dir() else ()
    names = sorted(int(path.stem) for path in paths if path.stem.isdecimal())
    return (directory / f"{name}.json" for name in names)


class JobRecord:
    """A context that records the time use of a job in a file.

    An error that leaves the context is recorded as the end of the job. For other ends, call `end`.
    """

    def __init__(
        self,
        workdir: Path,
        progress: PhaseTimer,
        config: Config,
        batches: Batches,
        first_step: int,
        provenance: Record | None = None,
    ) -> None:
        """Create the account of a job that starts after `first_step` steps.

        Args:
          provenance: the software of the job, from `without_files`.
        """
        self._progress, self._directory = progress, workdir / _JOBS
        self._over, self._writing = Event(), Lock()
        self._keeper = Thread(target=self._keep_written, daemon=True, name="account of the job")
        peak = peaks(jax.devices())
        self._account: Record = {
            "begun": progress.begun,
            "host": host_name(),
            "processes": jax.process_count(),
            "devices": jax.device_count(),
            "kind": jax.devices()[0].device_kind,
            "hardware": hardware_name(jax.devices()),
            **_work_per_step(config, batches),
            "peak": peak and peak.flops_per_s,
            **({"provenance": provenance} if provenance else {}),
            "first_step": first_step,
            "step": first_step,
            "at": [],
            "ended": None,
            "exit_code": None,
        }
        numbers = (int(path.stem) for path in _accounts(workdir))
        self._path = self._directory / f"{max(numbers, default=0) + 1}.json"

    def __enter__(self) -> "JobRecord":
        """Write the account of the job, and start the thread that updates it."""
        self._write()
        self._keeper.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Record the error, if any, that ended the job, and stop updating its account."""
        self._over.set()
        self._keeper.join()
        if error is not None and self._account["ended"] is None:
            name = "error" if isinstance(error, UserError) else type(error).__name__
            text = in_one_line(f"{name}: {error}")[:_LONGEST_REASON]
            self.end(text, exit_code_of(error))

    def step(self, step: int) -> None:
        """Set the last launched training step in the account (record of time use) of this job."""
        self._account["step"] = step

    def checkpoint(self, step: int) -> None:
        """Record a checkpoint, from which a later job can resume, in the account of the job."""
        self._account["at"].append({"step": step, "steps": self._progress.seconds()[STEPS]})
        self._write()

    def end(self, reason: str, exit_code: int | None) -> None:
        """Record the end of the job; the exit code is None while unknown."""
        self._account |= {"ended": reason, "exit_code": exit_code}
        self._write()

    def _keep_written(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._write()

    def _write(self) -> None:
        if not is_main():
            return
        with self._writing:
            now = {"seconds": self._progress.seconds(), "written": time.time()}
            with suppress(UserError, OSError):  # the next write contains everything
                self._directory.mkdir(exist_ok=True)
                write_whole(self._path, as_line(self._account | now).encode())


def _work_per_step(config: Config, batches: Batches) -> dict[str, float]:
    """Count the tokens and the matmul FLOPs (`flops`) of a step, averaged over an epoch."""
    content, steps = batches.parts.content, batches.steps_per_epoch
    source, target = content.source, content.target
    tokens = {"source_tokens": source.total / steps, "target_tokens": target.total / steps}
    flops = model_flops_per_step(
        config.model,
        config.data.vocab_size,
        *tokens.values(),
        source_length=source.squares / max(1, source.total),
        target_length=target.squares / max(1, target.total),
    )
    return {"flops": flops, **tokens}


REPEATED, BETWEEN = "repeated", "between"
BUCKETS = {
    STEPS: "productive steps",
    REPEATED: "repeated steps",
    DATA: "waiting for data",
    **{phase: phase for phase in PHASES if phase not in (STEPS, DATA)},
    BETWEEN: "between jobs",
}
"""The labels of the time buckets. Each second since the start of the first job belongs to one
bucket."""
_HOUR = 3600.0
_SET_BACK = "the system clock was set back between jobs, which counts as no time"


class JobTime(NamedTuple):
    """How one job of a run used its time."""

    account: Record
    """The account of the job."""
    steps: int
    """The number of steps that no later job repeated."""
    repeated: int
    """The number of steps that a later job repeated."""
    seconds: dict[str, float]
    """Seconds by bucket; `between` is the time from the end of the job to the next job."""


class Goodput(NamedTuple):
    """How a run used its time, over all of its jobs."""

    jobs: tuple[JobTime, ...]
    """The jobs of the run, at least one, oldest first."""
    notices: tuple[str, ...] = ()
    """Notices about inexact times, such as after a change of the system clock."""

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds of a run by time bucket, such as compilation."""
        return {name: sum(job.seconds[name] for job in self.jobs) for name in BUCKETS}

    @property
    def device_hours(self) -> dict[str, float]:
        """Return device hours by time bucket; between jobs, the earlier job's devices count."""
        counted = [(job.account["devices"], job.seconds) for job in self.jobs]
        return {name: sum(n * seconds[name] for n, seconds in counted) / _HOUR for name in BUCKETS}

    @property
    def mfu(self) -> tuple[float, float] | None:
        """Return the model FLOPs utilization (MFU): FLOPs of unrepeated steps / peak FLOPs.

        Returns:
          The MFU over the time of productive steps, and over the total time; None if the peak of
          the devices is unknown or no step is productive.
        """
        flops_done = productive_peak = total_peak = 0.0
        for job in self.jobs:
            flops, peak = job.account.get("flops"), job.account.get("peak")
            if not flops or not peak:
                return None
            flops_done += flops * job.steps
            productive_peak += peak * job.account["devices"] * job.seconds[STEPS]
            total_peak += peak * job.account["devices"] * sum(job.seconds.values())
        return (flops_done / productive_peak, flops_done / total_peak) if productive_peak else None

    def summary(self) -> str:
        """Describe in a line the time buckets with at least 0.5% of the time, largest first."""
        total = sum(self.seconds.values()) or 1.0
        labeled_shares = [(value / total, BUCKETS[name]) for name, value in self.seconds.items()]
        labeled_shares.sort(key=lambda labeled_share: -labeled_share[0])
        texts = [f"{share:.0%} {label}" for share, label in labeled_shares if share >= 0.005]
        return ", ".join([*texts, *self.notices])

    def figures(self, price: float | None, watts: float | None) -> Record:
        """Return times, costs and utilization as a JSON object.

        Args:
          price: the price of a device hour; None omits costs.
          watts: the power of a device; None omits the energy.
        """
        seconds, hours = self.seconds, self.device_hours
        total, mfu = sum(seconds.values()), self.mfu or (None, None)
        in_job_hours = sum(hours.values()) - hours[BETWEEN]
        return {
            "seconds": total,
            "device_hours": sum(hours.values()),
            "cost": None if price is None else price * sum(hours.values()),
            "kwh": None if watts is None else watts * in_job_hours / 1000,
            "steps": sum(job.steps for job in self.jobs),
            "repeated_steps": sum(job.repeated for job in self.jobs),
            "mfu": {"productive": mfu[0], "whole": mfu[1]},
            "buckets": {
                name: {
                    "seconds": seconds[name],
                    "share": seconds[name] / total if total else 0.0,
                    "device_hours": hours[name],
                    "cost": None if price is None else price * hours[name],
                }
                for name in BUCKETS
            },
            "jobs": [
                {name: value for name, value in job.account.items() if name != "at"}
                | {"repeated": job.repeated, "seconds": job.seconds}
                for job in self.jobs
            ],
        }


def read_goodput(workdir: Path) -> Goodput | None:
    """Read the time use of a run; None if the run has no accounts of jobs."""
    jobs = read_jobs(workdir)
    return goodput(jobs) if jobs else None


def goodput(jobs: Sequence[Record]) -> Goodput:
    """Compute how a run used its time.

    A step is repeated if a later job resumed from an earlier step.

    Args:
      jobs: the accounts from `read_jobs`, at least one.
    """
    # Times within a job come from a monotonic clock, times between jobs from the system clock.
    starts = [job["first_step"] for job in jobs]
    # The smallest first step of the later jobs, for each job but the last.
    resumed_steps = [*accumulate(reversed(starts), min)][-2::-1]
    gaps = [after["begun"] - job["written"] for job, after in pairwise(jobs)]
    spans = zip(jobs, [*resumed_steps, None], [*gaps, 0.0], strict=True)
    times = tuple(_time_of(job, resumed, max(0.0, gap)) for job, resumed, gap in spans)
    return Goodput(times, (_SET_BACK,) if min(gaps, default=0.0) < 0 else ())


def _time_of(job: Record, resumed: int | None, gap: float) -> JobTime:
    """Return how one job of a run used its time.

    Args:
      resumed: the step after which a later job repeated this job's steps; None if none did.
      gap: the seconds until the next job began.
    """
    first_step, last = job["first_step"], job["step"]
    times = dict.fromkeys(PHASES, 0.0) | job["seconds"]  # older versions had fewer phases
    until = last if resumed is None else min(max(first_step, resumed), last)
    time_at = {mark["step"]: min(mark["steps"], times[STEPS]) for mark in job["at"]}
    time_at = {first_step: 0.0} | time_at | {last: times[STEPS]}
    productive = float(np.interp(until, sorted(time_at), [time_at[at] for at in sorted(time_at)]))
    seconds = times | {STEPS: productive, REPEATED: times[STEPS] - productive, BETWEEN: gap}
    return JobTime(job, until - first_step, last - until, {name: seconds[name] for name in BUCKETS})
