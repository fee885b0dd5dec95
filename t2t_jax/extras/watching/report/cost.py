"""The training cost of a run beside that of the paper's training, and the use of its time."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

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
    theirs = _published_training(published, experiment.model)
    ours = _training(config, log, sustained_tflops)
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


def _training(
    config: Config, log: Sequence[Record], sustained_tflops: float | None
) -> dict[str, str]:
    """Return the figures of a run so far, or as its config plans it if no step is logged."""
    data, steps = config.data, config.training.num_train_steps
    tokens: float = data.target_tokens_per_step
    seconds = estimate = None
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
        seconds = float(times.sum())
        if sustained_tflops is not None:
            estimate = paper.training_flops(float(devices @ times), sustained_tflops * 1e12)
    logged = dict.fromkeys(str(record["devices"]) for record in log if "devices" in record)
    used = ", then ".join(logged) or (str(assumed) if config.parallel.data > 0 else _NOT_LOGGED)
    sides = tokens * data.source_tokens_per_step / data.target_tokens_per_step, tokens
    return _figures(config.model, data.vocab_size, sides, steps, used, seconds, estimate)


def _published_training(published: Mapping[str, Any], model: str) -> dict[str, str]:
    """Return the figures of a model of the paper; unpublished times and rates are unknown."""
    fields = {f"model.{name}": name for name in fields_of("encoder_decoder")}
    stated = {p: v for p, v in published.items() if p in fields and v != paper.UNPUBLISHED}
    network = network_config(**{fields[path]: value for path, value in stated.items()})
    devices, seconds, estimate = UNKNOWN, None, None
    if trained := paper.TRAINING.get(model):
        devices, seconds = str(trained.devices), trained.seconds
        estimate = paper.training_flops(seconds * trained.devices, paper.P100_FLOPS)
    vocab_size, steps = published["data.vocab_size"], published["training.num_train_steps"]
    sides = published["data.source_tokens_per_step"], published["data.target_tokens_per_step"]
    return _figures(network, vocab_size, sides, steps, devices, seconds, estimate)


def _figures(
    model: ModelConfig,
    vocab_size: int,
    tokens: tuple[float, float],
    steps: int,
    devices: str,
    seconds: float | None,
    estimate: float | None,
) -> dict[str, str]:
    """Return the rows of the table of costs, as names and values.

    Args:
      vocab_size: the number of entries of the shared vocabulary.
      tokens: the numbers of source and target tokens in a step.
      steps: the number of steps of the whole training.
      devices: the number of devices; several if the run was resumed with more or fewer.
      seconds: the wall time of all steps; None if it is not known.
      estimate: the operations by the time of all devices and their rate; None if not known.
    """
    per_step = model_flops_per_step(model, vocab_size, *tokens)
    total = per_step * steps
    return {
        "parameters": f"{num_parameters(model, vocab_size):,}",
        "target tokens a step": f"{tokens[1]:,.0f}",
        "model FLOPs a step": power(per_step),
        "steps": f"{steps:,}",
        "devices": devices,
        "time": duration(seconds) if seconds else UNKNOWN,
        "model FLOPs": power(total),
        "model FLOP/s": power(total / seconds) if seconds else UNKNOWN,
        "time × devices × sustained FLOP/s": power(estimate) if estimate else UNKNOWN,
    }


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
