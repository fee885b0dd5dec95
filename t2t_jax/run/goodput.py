"""The use of a run's time, over all its jobs; a job is one start of the training."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from t2t_jax.run.job import read_jobs
from t2t_jax.run.progress import DATA, PHASES, STEPS
from t2t_jax.system.records import Record

REPEATED, BETWEEN = "repeated", "between"
BUCKETS = {
    STEPS: "productive steps",
    REPEATED: "repeated steps",
    DATA: "waiting for data",
    **{phase: phase for phase in PHASES if phase not in (STEPS, DATA)},
    BETWEEN: "between jobs",
}
"""The names of what time goes to. Each second of a run, from the begin of its first job on, is in
one of these buckets."""
_HOUR = 3600.0
_SET_BACK = "the system clock was set back between jobs, which counts as no time"


@dataclass(frozen=True)
class JobTime:
    """The use of one job's time."""

    account: Record
    """The account that the job kept of itself, as `run.job` describes it."""
    steps: int
    """The number of its steps that no later job took again."""
    repeated: int
    """The number of its steps that a later job took again."""
    seconds: dict[str, float]
    """Seconds by bucket; those between jobs are from the end of this job to the next one."""


@dataclass(frozen=True)
class Goodput:
    """The use of a run's time."""

    jobs: tuple[JobTime, ...]
    """The jobs of the run, at least one, the oldest first."""
    notices: tuple[str, ...] = ()
    """Sentences about times that are not exact, as after a change of the system clock."""

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds by bucket."""
        return {name: sum(job.seconds[name] for job in self.jobs) for name in BUCKETS}

    @property
    def device_hours(self) -> dict[str, float]:
        """Return the device hours by bucket; between jobs, the previous job's devices count."""
        counted = [(job.account["devices"], job.seconds) for job in self.jobs]
        return {name: sum(n * each[name] for n, each in counted) / _HOUR for name in BUCKETS}

    @property
    def mfu(self) -> tuple[float, float] | None:
        """Return the model FLOPs utilization (MFU): the share of the devices' peak FLOPs.

        Only the FLOPs of productive steps count.

        Returns:
          The share over the time of the productive steps, and over the whole time; None if the peak
          of the devices is unknown, or no step is productive.
        """
        done = productive = whole = 0.0
        for job in self.jobs:
            flops, peak = job.account.get("flops"), job.account.get("peak")
            if not flops or not peak:
                return None
            done += flops * job.steps
            productive += peak * job.account["devices"] * job.seconds[STEPS]
            whole += peak * job.account["devices"] * sum(job.seconds.values())
        return (done / productive, done / whole) if productive else None

    def summary(self) -> str:
        """Return a line with the share of each bucket of at least half a percent, largest first."""
        seconds = self.seconds
        whole = sum(seconds.values()) or 1.0
        falling = sorted(BUCKETS, key=lambda name: -seconds[name])
        shares = [(seconds[name] / whole, BUCKETS[name]) for name in falling]
        texts = [f"{share:.0%} {name}" for share, name in shares if share >= 0.005]
        return ", ".join([*texts, *self.notices])

    def figures(self, price: float | None, watts: float | None) -> dict[str, Any]:
        """Return all figures as a JSON object.

        Args:
          price: the price of a device hour, for costs; None omits them.
          watts: the power of a device, for the energy; None omits it.
        """
        seconds, hours = self.seconds, self.device_hours
        whole, mfu = sum(seconds.values()), self.mfu or (None, None)
        jobs_hours = sum(hours.values()) - hours[BETWEEN]
        return {
            "seconds": whole,
            "device_hours": sum(hours.values()),
            "cost": None if price is None else price * sum(hours.values()),
            "kwh": None if watts is None else watts * jobs_hours / 1000,
            "steps": sum(job.steps for job in self.jobs),
            "repeated_steps": sum(job.repeated for job in self.jobs),
            "mfu": {"productive": mfu[0], "whole": mfu[1]},
            "buckets": {
                name: {
                    "seconds": seconds[name],
                    "share": seconds[name] / whole if whole else 0.0,
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
    """Return the use of a run's time; None if its jobs have no accounts."""
    jobs = read_jobs(workdir)
    return goodput(jobs) if jobs else None


def goodput(jobs: Sequence[Record]) -> Goodput:
    """Compute the use of a run's time.

    A step of a job is repeated if a later job resumed from an earlier step. The time of a job comes
    from a monotonic clock. Only the time between two jobs depends on the system clock, and is 0 if
    that was set back.

    Args:
      jobs: the accounts of its jobs from `run.job.read_jobs`, at least one.
    """
    starts = [job["first_step"] for job in jobs]
    later = [*accumulate(reversed(starts), min)][-2::-1]  # the least start of the jobs after each
    gaps = [after["begun"] - job["written"] for job, after in pairwise(jobs)]
    each = zip(jobs, [*later, None], [*gaps, 0.0], strict=True)
    times = tuple(_time_of(job, goes_on, max(0.0, gap)) for job, goes_on, gap in each)
    return Goodput(times, (_SET_BACK,) if min(gaps, default=0.0) < 0 else ())


def _time_of(job: Record, goes_on: int | None, gap: float) -> JobTime:
    """Return the time of a job; a later job repeated its steps after `goes_on`."""
    first, last = job["first_step"], job["step"]
    spent = dict.fromkeys(PHASES, 0.0) | job["seconds"]  # it may be older than a phase
    kept = last if goes_on is None else min(max(first, goes_on), last)
    marks = {mark["step"]: min(mark["steps"], spent[STEPS]) for mark in job["at"]}
    marks = {first: 0.0} | marks | {last: spent[STEPS]}
    productive = float(np.interp(kept, sorted(marks), [marks[at] for at in sorted(marks)]))
    own = {STEPS: productive, REPEATED: spent[STEPS] - productive, BETWEEN: gap}
    return JobTime(job, kept - first, last - kept, {name: (spent | own)[name] for name in BUCKETS})
