"""The sections on the use of a run's time."""

import time
from collections.abc import Mapping
from typing import Any

from t2t_jax.run.goodput import BETWEEN, BUCKETS, Goodput
from t2t_jax.run.report.page import UNKNOWN, Row, Section
from t2t_jax.system.durations import duration
from t2t_jax.system.records import Record

_BETWEEN_JOBS = (
    "The time between jobs is from the last record of a job to the begin of the next job that took "
    "up the run. It includes what a kill left unrecorded: some 2 s, or 60 s of a run in a bucket."
)


def goodput_sections(
    found: Goodput, price: float | None = None, watts: float | None = None
) -> list[Section]:
    """Return the sections with a run's time by bucket, and with its jobs."""
    figures = found.figures(price, watts)
    rows = [_row(BUCKETS[name], values) for name, values in figures["buckets"].items()]
    rows.append(_row("in all", figures | {"share": 1.0}))
    costs: Row = () if price is None else ("cost",)
    notes = [
        f"Productive steps: {figures['steps']:,}. Restarts: {len(found.jobs) - 1:,}. Steps that "
        f"were repeated after a restart: {figures['repeated_steps']:,}.",
        _about_mfu(found),
        *(f"Note: {notice}." for notice in found.notices),
    ]
    if watts is not None:
        notes.append(f"Energy without the time between jobs: {figures['kwh']:,.2f} kWh.")
    if len(found.jobs) > 1:
        notes.append(_BETWEEN_JOBS)
    header: Row = ("", "time", "share", "device hours", *costs)
    jobs = [_job_row(number, job) for number, job in enumerate(figures["jobs"], 1)]
    titles: Row = ("", "begun (UTC)", "on", "steps", "repeated", "time", "end")
    return [
        Section("Where the time went", notes, header, rows),
        Section("Jobs", ["A job is one start of the training."], titles, jobs),
    ]


def _row(name: str, values: Mapping[str, Any]) -> Row:
    cost: Row = () if values["cost"] is None else (f"{values['cost']:,.2f}",)
    hours = f"{values['device_hours']:,.2f}"
    return name, duration(round(values["seconds"], 3)), f"{values['share']:.1%}", hours, *cost


def _about_mfu(found: Goodput) -> str:
    if found.mfu is None:
        accounts = [job.account for job in found.jobs if not job.account.get("peak")]
        kinds = sorted({account.get("kind", "a device") for account in accounts})
        reason = (
            f"the peak of {' and '.join(kinds)} is not known" if kinds else "no step counts yet"
        )
        return f"MFU is not known, as {reason}."
    return (
        f"MFU, of the devices' published peak in bfloat16: {found.mfu[0]:.1%} over the productive "
        f"steps, {found.mfu[1]:.1%} over the whole time."
    )


def _job_row(number: int, job: Record) -> Row:
    first, last = job["first_step"], job["step"]
    return (
        str(number),
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(job["begun"])),
        f"{job.get('host', UNKNOWN)}, {job['devices']} × {job.get('kind', UNKNOWN)}",
        f"{first + 1:,} to {last:,}" if last > first else "none",
        f"{job['repeated']:,}",
        duration(sum(job["seconds"].values()) - job["seconds"][BETWEEN]),
        job["ended"] or "not recorded: killed or under way",
    )
