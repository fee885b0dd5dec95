"""Build the report on a run from the files of its run directory.

The report compares settings and scores with the paper, and marks every deviation.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from t2t_jax import paper
from t2t_jax.config import Config, ModelConfig, network_config
from t2t_jax.config.corpus_name import public_name
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.config.families import fields_of
from t2t_jax.extras.watching import page
from t2t_jax.extras.watching.page import DEVIATES, UNKNOWN, Row, RunReport, Section, format_cell
from t2t_jax.run.history import History
from t2t_jax.run.job import BETWEEN, BUCKETS, Goodput, read_goodput
from t2t_jax.run.profile import read_profiles
from t2t_jax.run.provenance import COMPUTING, changes, read_provenance
from t2t_jax.system.durations import duration
from t2t_jax.system.records import Record
from t2t_jax.tasks import task_of
from t2t_jax.tasks.measures.bleu import name_of_test_set
from t2t_jax.tasks.measures.perplexity import perplexity_text
from t2t_jax.tasks.task import Measure, PublishedExperiment, Task
from t2t_jax.workdir import read_config, read_log, read_scores

_NOT_LOGGED = "not logged, assumed to be 1"
_BETWEEN_JOBS = (
    "The time between jobs runs from the last record of a job to the start of the next job that "
    "resumed the run. It includes up to about 2 s that a killed job did not record."
)
_PERPLEXITY = Measure("perplexity", "perplexity")


def paper_comparison(config: Config, scores: Sequence[Record]) -> list[str]:
    """Quote the results of the paper for the experiment of a run, and list the deviations.

    Returns:
      Lines of text, or [] if no score is on a test set of the paper.
    """
    task = task_of(config.data.corpus, config.data.task)
    experiment = task.experiment(config)
    if not any(scored_test_set(score) in experiment.comparable for score in scores):
        return []
    settings = settings_section(task, experiment, config, scores)
    return [*experiment.figures, *settings.notes]


def build_report(
    workdir: Path,
    sustained_tflops: float | None = None,
    price: float | None = None,
    watts: float | None = None,
) -> RunReport:
    """Build the report on a run, which may still be training.

    Args:
      sustained_tflops: the sustained TFLOP/s of one device, to estimate the training cost as in
        section 6.1 of the paper. None omits the estimate.
      price: the price of one device hour. None omits the costs.
      watts: the power of one device in watts. None omits the energy.
    """
    config, log = read_config(workdir), read_log(workdir)
    scores, time_spent = read_scores(workdir), read_goodput(workdir)
    task = task_of(config.data.corpus, config.data.task)
    experiment = task.experiment(config)
    sections = [
        settings_section(task, experiment, config, scores),
        cost_section(experiment, config, log, sustained_tflops),
        *(goodput_sections(time_spent, price, watts) if time_spent else []),
        page.curves_section(log),
        software_section(read_provenance(workdir)),
        *health_sections(config, log, read_profiles(workdir)),
        scores_section(task, experiment, [*last_evaluation(config, log), *scores]),
    ]
    return RunReport(f"Report on {workdir}", sections)


def health_sections(
    config: Config, log: Sequence[Record], profiles: Sequence[Path]
) -> list[Section]:
    """Return a section with a run's warnings, early end and profiles; [] if it has none of them."""
    history = History.of(log)
    rows: list[Row] = [(f"{w['step']:,}", w.get("text", "")) for w in history.warnings]
    notes = [f"A profile to open in xprof or Perfetto: {path}" for path in profiles]
    if history.end is not None and history.end["step"] < config.training.num_train_steps:
        notes.insert(0, history.end.get("text", ""))
    section = Section("Training messages", notes, ("step", "warning"), rows)
    return [section] if rows or notes else []


def software_section(software: Sequence[Record]) -> Section:
    """Return the section with the code and package versions that trained a run."""
    if not software:
        return Section("Software", ["The run did not record its software."])
    notes = [
        f"From step {new['first_step'] + 1:,} on, the run used other software: "
        f"{', '.join(changes(old, new))}."
        for old, new in pairwise(software)
    ]
    rows = [_software_row(record) for record in software]
    return Section("Software", notes, ("from step", "t2t-jax", "commit", "code", *COMPUTING), rows)


def _software_row(software: Record) -> Row:
    versions, commit = software["versions"], software.get("commit", "")[:12] or UNKNOWN
    return (
        f"{software['first_step'] + 1:,}",
        versions.get("t2t-jax", UNKNOWN),
        f"{commit} (modified)" if software.get("dirty") else commit,
        software["code"],
        *(versions.get(name, UNKNOWN) for name in COMPUTING),
    )


def settings_section(
    task: Task, experiment: PublishedExperiment, config: Config, scores: Sequence[Record]
) -> Section:
    """Return the section that compares the settings of a run and its scores with the paper."""
    published, dev_changes = experiment.settings, _changes(experiment, scores)
    # All scores are on dev, and the run averages as many checkpoints as the paper does on dev.
    if config.checkpoint.average == dev_changes.get("checkpoint.average"):
        published |= dev_changes
    rows = [
        *_settings(task, experiment, config, published),
        *_test_sets(experiment, scores),
        *_searches(experiment, published, scores),
    ]
    notes = [
        f"Compared with the {experiment.name} of the paper. Deviations: "
        f"{', '.join(page.deviations(rows)) or 'none'}.",
        f"Computed in {config.model.compute_dtype}; the paper counts single precision.",
        *experiment.unchecked.values(),
    ]
    return Section("Settings", notes, ("", "setting", "section", "the paper", "this run"), rows)


def _changes(experiment: PublishedExperiment, scores: Sequence[Record]) -> Mapping[str, object]:
    """Return the settings that the paper uses only on dev, or {} if a score is on a test set."""
    splits = {_split(experiment, score) for score in scores}
    return experiment.changes_on_dev if splits <= {"dev", "train"} else {}


def _settings(
    task: Task, experiment: PublishedExperiment, config: Config, published: Mapping[str, object]
) -> list[Row]:
    """Return a row for each setting that the paper states, marked where the run deviates."""
    rows: list[Row] = []
    for constant in paper.CONSTANTS:
        name, values = constant.name, constant.values
        if not task.searches and all(path.startswith("decoding.") for path in values):
            continue
        paths = [path for path in values if published[path] != paper.UNPUBLISHED]
        paper_values = {path: published[path] for path in paths}
        run_values = {path: config.value(path) for path in paths or values}
        corpus = {p: public_name(v) for p, v in run_values.items() if p == "data.corpus"}
        agrees = {**run_values, **corpus} == paper_values or name in experiment.unchecked
        mark = DEVIATES if paths and not agrees else ""
        cell = page.format_cells(paper_values) if paths else paper.UNPUBLISHED
        section = _section(experiment, constant)
        rows.append((mark, name, section, cell, page.format_cells(run_values)))
    return rows


def _section(experiment: PublishedExperiment, constant: paper.Constant) -> str:
    overrides = constant.values.keys() & paper.EXPERIMENTS[experiment.name]
    return experiment.section if overrides and experiment.section else constant.section


def _test_sets(experiment: PublishedExperiment, scores: Sequence[Record]) -> list[Row]:
    """Return a row for each scored test set, marked if it is another set than in the paper."""
    # On another corpus no test set is marked, because the row of the corpus has the mark.
    rows: dict[str, Row] = {}
    for score in scores:
        name, split = scored_test_set(score), _split(experiment, score)
        differs = split != "train" and name not in experiment.comparable
        mark = DEVIATES if experiment.comparable and differs else ""
        paper_set = experiment.test_sets.get(split, UNKNOWN)
        rows[name] = (mark, f"{split} set", experiment.section or "6", paper_set, name)
    return list(rows.values())


def _split(experiment: PublishedExperiment, score: Record) -> str:
    name = scored_test_set(score).partition(" ")[0]
    split = str(score.get("split"))
    return {name: split for split, name in experiment.test_sets.items()}.get(name, split)


def _searches(
    experiment: PublishedExperiment, published: Mapping[str, object], scores: Sequence[Record]
) -> list[Row]:
    """Return a report row for each search setting of a score that differs from the paper's."""
    rows: dict[Row, None] = {}
    for score in scores:
        settings = {f"decoding.{name}": value for name, value in score.get("decoding", {}).items()}
        settings["checkpoint.average"] = averaging(score)
        dev_changes = _changes(experiment, [score])
        for constant in paper.CONSTANTS:
            for path in constant.values.keys() & settings.keys():
                value, paper_value = settings[path], published[path]
                if value not in (paper_value, dev_changes.get(path, paper_value)):
                    label = f"{constant.name} in scoring", _section(experiment, constant)
                    rows[DEVIATES, *label, format_cell(paper_value), format_cell(value)] = None
    return list(rows)


def scores_section(
    task: Task, experiment: PublishedExperiment, scores: Sequence[Record]
) -> Section:
    """Return the section with a row of scores for each evaluation."""
    fields = set[str]().union(*scores)
    measures = [m for m in (*task.measures, _PERPLEXITY) if m.field in fields]
    signatures = {
        f"{measure.name}: {score[measure.signature_field]}"
        for measure in task.measures
        for score in scores
        if measure.signature_field in score
    }
    names = (measure.name for measure in measures)
    header = ("set", task.inputs, "checkpoints", *["search"] * task.searches, *names)
    rows = [_score_row(task, measures, score) for score in scores]
    return Section("Scores", [*experiment.figures, *sorted(signatures)], header, rows)


def last_evaluation(config: Config, log: Sequence[Record]) -> list[Record]:
    """Return the last dev evaluation during training, as a `scores.jsonl` record; [] if none."""
    decoding = dataclasses.asdict(config.decoding) | {"beam_size": config.evaluation.beam_size}
    decay = config.training.ema_decay
    averages = {} if decay is None else {"ema_decays": [decay]}
    evaluations = [record for record in log if record.get("of") == "dev"]
    return [
        {"corpus": config.data.corpus, "checkpoints": [record.get("step")], "decoding": decoding}
        | averages
        | record
        for record in evaluations[-1:]
    ]


def scored_test_set(score: Record) -> str:
    """Return the published name of the test set of a score, such as newstest2014."""
    corpus, split = str(score.get("corpus")), str(score.get("split"))
    return name_of_test_set(corpus, split, score.get("num_sentences") or 0)


def averaging(score: Record) -> int | str:
    """Return the number of averaged checkpoints, or a text with the decay of a moving average."""
    decays = ", ".join(map(str, score.get("ema_decays", [])))
    return f"moving average, decay {decays}" if decays else len(score.get("checkpoints", []))


def _score_row(task: Task, measures: Sequence[Measure], score: Record) -> Row:
    steps, decoding = score.get("checkpoints", []), score.get("decoding", {})
    setting_names = ["beam_size", "length_penalty"]
    if decoding.get("quantize", "none") != "none":
        setting_names.append("quantize")
    search = " ".join(f"{name}={format_cell(decoding.get(name))}" for name in setting_names)
    scores = (score.get(measure.field) for measure in measures)
    figures = (perplexity_text(value) if isinstance(value, float) else value for value in scores)
    return (
        scored_test_set(score),
        format_cell(score.get("num_sentences")),
        f"{format_cell(averaging(score))}, to step {format_cell(steps[-1])}" if steps else UNKNOWN,
        *[search] * task.searches,
        *(UNKNOWN if figure is None else format_cell(figure) for figure in figures),
    )


def cost_section(
    experiment: PublishedExperiment,
    config: Config,
    log: Sequence[Record],
    sustained_tflops: float | None,
) -> Section:
    """Return the section that compares the training cost so far with the paper."""
    paper_cost = _published_training(experiment.settings, experiment.model)
    run_cost = _training(config, log, sustained_tflops)
    notes = [
        "Model FLOPs are 6 × (source tokens × parameters that multiply a source token + the same "
        "for targets). They omit padding and the matmuls of attention scores and weighted values.",
        "The log does not count source tokens; the config gives their ratio to target tokens.",
    ]
    if published := paper.TRAINING.get(experiment.model):
        notes.append(
            "The paper multiplies time, devices and the sustained FLOP/s of a device: "
            f"{duration(published.seconds)} × {published.devices} P100 × "
            f"{page.scientific(paper.P100_FLOPS)}; Table 2 states "
            f"{page.scientific(paper.TABLE_2[experiment.model].training_flops)}."
        )
    rows: list[Row] = [(name, paper_cost[name], run_cost[name]) for name in run_cost]
    return Section("Cost of training", notes, ("", "the paper", "this run"), rows)


def _training(
    config: Config, log: Sequence[Record], sustained_tflops: float | None
) -> dict[str, str]:
    """Return table cells by name: the cost of a run so far, or planned if no step is logged."""
    data, steps = config.data, config.training.num_train_steps
    step_tokens: float = data.target_tokens_per_step
    seconds = flops = None
    default_devices = max(config.parallel.data, 1)
    names = "step", "target_tokens", "target_tokens_per_second", "devices"
    figures = page.series([{"devices": default_devices} | r for r in log], "train", *names)
    log_steps, token_counts, rates, devices = figures[:, figures[2] > 0]
    if len(log_steps):
        # The median is robust to restarts, whose first record covers fewer steps than the gap.
        step_tokens = float(np.median(token_counts / np.maximum(np.diff(log_steps, prepend=0), 1)))
        steps = int(log_steps[-1])
        times = token_counts / rates * (steps * step_tokens / token_counts.sum())
        seconds = float(times.sum())
        if sustained_tflops is not None:
            flops = paper.training_flops(float(devices @ times), sustained_tflops * 1e12)
    labels = dict.fromkeys(str(record["devices"]) for record in log if "devices" in record)
    fallback = str(default_devices) if config.parallel.data > 0 else _NOT_LOGGED
    devices_text = ", then ".join(labels) or fallback
    sides = step_tokens * data.source_tokens_per_step / data.target_tokens_per_step, step_tokens
    return _figures(config.model, data.vocab_size, sides, steps, devices_text, seconds, flops)


def _published_training(published: Mapping[str, Any], model: str) -> dict[str, str]:
    """Return table cells by name: the published training cost of a model of the paper."""
    fields = {f"model.{name}": name for name in fields_of("encoder_decoder")}
    settings = {p: v for p, v in published.items() if p in fields and v != paper.UNPUBLISHED}
    network = network_config(**{fields[path]: value for path, value in settings.items()})
    devices, seconds, estimate = UNKNOWN, None, None
    if cost := paper.TRAINING.get(model):
        devices, seconds = str(cost.devices), cost.seconds
        estimate = paper.training_flops(seconds * cost.devices, paper.P100_FLOPS)
    vocab_size, steps = published["data.vocab_size"], published["training.num_train_steps"]
    side_tokens = published["data.source_tokens_per_step"], published["data.target_tokens_per_step"]
    return _figures(network, vocab_size, side_tokens, steps, devices, seconds, estimate)


def _figures(
    model: ModelConfig,
    vocab_size: int,
    side_tokens: tuple[float, float],
    steps: int,
    devices: str,
    seconds: float | None,
    estimate: float | None,
) -> dict[str, str]:
    """Return the names and cells of the table of training costs.

    Args:
      side_tokens: the numbers of source and target tokens per step.
      seconds: the wall-clock time of all steps, if known.
      estimate: time × devices × sustained FLOP/s, if known.
    """
    step_flops = model_flops_per_step(model, vocab_size, *side_tokens)
    total_flops = step_flops * steps
    return {
        "parameters": f"{num_parameters(model, vocab_size):,}",
        "target tokens a step": f"{side_tokens[1]:,.0f}",
        "model FLOPs a step": page.scientific(step_flops),
        "steps": f"{steps:,}",
        "devices": devices,
        "time": duration(seconds) if seconds else UNKNOWN,
        "model FLOPs": page.scientific(total_flops),
        "model FLOP/s": page.scientific(total_flops / seconds) if seconds else UNKNOWN,
        "time × devices × sustained FLOP/s": page.scientific(estimate) if estimate else UNKNOWN,
    }


def goodput_sections(goodput: Goodput, price: float | None, watts: float | None) -> list[Section]:
    """Return a section on the time of a run's phases, and a section on its jobs.

    Args:
      price: the price of a device hour, if known.
      watts: the power of a device, if known.
    """
    figures = goodput.figures(price, watts)
    rows = [_part_row(BUCKETS[name], values) for name, values in figures["buckets"].items()]
    rows.append(_part_row("in all", figures | {"share": 1.0}))
    cost_header: Row = () if price is None else ("cost",)
    notes = [
        f"Productive steps: {figures['steps']:,}. Restarts: {len(goodput.jobs) - 1:,}. Steps that "
        f"were repeated after a restart: {figures['repeated_steps']:,}.",
        _mfu_note(goodput),
        *(f"Note: {notice}." for notice in goodput.notices),
    ]
    if watts is not None:
        notes.append(f"Energy without the time between jobs: {figures['kwh']:,.2f} kWh.")
    if len(goodput.jobs) > 1:
        notes.append(_BETWEEN_JOBS)
    header: Row = ("", "time", "share", "device hours", *cost_header)
    job_rows = [_job_row(number, job) for number, job in enumerate(figures["jobs"], 1)]
    job_header: Row = ("", "started (UTC)", "on", "steps", "repeated", "time", "end")
    return [
        Section("Where the time went", notes, header, rows),
        Section("Jobs", ["A job is one start of the training program."], job_header, job_rows),
    ]


def _part_row(name: str, values: Record) -> Row:
    cost: Row = () if values["cost"] is None else (f"{values['cost']:,.2f}",)
    hours = f"{values['device_hours']:,.2f}"
    return name, duration(round(values["seconds"], 3)), f"{values['share']:.1%}", hours, *cost


def _mfu_note(goodput: Goodput) -> str:
    if goodput.mfu is None:
        accounts = [job.account for job in goodput.jobs if not job.account.get("peak")]
        kinds = sorted({account.get("kind", "a device") for account in accounts})
        reason = (
            f"the peak of {' and '.join(kinds)} is unknown" if kinds else "no step is complete yet"
        )
        return f"The MFU is unknown, because {reason}."
    return (
        f"MFU, relative to the published bfloat16 peak of the devices: {goodput.mfu[0]:.1%} over "
        f"the productive steps, {goodput.mfu[1]:.1%} over the total time."
    )


def _job_row(number: int, job: Record) -> Row:
    start_step, last_step = job["first_step"], job["step"]
    return (
        str(number),
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(job["begun"])),
        f"{job.get('host', UNKNOWN)}, {job['devices']} × {job.get('kind', UNKNOWN)}",
        f"{start_step + 1:,} to {last_step:,}" if last_step > start_step else "none",
        f"{job['repeated']:,}",
        duration(sum(job["seconds"].values()) - job["seconds"][BETWEEN]),
        job["ended"] or "not recorded: killed or still running",
    )
