"""The settings of a run beside those of the paper's experiment, with every deviation marked."""

from collections.abc import Mapping, Sequence
from typing import Any

from t2t_jax import paper
from t2t_jax.config import Config
from t2t_jax.data.corpus_name import public_name
from t2t_jax.extras.watching.report.page import (
    DEVIATES,
    UNKNOWN,
    Row,
    Section,
    all_shown,
    deviations,
    shown,
)
from t2t_jax.extras.watching.report.scores import averaged, scored_test_set
from t2t_jax.system.records import Record
from t2t_jax.tasks.task import PublishedExperiment, Task


def published_settings(
    experiment: PublishedExperiment, config: Config, scores: Sequence[Record]
) -> dict[str, Any]:
    """Return the paper's settings in an experiment, by attribute of `Config`.

    Args:
      config: the config of the run. If all scores are on dev and it averages as many checkpoints as
        the paper does on dev, the settings are the paper's for dev.
    """
    changes = _changes(experiment, scores)
    if config.checkpoint.average == changes.get("checkpoint.average"):
        return {**experiment.settings, **changes}
    return experiment.settings


def settings_section(
    task: Task,
    experiment: PublishedExperiment,
    config: Config,
    published: Mapping[str, Any],
    scores: Sequence[Record],
) -> Section:
    """Return the section with the paper's settings, the scored sets, and the searches.

    Args:
      published: the result of `published_settings`.
    """
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
        f"{', '.join(deviations(rows)) or 'none'}.",
        f"Computed in {config.model.compute_dtype}; the paper counts single precision.",
        *experiment.unchecked.values(),
    ]
    return Section("Settings", notes, ("", "setting", "section", "the paper", "this run"), rows)


def _changes(experiment: PublishedExperiment, scores: Sequence[Record]) -> Mapping[str, Any]:
    """Return the paper's changes of settings for dev scores; {} if a score is on a test set."""
    splits = {_split(experiment, score) for score in scores}
    return experiment.changes_on_dev if splits <= {"dev", "train"} else {}


def _settings(
    task: Task, experiment: PublishedExperiment, config: Config, published: Mapping[str, Any]
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
        cell = all_shown(theirs) if stated else paper.UNPUBLISHED
        rows.append((mark, name, _section(experiment, constant), cell, all_shown(ours)))
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
        rows[name] = (mark, f"{split} set", experiment.test_sets_section, theirs, name)
    return list(rows.values())


def _split(experiment: PublishedExperiment, score: Record) -> str:
    """Return the scored split: train, dev, test, or the name of another split."""
    name = scored_test_set(score).partition(" ")[0]
    split = str(score.get("split"))
    return {name: split for split, name in experiment.test_sets.items()}.get(name, split)


def _searches(
    experiment: PublishedExperiment, published: Mapping[str, Any], scores: Sequence[Record]
) -> list[Row]:
    """Return a row for every search setting of a score that differs from the paper's."""
    rows: dict[Row, None] = {}
    for score in scores:
        used = {f"decoding.{name}": value for name, value in score.get("decoding", {}).items()}
        used["checkpoint.average"] = averaged(score)
        changes = _changes(experiment, [score])
        for constant in paper.CONSTANTS:
            for path in constant.values.keys() & used.keys():
                ours, theirs = used[path], published[path]
                if ours not in (theirs, changes.get(path, theirs)):
                    name, section = f"{constant.name} in scoring", _section(experiment, constant)
                    rows[DEVIATES, name, section, shown(theirs), shown(ours)] = None
    return list(rows)
