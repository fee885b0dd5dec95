"""One page on a run: its settings beside the paper's, its cost, its curves and its scores."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from rich.console import Group
from rich.table import Table
from rich.text import Text

from t2t_jax import paper
from t2t_jax.config import Config, ModelConfig
from t2t_jax.data.corpus import is_treebank
from t2t_jax.evaluation.newstest import (
    NEWSTEST2014_FILTERED,
    NEWSTEST2014_FULL,
    test_set_name,
)
from t2t_jax.modules.cost import model_flops_per_step, num_parameters
from t2t_jax.system.records import Record
from t2t_jax.workdir import read_config, read_log, read_scores

Row = tuple[str, ...]
"""Cells of a table."""

_DEVIATES, _UNKNOWN, _NOT_LOGGED = "≠", "–", "not logged, taken as 1"
_MEASURES = {
    "bleu": "sacreBLEU",
    "tokenized_split_bleu": "tokenized_split_bleu",
    "chrf": "chrF",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "num_repaired": "repaired",
    "num_skipped": "skipped",
    "num_errors": "errors",
    "perplexity": "perplexity",
}
# Bits of the Braille characters: those of the dots of a character, 4 rows of 2.
_BRAILLE, _DOTS = 0x2800, np.array([[1, 8], [2, 16], [4, 32], [64, 128]])


@dataclass(frozen=True)
class Section:
    """A part of a report: sentences, then a table, then plots."""

    title: str
    notes: list[str]
    header: Row = ()
    rows: list[Row] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """One page on a run."""

    title: str
    deviations: list[str]
    """Names of the settings that are not the paper's."""
    sections: list[Section]

    def terminal(self) -> Group:
        """The page for a terminal: print it with a `rich.console.Console`."""
        parts: list[Text | Table] = [Text(self.title, style="bold")]
        for section in self.sections:
            parts += [Text(f"\n{section.title}", style="bold"), *map(Text, section.notes)]
            if section.rows:
                table = Table(box=None, pad_edge=False, header_style="dim")
                for head in section.header:
                    table.add_column(head, overflow="fold")
                for row in section.rows:
                    table.add_row(*map(Text, row), style="bold" if row[0] == _DEVIATES else "")
                parts.append(table)
            parts += [Text(plotted, no_wrap=True) for plotted in section.plots]
        return Group(*parts)

    def markdown(self) -> str:
        """The page as Markdown."""
        blocks = [f"# {self.title}"]
        for section in self.sections:
            blocks += [f"## {section.title}", *section.notes]
            if section.rows:
                rule = ("---",) * len(section.header)
                rows = [section.header, rule, *section.rows]
                blocks.append("\n".join(map(_markdown_row, rows)))
            blocks += [f"```text\n{plotted}\n```" for plotted in section.plots]
        return "\n\n".join(blocks) + "\n"


def _markdown_row(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def build_report(workdir: Path, sustained_tflops: float | None = None) -> Report:
    """The report on a run, which may be still training or not have taken a step.

    Args:
      workdir: the run directory.
      sustained_tflops: TFLOP/s that a device of the run sustains, for an estimate of the training
        cost by the paper's method (section 6.1); None leaves it out.

    Raises:
      UserError: `workdir` is not a run directory, or its config is damaged.
    """
    config, log = read_config(workdir), read_log(workdir)
    scores = read_scores(workdir)
    experiment = _experiment(config)
    published = _published(experiment, config, scores)
    settings = [
        *_settings(experiment, config, published),
        *_test_sets(config, scores),
        *_searches(experiment, published, scores),
    ]
    if not _is_parser(config):
        settings.append(_kind_of_bleu(scores))
    deviations = list(dict.fromkeys(row[1] for row in settings if row[0] == _DEVIATES))
    notes = [
        f"Beside the paper's {experiment}. Deviations: {', '.join(deviations) or 'none'}.",
        f"Computed in {config.model.compute_dtype}; the paper counts single precision.",
    ]
    if _is_parser(config):
        notes.append(f"Which trees {config.data.corpus} has cannot be checked.")
    header = ("", "setting", "section", "the paper", "this run")
    sections = [
        Section("Settings", notes, header, settings),
        _cost(config, experiment, published, log, sustained_tflops),
        _curves(log),
        _scores(config, experiment, [*_last_look(config, log), *scores]),
    ]
    return Report(f"Report on {workdir}", deviations, sections)


# --- Settings ---


def _experiment(config: Config) -> str:
    """The experiment of the paper that a run is compared with."""
    model, data = config.model, config.data
    if _is_parser(config):
        return "parsing, semi-supervised" if "+" in data.corpus else "parsing, WSJ only"
    size = "big" if (model.d_model, model.num_heads) == (1024, 16) else "base"
    return f"{size}, English-{'French' if data.target_language == 'fr' else 'German'}"


def _is_parser(config: Config) -> bool:
    return is_treebank(config.data.corpus)


def _published(experiment: str, config: Config, scores: Sequence[Record]) -> dict[str, Any]:
    """The paper's settings in an experiment, by attribute of `Config`."""
    base = {path: value for constant in paper.CONSTANTS for path, value in constant.values.items()}
    published = base | paper.EXPERIMENTS[experiment]
    changes = _table_3_changes(experiment, scores)
    if config.checkpoint.average == changes.get("checkpoint.average"):
        published |= changes
    return published


def _table_3_changes(experiment: str, scores: Sequence[Record]) -> Mapping[str, Any]:
    """What Table 3 changes, where scores may be its own: English-German, none on a test set."""
    german = experiment.endswith("English-German")
    return paper.TABLE_3_CHANGES if german and {*map(_split, scores)} <= {"dev", "train"} else {}


def _settings(experiment: str, config: Config, published: Mapping[str, Any]) -> list[Row]:
    """A row for every constant of the paper, marked where the run deviates from it."""
    rows: list[Row] = []
    for constant in paper.CONSTANTS:
        name, _, values = constant
        stated = [path for path in values if published[path] != paper.UNPUBLISHED]
        theirs = {path: published[path] for path in stated}
        ours = {path: attrgetter(path)(config) for path in stated or values}
        # A treebank is named by its path, which does not tell what it is.
        same = ours == theirs or (name == "data" and _is_parser(config))
        mark = _DEVIATES if stated and not same else ""
        shown = _values(theirs) if stated else paper.UNPUBLISHED
        rows.append((mark, name, _section(experiment, constant), shown, _values(ours)))
    return rows


def _section(experiment: str, constant: paper.Constant) -> str:
    """Where the paper states a constant of an experiment."""
    changed = constant.values.keys() & paper.EXPERIMENTS[experiment]
    return "6.3" if changed and experiment.startswith("parsing") else constant.section


def _test_sets(config: Config, scores: Sequence[Record]) -> list[Row]:
    """A row for every set that was scored. On other data, another set is no deviation more."""
    section, theirs = "6", paper.TEST_SETS
    if _is_parser(config):
        section, theirs = "6.3", paper.PARSING_TEST_SETS
    data, sizes = config.data.corpus, (NEWSTEST2014_FILTERED, NEWSTEST2014_FULL)
    dev, test = paper.TEST_SETS.values()
    newstest = {dev, *(test_set_name(data, test, size) for size in sizes)}
    on_wmt14 = test_set_name(data, "dev", 0).startswith(dev)
    rows: dict[str, Row] = {}
    for score in scores:
        name, split = _test_set(score), _split(score)
        mark = _DEVIATES if on_wmt14 and split != "train" and name not in newstest else ""
        rows[name] = (mark, f"{split} set", section, theirs.get(split, _UNKNOWN), name)
    return list(rows.values())


def _split(score: Record) -> str:
    """The split that was scored: train, dev, test, or another by its name."""
    split = str(score.get("split"))
    return {name: split for split, name in paper.TEST_SETS.items()}.get(split, split)


def _searches(experiment: str, published: Mapping[str, Any], scores: Sequence[Record]) -> list[Row]:
    """A row for every way in which scores were made that is not the paper's."""
    rows: dict[Row, None] = {}
    for score in scores:
        used = {f"decoding.{name}": value for name, value in score.get("decoding", {}).items()}
        used["checkpoint.average"] = len(score.get("checkpoints", []))
        changes = _table_3_changes(experiment, [score])
        for constant in paper.CONSTANTS:
            for path in constant.values.keys() & used.keys():
                ours, theirs = used[path], published[path]
                if ours not in (theirs, changes.get(path, theirs)):
                    name, section = f"{constant.name} in scoring", _section(experiment, constant)
                    rows[_DEVIATES, name, section, _value(theirs), _value(ours)] = None
    return list(rows)


def _kind_of_bleu(scores: Sequence[Record]) -> Row:
    """A row that says which BLEU was measured."""
    kinds = ("bleu", "tokenized_split_bleu")
    measured = [kind for kind in kinds if any(score.get(kind) is not None for score in scores)]
    mark = _DEVIATES if scores and "tokenized_split_bleu" not in measured else ""
    ours = ", ".join(map(_MEASURES.__getitem__, measured)) or _UNKNOWN
    return (mark, "kind of BLEU", "6.1", "tokenized_split_bleu", ours)


def _values(values: Mapping[str, Any]) -> str:
    """One value, if all are the same, or else each under its name."""
    shown = {path.rpartition(".")[2]: _value(value) for path, value in values.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- Cost ---


class _Training(NamedTuple):
    """What the cost of a training follows from."""

    model: ModelConfig
    vocab_size: int
    source_tokens: float
    """In a step."""
    target_tokens: float
    """In a step."""
    steps: int
    devices: str
    """How many, one after the other."""
    seconds: float | None
    """For all steps."""
    device_seconds: float | None
    """The same, summed over devices."""
    flops_per_second: float | None
    """Sustained by a device."""

    def figures(self) -> dict[str, str]:
        """The cost, under its names."""
        tokens = self.source_tokens, self.target_tokens
        per_step = model_flops_per_step(self.model, self.vocab_size, *tokens)
        total, time, rate, estimate = per_step * self.steps, _UNKNOWN, _UNKNOWN, _UNKNOWN
        if self.seconds:
            time, rate = _duration(self.seconds), _power(total / self.seconds)
        if self.device_seconds and self.flops_per_second:
            estimate = _power(paper.training_flops(self.device_seconds, self.flops_per_second))
        return {
            "parameters": f"{num_parameters(self.model, self.vocab_size):,}",
            "target tokens a step": f"{self.target_tokens:,.0f}",
            "model FLOPs a step": _power(per_step),
            "steps": f"{self.steps:,}",
            "devices": self.devices,
            "time": time,
            "model FLOPs": _power(total),
            "model FLOP/s": rate,
            "time × devices × sustained FLOP/s": estimate,
        }


def _cost(
    config: Config,
    experiment: str,
    published: Mapping[str, Any],
    log: Sequence[Record],
    sustained_tflops: float | None,
) -> Section:
    """The cost of the run so far beside that of the paper's training."""
    size = experiment.partition(", ")[0]
    theirs = _published_training(published, size).figures()
    ours = _training(config, log, sustained_tflops).figures()
    notes = [
        "Model FLOPs are 6 × (source tokens × weights they meet + target tokens × weights they "
        "meet): the matrix products, forward and backward, without attention's own and padding.",
        "The log counts no source tokens; their ratio to target tokens is taken from the config.",
    ]
    if trained := paper.TRAINING.get(size):
        notes.append(
            "The paper multiplies time, devices and the FLOP/s that a device sustains: "
            f"{_duration(trained.seconds)} × {trained.devices} P100 × {_power(paper.P100_FLOPS)}; "
            f"Table 2 has {_power(paper.TABLE_2[size].training_flops)}."
        )
    rows: list[Row] = [(name, theirs[name], ours[name]) for name in ours]
    return Section("Cost of training", notes, ("", "the paper", "this run"), rows)


def _training(config: Config, log: Sequence[Record], sustained_tflops: float | None) -> _Training:
    """The run so far, or the one that its config describes if no step is logged."""
    data, steps = config.data, config.training.num_train_steps
    tokens: float = data.target_tokens_per_step
    seconds = device_seconds = None
    assumed = max(config.parallel.data, 1)
    records = [{"devices": assumed} | record for record in log]
    names = "step", "target_tokens", "target_tokens_per_second", "devices"
    figures = _series(records, "train", *names)
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


def _published_training(published: Mapping[str, Any], size: str) -> _Training:
    fields = {f"model.{leaf.name}": leaf.name for leaf in dataclasses.fields(ModelConfig)}
    stated = {p: v for p, v in published.items() if p in fields and v != paper.UNPUBLISHED}
    trained = paper.TRAINING.get(size)
    return _Training(
        ModelConfig(**{fields[path]: value for path, value in stated.items()}),
        published["data.vocab_size"],
        published["data.source_tokens_per_step"],
        published["data.target_tokens_per_step"],
        published["training.num_train_steps"],
        str(trained.devices) if trained else _UNKNOWN,
        trained.seconds if trained else None,
        trained.seconds * trained.devices if trained else None,
        paper.P100_FLOPS if trained else None,
    )


def _power(number: float) -> str:
    return f"{number:.3g}".replace("e+", "e")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


# --- Curves ---


def _curves(log: Sequence[Record]) -> Section:
    curves = {
        "loss in training, label-smoothed, nats per target subword": ("train", "loss"),
        "loss on dev, label-smoothed, nats per target subword": ("dev", "loss"),
        "learning rate": ("train", "learning_rate"),
    }
    plots = []
    for title, (of, name) in curves.items():
        steps, values = _series(log, of, "step", name)
        if len(steps) > 1:
            plots.append(f"{title}\n{plot(steps, values)}")
    return Section("Curves", [] if plots else ["Nothing to plot yet."], plots=plots)


def _series(log: Sequence[Record], of: str, *names: str) -> Float[np.ndarray, "names records"]:
    """Figures of the records of one kind; a record in which one is missing or null is left out."""
    rows = [[record.get(name) for name in names] for record in log if record.get("of") == of]
    known = [row for row in rows if all(isinstance(value, int | float) for value in row)]
    return np.array(known, np.float64).reshape(-1, len(names)).T


def plot(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], width: int = 64, height: int = 6
) -> str:
    """A curve as lines of text, drawn with Braille dots: 2 columns and 4 rows of them a character.

    Args:
      x: steps at which it is known, rising.
      y: its values, finite.
      width: characters across, without the labels.
      height: lines, at least 2, without the one that tells the range of `x`.
    """
    low, high = float(y.min()), float(y.max())
    curve = np.interp(np.linspace(x[0], x[-1], 2 * width), x, y)
    level = np.rint((curve - low) / ((high - low) or 1) * (4 * height - 1))
    before = np.append(level[:1], level[:-1])
    row = np.arange(4 * height)[::-1, None]
    dots = (np.minimum(level, before) <= row) & (row <= np.maximum(level, before))
    cells = (dots.reshape(height, 4, width, 2) * _DOTS[:, None]).sum((1, 3))
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"]
    lines = [
        f"{label:>10} {''.join(map(chr, line))}"
        for label, line in zip(labels, _BRAILLE + cells, strict=True)
    ]
    first, last = f"step {x[0]:,.0f}", f"{x[-1]:,.0f}"
    return "\n".join([*lines, " " * 11 + first + last.rjust(width - len(first))])


# --- Scores ---


def _scores(config: Config, experiment: str, scores: Sequence[Record]) -> Section:
    """What was measured, beside what the paper reports."""
    signatures = {
        f"{_MEASURES.get(name.removesuffix('_signature'), 'F1')}: {value}"
        for score in scores
        for name, value in score.items()
        if name.endswith("signature")
    }
    measures = [name for name in _MEASURES if any(name in score for score in scores)]
    header = ("set", "sentences", "checkpoints", "search", *map(_MEASURES.__getitem__, measures))
    rows = [(*_conditions(score), *_figures(score, measures)) for score in scores]
    notes = _published_scores(config, experiment)
    if not _is_parser(config):
        notes.append("tokenized_split_bleu is the paper's BLEU: tokenised text, compounds split.")
    return Section("Scores", [*notes, *sorted(signatures)], header, rows)


def _last_look(config: Config, log: Sequence[Record]) -> list[Record]:
    """The last scores on dev during training, with what `eval.py` would say of them."""
    decoding = dataclasses.asdict(config.decoding) | {"beam_size": config.evaluation.beam_size}
    looks = [
        {"corpus": config.data.corpus, "checkpoints": [record.get("step")], "decoding": decoding}
        | record
        for record in log
        if record.get("of") == "dev"
    ]
    return looks[-1:]


def _conditions(score: Record) -> Row:
    """What was scored, and how it was translated."""
    steps, decoding = score.get("checkpoints", []), score.get("decoding", {})
    stated = ["beam_size", "length_penalty"]
    if decoding.get("quantize", "none") != "none":
        stated.append("quantize")
    return (
        _test_set(score),
        _value(score.get("num_sentences")),
        f"{len(steps)}, to step {_value(steps[-1])}" if steps else _UNKNOWN,
        " ".join(f"{name}={_value(decoding.get(name))}" for name in stated),
    )


def _figures(score: Record, measures: Sequence[str]) -> Row:
    values = (score.get(name) for name in measures)
    shown = (f"{value:.2f}" if isinstance(value, float) else value for value in values)
    return tuple(_UNKNOWN if value is None else _value(value) for value in shown)


def _test_set(score: Record) -> str:
    corpus, split = str(score.get("corpus")), str(score.get("split"))
    return test_set_name(corpus, split, score.get("num_sentences") or 0)


def _published_scores(config: Config, experiment: str) -> list[str]:
    """What the paper reports for the experiment, and for the row of Table 3 that the run is."""
    size, _, task = experiment.partition(", ")
    if size == "parsing":
        return [f"The paper, {experiment}: an F1 of {paper.TABLE_4[task]} on section 23 (Table 4)."]
    row = paper.TABLE_2[size]
    bleu = row.test_bleu_french if task == "English-French" else row.test_bleu_german
    notes = [f"The paper, {experiment}: {bleu} BLEU on {paper.TEST_SETS['test']} (Table 2)."]
    for name, variant in paper.TABLE_3.items():
        same = all(attrgetter(path)(config) == value for path, value in variant.settings.items())
        if same and task == "English-German":
            notes.append(
                f"The paper, row {name} of Table 3: {variant.dev_bleu} BLEU and a perplexity of "
                f"{variant.dev_perplexity} on {paper.TEST_SETS['dev']}."
            )
    return notes
