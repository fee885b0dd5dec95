"""Write the model card of a published run: hub metadata, and a page about the model.

All figures come from records of the run.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from t2t_jax.config import Config
from t2t_jax.config.corpus_name import components_of, public_name
from t2t_jax.config.tasks import task_name
from t2t_jax.data.languages import language_of
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.watching.report import build_report, last_evaluation, scored_test_set
from t2t_jax.run.job import BETWEEN, read_goodput
from t2t_jax.system.durations import duration
from t2t_jax.system.records import Record, read_object, schema
from t2t_jax.tasks import task_of
from t2t_jax.version import __version__
from t2t_jax.workdir import IMPORTED, read_config, read_fingerprints, read_log, read_scores

_SECTIONS = "Settings", "Software", "Cost of training", "Scores"
"""The sections of a run report that the model card repeats."""
_DATASETS = {"wmt14-en-de": "wmt/wmt14", "wmt14-en-fr": "wmt/wmt14"}
"""The hub names of public corpora."""
_ORIGIN = schema({}, {"format": str})
_LANGUAGE = re.compile("[a-z]{2,3}")


def check_licence(licence: str | None) -> str:
    """Return a license identifier in the spelling of the hub, or raise a `UserError`."""
    identifiers = _text("licences.txt").split()
    common = "apache-2.0, mit, cc-by-4.0, cc-by-sa-4.0, cc-by-nc-4.0, cc0-1.0 or other"
    if licence is None:
        raise UserError(f"a published model needs a license; set --licence, such as {common}")
    if licence.lower() not in identifiers:
        hint = did_you_mean(licence.lower(), identifiers, f"common licenses are {common}")
        raise UserError(f"the hub does not know --licence {licence}; {hint}")
    return licence.lower()


def licence_of(card: str) -> str | None:
    """Return the license in the metadata of a model card, or None."""
    match = re.search(r"\A---\n(?:.*\n)*?license: (.+)\n", card)
    return match[1].strip('"') if match else None


def model_card(workdir: Path, model: PortableModel, address: str, licence: str) -> str:
    """Return the model card of a run, in Markdown.

    Args:
      address: address of the published run.
      licence: license identifier; see `check_licence`.
    """
    config, scores = read_config(workdir), read_scores(workdir)
    scores = scores or last_evaluation(config, read_log(workdir))
    decay = model.config.training.ema_decay
    published_source = list(model.steps), [] if decay is None else [decay]
    model_scores = [
        score
        for score in scores
        if (score.get("checkpoints"), score.get("ema_decays", [])) == published_source
    ]
    title = address.partition("@")[0].rstrip("/").rpartition("/")[2]
    sections = [section for section in build_report(workdir).sections if section.title in _SECTIONS]
    data, task = config.data, task_of(config.data.corpus, config.data.task)
    is_translation, writes_text = data.facts.hub_task == "translation", data.facts.writes_text
    max_length = f"{config.decoding.max_source_length:,} subwords"
    languages = f" from {data.source_language} to {data.target_language}" * is_translation
    metadata = _metadata(config, model_scores, title, licence)
    card = Template(_text("model_card.md")).substitute(
        # Every JSON value is a YAML value.
        metadata="\n".join(f"{name}: {json.dumps(value)}" for name, value in metadata.items()),
        title=title,
        summary=f"{task.model[:1].upper()}{task.model[1:]}{languages}, trained with t2t_jax, an "
        "implementation of the Transformer (Vaswani et al. 2017).",
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        version=__version__,
        address=address,
        translate='\nprint(model.translate(["A sentence."]))' * writes_text,
        command=f"{data.facts.commands[0]}{' --workdir' * writes_text}",
        data=_data(config, workdir),
        hardware=_hardware(workdir),
        sections="\n\n".join(section.markdown() for section in sections),
        scored=_scored(scores),
        limit=f"- Inputs of more than {max_length} are split or rejected.\n" * writes_text,
    )
    corpora = (str(score.get("corpus")) for score in scores)
    return _without_directories(card, [data.corpus, *corpora])


def _text(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _metadata(config: Config, scores: Sequence[Record], title: str, licence: str) -> dict[str, Any]:
    """Return the metadata of a model card, by hub field."""
    data, facts = config.data, config.data.facts
    pair = language_of(data.source_language), language_of(data.target_language)
    languages = dict.fromkeys(pair if facts.hub_task == "translation" else ())
    codes = [language for language in languages if _LANGUAGE.fullmatch(language)]
    corpus_names = (public_name(component.name) for component in components_of(data.corpus))
    datasets = dict.fromkeys(_DATASETS[name] for name in corpus_names if name in _DATASETS)
    results = list(_results(config, scores))
    fields = {
        "language": codes,
        "license": licence,
        "library_name": "t2t_jax",
        "pipeline_tag": facts.hub_task,
        "tags": ["jax", "flax", "t2t_jax", task_name(data.corpus, data.task)],
        "datasets": list(datasets),
        "model-index": [{"name": title, "results": results}] if results else [],
    }
    return {name: value for name, value in fields.items() if value}


def _results(config: Config, scores: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Yield the scores of each test set, as entries of the hub's `model-index`."""
    # Of each test set, take the score of the most sentences, and among equals the newest.
    task, hub_task = task_of(config.data.corpus, config.data.task), config.data.facts.hub_task
    by_size = sorted(scores, key=lambda score: score.get("num_sentences") or 0)
    best_known = {scored_test_set(score): score for score in by_size}
    for name, score in best_known.items():
        metrics = [
            {"type": metric.field, "value": score[metric.field], "name": metric.name}
            | ({"args": {"signature": score[signature]}} if signature in score else {})
            for metric in task.measures
            if isinstance(score.get(metric.field), int | float)
            for signature in [metric.signature_field]
        ]
        if metrics:
            corpus = _without_directory(str(score.get("corpus"))).lower()
            slug = re.sub(r"[^a-z0-9]+", "-", corpus).strip("-")
            dataset = {"name": name, "type": slug, "split": str(score.get("split"))}
            yield {"task": {"type": hub_task}, "dataset": dataset, "metrics": metrics}


def _without_directory(corpus: str) -> str:
    """Return the name of a corpus without local directories, such as "text:news × 2"."""
    components = []
    for path, weight in components_of(public_name(corpus)):
        scheme, colon, name = path.partition(":")
        times = "" if weight == 1 else f" × {weight}"
        components.append(f"{scheme}{colon}{name.rstrip('/').rpartition('/')[2]}{times}")
    return " + ".join(components)


def _without_directories(text: str, corpora: Iterable[str]) -> str:
    # One name may be the prefix of another, so replace longer names first.
    for corpus in sorted(set(corpora), key=len, reverse=True):
        text = text.replace(corpus, _without_directory(corpus))
    return text


def _data(config: Config, workdir: Path) -> str:
    corpus, origin = read_fingerprints(workdir).get("corpus"), workdir / IMPORTED
    if origin.is_file():
        program = read_object(origin, _ORIGIN, "import it again").get("format", "another program")
        return f"The model was imported ({program}). Its training data is not recorded."
    sha256 = f"is `{corpus}`" if corpus else "is not recorded"
    return (
        f"The training corpus is {_without_directory(config.data.corpus)}. Its SHA-256 in the "
        f"format of t2t_jax {sha256}. The vocabulary has {config.data.vocab_size:,} entries. "
        f"Training used sentences of up to {config.data.max_length:,} tokens."
    )


def _hardware(workdir: Path) -> str:
    """Return a list of a run's jobs in Markdown: dates, devices and durations, no host names."""
    goodput = read_goodput(workdir)
    if goodput is None:
        return "The hardware and the duration of training are not recorded."
    lines = []
    for job in goodput.jobs:
        account = job.account
        date = time.strftime("%Y-%m-%d", time.gmtime(account["begun"]))
        job_time = duration(sum(job.seconds.values()) - job.seconds[BETWEEN])
        hardware = f"{account['devices']} × {account.get('kind', 'unknown device')}"
        lines.append(f"- {date}: {account.get('hardware', hardware)}, {job_time}")
    return "\n".join(["Training hardware, with one line per job:", "", *lines])


def _scored(scores: Sequence[Record]) -> str:
    """Return a list in Markdown: the command, date and hardware of each recorded score."""
    return "\n".join(
        f"- {scored_test_set(score)}: `t2t-jax evaluate RUN --split {score.get('split')}`, "
        f"{score['date']}, {score.get('hardware', 'hardware not recorded')}"
        for score in scores
        if "date" in score
    )
