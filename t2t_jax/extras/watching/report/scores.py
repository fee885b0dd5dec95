"""The scores of a run, beside what the paper reports."""

import dataclasses
from collections.abc import Sequence

from t2t_jax.config import Config
from t2t_jax.extras.watching.report.page import UNKNOWN, Row, Section, shown
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.bleu import name_of_test_set
from t2t_jax.tasks.measures.perplexity import perplexity_text
from t2t_jax.tasks.task import Measure, PublishedExperiment, Task

_PERPLEXITY = Measure("perplexity", "perplexity")


def scores_section(
    task: Task, experiment: PublishedExperiment, scores: Sequence[Record]
) -> Section:
    """Return the section with a row for each evaluation, and its scores in the task's measures."""
    measures = [
        measure
        for measure in (*task.measures, _PERPLEXITY)
        if any(measure.field in score for score in scores)
    ]
    signatures = {
        f"{measure.name}: {score[measure.signature_field]}"
        for measure in task.measures
        for score in scores
        if measure.signature_field in score
    }
    names = (measure.name for measure in measures)
    header = ("set", task.inputs, "checkpoints", *["search"] * task.searches, *names)
    rows = [_row(task, measures, score) for score in scores]
    return Section("Scores", [*experiment.figures, *sorted(signatures)], header, rows)


def last_evaluation(config: Config, log: Sequence[Record]) -> list[Record]:
    """Return the last dev evaluation of the training in the form of `scores.jsonl`; [] if none."""
    decoding = dataclasses.asdict(config.decoding) | {"beam_size": config.evaluation.beam_size}
    decay = config.training.ema_decay
    averages = {} if decay is None else {"ema_decays": [decay]}
    evaluations = [
        {"corpus": config.data.corpus, "checkpoints": [record.get("step")], "decoding": decoding}
        | averages
        | record
        for record in log
        if record.get("of") == "dev"
    ]
    return evaluations[-1:]


def scored_test_set(score: Record) -> str:
    """Return the published name of the scored set."""
    corpus, split = str(score.get("corpus")), str(score.get("split"))
    return name_of_test_set(corpus, split, score.get("num_sentences") or 0)


def averaged(score: Record) -> int | str:
    """Return how many checkpoints were averaged, or the name and decay of a moving average."""
    decays = score.get("ema_decays", [])
    of = ", ".join(map(str, decays))
    return f"moving average, decay {of}" if decays else len(score.get("checkpoints", []))


def _row(task: Task, measures: Sequence[Measure], score: Record) -> Row:
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
