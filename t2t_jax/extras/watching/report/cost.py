"""The training cost of a run beside that of the paper's training, and the use of its time."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2t_jax import paper
from t2t_jax.config import Config, ModelConfig, network_config
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.config.families import fields_of
from t2t_jax.extras.watching.report.page import UNKNOWN, Row, Section, power, series
from t2t_jax.run.job import BETWEEN, BUCKETS, Goodput
from t2t_jax.system.durations import duration
from t2t_jax.system.records import Record
from t2t_jax.tasks.task import PublishedExperiment

_NOT_LOGGED = "not logged, taken as 1"


class _Training(NamedTuple):
    """The inputs of a training's cost."""

    model: ModelConfig
    """The network."""
    vocab_size: int
    """The number of entries of the shared vocabulary."""
    source_tokens: float
    """The number of source tokens in a step."""
    target_tokens: float
    """The number of target tokens in a step."""
    steps: int
    """The number of steps of the whole training."""
    devices: str
    """The number of devices; several numbers if the run was resumed with more or fewer."""
    seconds: float | None
    """Wall time of all steps; None if it is not known."""
    device_seconds: float | None
    """Wall time of all steps, summed over the devices that took part; None if it is not known."""
    flops_per_second: float | None
    """Operations per second that one device sustains; None if it is not known."""

    def figures(self) -> dict[str, str]:
        """Return the rows of the table of costs, as names and values."""
        tokens = self.source_tokens, self.target_tokens
        per_step = model_flops_per_step(self.model, self.vocab_size, *tokens)
        total, time, rate, estimate = per_step * self.steps, UNKNOWN, UNKNOWN, UNKNOWN
        if self.seconds:
            time, rate = duration(self.seconds), power(total / self.seconds)
        if self.device_seconds and self.flops_per_second:
            estimate = power(paper.training_flops(self.device_seconds, self.flops_per_second))
        return {
            "parameters": f"{num_parameters(self.model, self.vocab_size):,}",
            "target tokens a step": f"{self.target_tokens:,.0f}",
            "model FLOPs a step": power(per_step),
            "steps": f"{self.steps:,}",
            "devices": self.devices,
            "time": time,
            "model FLOPs": power(total),
            "model FLOP/s": rate,
            "time × devices × sustained FLOP/s": estimate,
        }


def cost_section(
    experiment: PublishedExperiment,
    config: Config,
    published: Mapping[str, Any],
    log: Sequence[Record],
    sustained_tflops: float | None,
) -> Section:
    """Return the section with the cost of the run so far beside the cost in the paper.

    Args:
      published: the paper's settings, by attribute of `Config`.
    """
    theirs = _published_training(published, experiment.model).figures()
    ours = _training(config, log, sustained_tflops).figures()
    notes = [
        "Model FLOPs are 6 × (source tokens × weights they meet + target tokens × weights they "
        "meet): the matrix products, forward and backward, without attention's own and padding.",
        "The log counts no source tokens; their ratio to target tokens is taken from the config.",
    ]
    if trained := paper.TRAINING.get(experiment.model):
        notes.append(
            "The paper multiplies time, devices and the FLOP/s that a device sustains: "
            f"{duration(trained.seconds)} × {trained.devices} P100 × {power(paper.P100_FLOPS)}; "
            f"Table 2 has {power(paper.TABLE_2[experiment.model].training_flops)}."
        )
    rows: list[Row] = [(name, theirs[name], ours[name]) for name in ours]
    return Section("Cost of training", notes, ("", "the paper", "this run"), rows)


def _training(config: Config, log: Sequence[Record], sustained_tflops: float | None) -> _Training:
    """Return the training of a run so far, or as its config plans it if no step is logged."""
    data, steps = config.data, config.training.num_train_steps
    tokens: float = data.target_tokens_per_step
    seconds = device_seconds = None
    assumed = max(config.parallel.data, 1)
    records = [{"devices": assumed} | record for record in log]
    names = "step", "target_tokens", "target_tokens_per_second", "devices"
    figures = series(records, "train", *names)
    ends, counts, rates, devices = figures[:, figures[2] > 0]
    if len(ends):
        # After a restart, the first record counts fewer steps than lie between it and the last.
        tokens = float(np.median(counts / np.maximum(np.diff(ends, prepend=0), 1)))
        steps = int(ends[-1])
        times = counts / rates * (steps * tokens / counts.sum())
        seconds, device_seconds = float(times.sum()), float(devices @ times)
    logged = dict.fromkeys(str(record["devices"]) for record in log if "devices" in record)
    return _Training(
        config.model,
        data.vocab_size,
        tokens * data.source_tokens_per_step / data.target_tokens_per_step,
        tokens,
        steps,
        ", then ".join(logged) or (str(assumed) if config.parallel.data > 0 else _NOT_LOGGED),
        seconds,
        device_seconds,
        None if sustained_tflops is None else sustained_tflops * 1e12,
    )


def _published_training(published: Mapping[str, Any], model: str) -> _Training:
    """Return the training of a model of the paper; unpublished times and rates are None."""
    fields = {f"model.{name}": name for name in fields_of("encoder_decoder")}
    stated = {p: v for p, v in published.items() if p in fields and v != paper.UNPUBLISHED}
    trained = paper.TRAINING.get(model)
    return _Training(
        network_config(**{fields[path]: value for path, value in stated.items()}),
        published["data.vocab_size"],
        published["data.source_tokens_per_step"],
        published["data.target_tokens_per_step"],
        published["training.num_train_steps"],
        str(trained.devices) if trained else UNKNOWN,
        trained.seconds if trained else None,
        trained.seconds * trained.devices if trained else None,
        paper.P100_FLOPS if trained else None,
    )


_BETWEEN_JOBS = (
    "The time between jobs is from the last record of a job to the begin of the next job that took "
    "up the run. It includes what a kill left unrecorded: some 2 s."
)


def goodput_sections(found: Goodput, price: float | None, watts: float | None) -> list[Section]:
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
