"""The scores of a run, beside what the paper reports."""

import dataclasses
from collections.abc import Sequence

from t2t_jax.config import Config
from t2t_jax.run.report.page import UNKNOWN, Row, Section, shown
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.newstest import name_of_test_set
from t2t_jax.tasks.task import Measure, PublishedExperiment, Task

_PERPLEXITY = Measure("perplexity", "perplexity")


def scores_section(
    task: Task, experiment: PublishedExperiment, scores: Sequence[Record]
) -> Section:
    """A row for each evaluation, with the measures of the task that any of them has.

    Args:
      task: the task of the run's corpus.
      experiment: the experiment of the paper that the run is set beside.
      scores: evaluations of the run, as `scores.jsonl` keeps them.
    """
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
    rows = [
        (*_conditions(score), *[_search(score)] * task.searches, *_figures(score, measures))
        for score in scores
    ]
    return Section("Scores", [*experiment.figures, *sorted(signatures)], header, rows)


def last_evaluation(config: Config, log: Sequence[Record]) -> list[Record]:
    """The last evaluation on dev during training, as `scores.jsonl` would have it; [] if none."""
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
    """The name under which the set that was scored is reported."""
    corpus, split = str(score.get("corpus")), str(score.get("split"))
    return name_of_test_set(corpus, split, score.get("num_sentences") or 0)


def averaged(score: Record) -> int | str:
    """How many checkpoints the parameters that were scored are the average of, or of what else."""
    decays = score.get("ema_decays", [])
    of = ", ".join(map(str, decays))
    return f"moving average, decay {of}" if decays else len(score.get("checkpoints", []))


def _conditions(score: Record) -> Row:
    """The cells that say what was scored, and by which parameters."""
    steps = score.get("checkpoints", [])
    return (
        scored_test_set(score),
        shown(score.get("num_sentences")),
        f"{shown(averaged(score))}, to step {shown(steps[-1])}" if steps else UNKNOWN,
    )


def _search(score: Record) -> str:
    """How what was scored had been searched for."""
    decoding = score.get("decoding", {})
    stated = ["beam_size", "length_penalty"]
    if decoding.get("quantize", "none") != "none":
        stated.append("quantize")
    return " ".join(f"{name}={shown(decoding.get(name))}" for name in stated)


def _figures(score: Record, measures: Sequence[Measure]) -> Row:
    """The cells with the figures of an evaluation."""
    values = (score.get(measure.field) for measure in measures)
    figures = (f"{value:.2f}" if isinstance(value, float) else value for value in values)
    return tuple(UNKNOWN if figure is None else shown(figure) for figure in figures)
