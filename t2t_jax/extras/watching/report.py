"""The report on a run, made from the files of its directory.

Its settings and scores stand beside those of the paper, with every deviation marked.
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
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.config.families import fields_of
from t2t_jax.data.corpus_name import public_name
from t2t_jax.extras.watching import page
from t2t_jax.extras.watching.page import DEVIATES, UNKNOWN, Row, RunReport, Section, shown
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

_NOT_LOGGED = "not logged, taken as 1"
_BETWEEN_JOBS = (
    "The time between jobs is from the last record of a job to the begin of the next job that took "
    "up the run. It includes what a kill left unrecorded: some 2 s."
)
_PERPLEXITY = Measure("perplexity", "perplexity")


def beside_the_paper(config: Config, scores: Sequence[Record]) -> list[str]:
    """Return the paper's results for the experiment that a run repeats, and its deviations.

    Returns:
      Lines of text; none if no score is on a test set of the paper.
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
    """Build the report on a run, which may be in training or at step 0.

    Args:
      sustained_tflops: TFLOP/s that a device of the run sustains, for an estimate of the training
        cost by the paper's method (section 6.1); None omits it.
      price: price of a device hour; None omits the costs.
      watts: power of a device; None omits the energy.
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
    """Return the section with a run's warnings, its early end and its profiles; [] without any."""
    history = History.of(log)
    rows: list[Row] = [(f"{one['step']:,}", one.get("text", "")) for one in history.warnings]
    notes = [f"A profile, for xprof and Perfetto: {place}" for place in profiles]
    if history.end is not None and history.end["step"] < config.training.num_train_steps:
        notes.insert(0, history.end.get("text", ""))
    section = Section("What the training said", notes, ("step", "warning"), rows)
    return [section] if rows or notes else []


def software_section(software: Sequence[Record]) -> Section:
    """Return the section with the code and the packages that trained a run."""
    if not software:
        return Section("Software", ["The software of the training is not recorded."])
    notes = [
        f"From step {now['first_step'] + 1:,} on, other software continued the training: "
        f"{', '.join(changes(before, now))}."
        for before, now in pairwise(software)
    ]
    rows = [_software_row(one) for one in software]
    return Section("Software", notes, ("from step", "t2t-jax", "commit", "code", *COMPUTING), rows)


def _software_row(software: Record) -> Row:
    numbers, commit = software["versions"], software.get("commit", "")[:12] or UNKNOWN
    return (
        f"{software['first_step'] + 1:,}",
        numbers.get("t2t-jax", UNKNOWN),
        f"{commit} (modified)" if software.get("dirty") else commit,
        software["code"],
        *(numbers.get(name, UNKNOWN) for name in COMPUTING),
    )


def settings_section(
    task: Task, experiment: PublishedExperiment, config: Config, scores: Sequence[Record]
) -> Section:
    """Return the section with the paper's settings, the scored sets, and the searches."""
    published, on_dev = experiment.settings, _changes(experiment, scores)
    # If all scores are on dev, and the run averages as many checkpoints as the paper does there.
    if config.checkpoint.average == on_dev.get("checkpoint.average"):
        published |= on_dev
    rows = [
        *_settings(task, experiment, config, published),
        *_test_sets(experiment, scores),
        *_searches(experiment, published, scores),
    ]
    if kind := task.kind_of_measure(scores):
        mark, ours = DEVIATES if kind.deviates else "", kind.ours or UNKNOWN
        rows.append((mark, kind.name, kind.section, kind.published, ours))
    notes = [
        f"Beside the paper's {experiment.name}. Deviations: "
        f"{', '.join(page.deviations(rows)) or 'none'}.",
        f"Computed in {config.model.compute_dtype}; the paper counts single precision.",
        *experiment.unchecked.values(),
    ]
    return Section("Settings", notes, ("", "setting", "section", "the paper", "this run"), rows)


def _changes(experiment: PublishedExperiment, scores: Sequence[Record]) -> Mapping[str, object]:
    """Return the paper's changes of settings for dev scores; {} if a score is on a test set."""
    splits = {_split(experiment, score) for score in scores}
    return experiment.changes_on_dev if splits <= {"dev", "train"} else {}


def _settings(
    task: Task, experiment: PublishedExperiment, config: Config, published: Mapping[str, object]
) -> list[Row]:
    """Return a row for every constant of the paper in the task, marked where the run deviates."""
    rows: list[Row] = []
    for constant in paper.CONSTANTS:
        name, _, values = constant
        if not task.searches and all(path.startswith("decoding.") for path in values):
            continue
        stated = [path for path in values if published[path] != paper.UNPUBLISHED]
        theirs = {path: published[path] for path in stated}
        ours = {path: config.value(path) for path in stated or values}
        known = {path: public_name(ours[path]) for path in ours.keys() & {"data.corpus"}}
        same = {**ours, **known} == theirs or name in experiment.unchecked
        mark = DEVIATES if stated and not same else ""
        cell = page.all_shown(theirs) if stated else paper.UNPUBLISHED
        rows.append((mark, name, _section(experiment, constant), cell, page.all_shown(ours)))
    return rows


def _section(experiment: PublishedExperiment, constant: paper.Constant) -> str:
    """Return the section of the paper that states a constant of an experiment."""
    changed = constant.values.keys() & paper.EXPERIMENTS[experiment.name]
    return experiment.section if changed and experiment.section else constant.section


def _test_sets(experiment: PublishedExperiment, scores: Sequence[Record]) -> list[Row]:
    """Return a row for every scored set, marked where its version differs from the paper's.

    On another corpus than the paper's, no set is marked, as the row on the data has the mark.
    """
    rows: dict[str, Row] = {}
    for score in scores:
        name, split = scored_test_set(score), _split(experiment, score)
        other = split != "train" and name not in experiment.comparable
        mark = DEVIATES if experiment.comparable and other else ""
        theirs = experiment.test_sets.get(split, UNKNOWN)
        rows[name] = (mark, f"{split} set", experiment.section or "6", theirs, name)
    return list(rows.values())


def _split(experiment: PublishedExperiment, score: Record) -> str:
    """Return the scored split: train, dev, test, or the name of another split."""
    name = scored_test_set(score).partition(" ")[0]
    split = str(score.get("split"))
    return {name: split for split, name in experiment.test_sets.items()}.get(name, split)


def _searches(
    experiment: PublishedExperiment, published: Mapping[str, object], scores: Sequence[Record]
) -> list[Row]:
    """Return a row for every search setting of a score that differs from the paper's."""
    rows: dict[Row, None] = {}
    for score in scores:
        used = {f"decoding.{name}": value for name, value in score.get("decoding", {}).items()}
        used["checkpoint.average"] = averaged(score)
        on_dev = _changes(experiment, [score])
        for constant in paper.CONSTANTS:
            for path in constant.values.keys() & used.keys():
                ours, theirs = used[path], published[path]
                if ours not in (theirs, on_dev.get(path, theirs)):
                    name, section = f"{constant.name} in scoring", _section(experiment, constant)
                    rows[DEVIATES, name, section, shown(theirs), shown(ours)] = None
    return list(rows)


def scores_section(
    task: Task, experiment: PublishedExperiment, scores: Sequence[Record]
) -> Section:
    """Return the section with a row for each evaluation, and its scores in the task's measures."""
    fields = set[str]().union(*scores)
    measures = [one for one in (*task.measures, _PERPLEXITY) if one.field in fields]
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
    """Return the last dev evaluation of the training in the form of `scores.jsonl`; [] if none."""
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
    """Return the published name of the scored set."""
    corpus, split = str(score.get("corpus")), str(score.get("split"))
    return name_of_test_set(corpus, split, score.get("num_sentences") or 0)


def averaged(score: Record) -> int | str:
    """Return how many checkpoints were averaged, or the name and decay of a moving average."""
    decays = score.get("ema_decays", [])
    of = ", ".join(map(str, decays))
    return f"moving average, decay {of}" if decays else len(score.get("checkpoints", []))


def _score_row(task: Task, measures: Sequence[Measure], score: Record) -> Row:
    steps, decoding = score.get("checkpoints", []), score.get("decoding", {})
    stated = ["beam_size", "length_penalty"]
    if decoding.get("quantize", "none") != "none":
        stated.append("quantize")
    search = " ".join(f"{name}={shown(decoding.get(name))}" for name in stated)
    values = (score.get(measure.field) for measure in measures)
    figures = (perplexity_text(value) if isinstance(value, float) else value for value in values)
    return (
        scored_test_set(score),
        shown(score.get("num_sentences")),
        f"{shown(averaged(score))}, to step {shown(steps[-1])}" if steps else UNKNOWN,
        *[search] * task.searches,
        *(UNKNOWN if figure is None else shown(figure) for figure in figures),
    )


def cost_section(
    experiment: PublishedExperiment,
    config: Config,
    log: Sequence[Record],
    sustained_tflops: float | None,
) -> Section:
    """Return the section with the cost of the run so far beside the cost in the paper."""
    theirs = _published_training(experiment.settings, experiment.model)
    ours = _training(config, log, sustained_tflops)
    notes = [
        "Model FLOPs are 6 × (source tokens × weights they meet + target tokens × weights they "
        "meet): the matrix products, forward and backward, without attention's own and padding.",
        "The log counts no source tokens; their ratio to target tokens is taken from the config.",
    ]
    if trained := paper.TRAINING.get(experiment.model):
        notes.append(
            "The paper multiplies time, devices and the FLOP/s that a device sustains: "
            f"{duration(trained.seconds)} × {trained.devices} P100 × "
            f"{page.power(paper.P100_FLOPS)}; Table 2 has "
            f"{page.power(paper.TABLE_2[experiment.model].training_flops)}."
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
    figures = page.series(records, "train", *names)
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
        "model FLOPs a step": page.power(per_step),
        "steps": f"{steps:,}",
        "devices": devices,
        "time": duration(seconds) if seconds else UNKNOWN,
        "model FLOPs": page.power(total),
        "model FLOP/s": page.power(total / seconds) if seconds else UNKNOWN,
        "time × devices × sustained FLOP/s": page.power(estimate) if estimate else UNKNOWN,
    }


def goodput_sections(found: Goodput, price: float | None, watts: float | None) -> list[Section]:
    """Return the sections with a run's time by bucket, and with its jobs."""
    figures = found.figures(price, watts)
    rows = [_part_row(BUCKETS[name], values) for name, values in figures["buckets"].items()]
    rows.append(_part_row("in all", figures | {"share": 1.0}))
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


def _part_row(name: str, values: Record) -> Row:
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
