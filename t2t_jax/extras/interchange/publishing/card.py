"""The model card of a published run: metadata for the hub, and a page about the model.

It has no figure that the run did not record.
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
from t2t_jax.config.tasks import task_name
from t2t_jax.data.corpus_name import components_of, public_name
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
"""The sections of the report on a run that its card has, too."""
_DATASETS = {"wmt14-en-de": "wmt/wmt14", "wmt14-en-fr": "wmt/wmt14"}
"""The names that public corpora have on the hub."""
_ORIGIN = schema({}, {"format": str})
_LANGUAGE = re.compile("[a-z]{2,3}")


def check_licence(licence: str | None) -> str:
    """Return the identifier of a licence as the hub writes it."""
    known = _text("licences.txt").split()
    common = "apache-2.0, mit, cc-by-4.0, cc-by-sa-4.0, cc-by-nc-4.0, cc0-1.0 or other"
    if licence is None:
        raise UserError(f"a published model needs a licence; give one by --licence, as {common}")
    if licence.lower() not in known:
        way_out = did_you_mean(licence.lower(), known, f"common ones are {common}")
        raise UserError(f"--licence {licence} is none that the hub knows; {way_out}")
    return licence.lower()


def licence_of(card: str) -> str | None:
    """Return the licence that a model card names; None without one."""
    found = re.search(r"\A---\n(?:.*\n)*?license: (.+)\n", card)
    return found[1].strip('"') if found else None


def model_card(workdir: Path, model: PortableModel, address: str, licence: str) -> str:
    """Return the card of a run, as README.md has it.

    Args:
      model: what is published of it.
      address: the name by which the published run is opened.
      licence: the identifier of its licence, as the hub writes it.
    """
    config, scores = read_config(workdir), read_scores(workdir)
    scores = scores or last_evaluation(config, read_log(workdir))
    decay = model.config.training.ema_decay
    published = list(model.steps), [] if decay is None else [decay]
    own_scores = [
        score
        for score in scores
        if (score.get("checkpoints"), score.get("ema_decays", [])) == published
    ]
    title = address.partition("@")[0].rstrip("/").rpartition("/")[2]
    sections = [one for one in build_report(workdir).sections if one.title in _SECTIONS]
    data, task = config.data, task_of(config.data.corpus, config.data.task)
    is_translation = data.facts.hub_task == "translation"
    languages = f" from {data.source_language} to {data.target_language}" * is_translation
    metadata = _metadata(config, own_scores, title, licence)
    card = Template(_text("model_card.md")).substitute(
        # Every value of JSON is one of YAML.
        metadata="\n".join(f"{name}: {json.dumps(value)}" for name, value in metadata.items()),
        title=title,
        summary=f"{task.model[:1].upper()}{task.model[1:]}{languages}, trained with t2t_jax, which "
        f"is written after Vaswani et al. 2017.",
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        version=__version__,
        python=_python(config, address),
        command=_command(config, address),
        data=_data(config, workdir),
        hardware=_hardware(workdir),
        sections="\n\n".join(one.markdown() for one in sections),
        scored=_scored(scores),
        limits=_limits(config),
    )
    return _without_places(card, [config.data.corpus, *(str(one.get("corpus")) for one in scores)])


def _text(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


def _metadata(config: Config, scores: Sequence[Record], title: str, licence: str) -> dict[str, Any]:
    """Return the metadata of the card, by the hub's names."""
    data, facts = config.data, config.data.facts
    pair = language_of(data.source_language), language_of(data.target_language)
    languages = dict.fromkeys(pair if facts.hub_task == "translation" else ())
    known = [one for one in languages if _LANGUAGE.fullmatch(one)]
    names = (public_name(one.name) for one in components_of(data.corpus))
    datasets = dict.fromkeys(_DATASETS[name] for name in names if name in _DATASETS)
    results = list(_results(config, scores))
    found = {
        "language": known,
        "license": licence,
        "library_name": "t2t_jax",
        "pipeline_tag": facts.hub_task,
        "tags": ["jax", "flax", "t2t_jax", task_name(data.corpus, data.task)],
        "datasets": list(datasets),
        "model-index": [{"name": title, "results": results}] if results else [],
    }
    return {name: value for name, value in found.items() if value}


def _results(config: Config, scores: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Yield the newest scores of each set, as the `model-index` of a card has them.

    Scores of a part of a set count only where there are none of more of it.
    """
    task = task_of(config.data.corpus, config.data.task)
    by_size = sorted(scores, key=lambda score: score.get("num_sentences") or 0)
    newest = {scored_test_set(score): score for score in by_size}
    for name, score in newest.items():
        metrics = [
            {"type": one.field, "value": score[one.field], "name": one.name}
            | ({"args": {"signature": score[signature]}} if signature in score else {})
            for one in task.measures
            if isinstance(score.get(one.field), int | float)
            for signature in [one.signature_field]
        ]
        if metrics:
            kind = re.sub(r"[^a-z0-9]+", "-", _shown(str(score.get("corpus"))).lower()).strip("-")
            dataset = {"name": name, "type": kind, "split": str(score.get("split"))}
            yield {
                "task": {"type": config.data.facts.hub_task},
                "dataset": dataset,
                "metrics": metrics,
            }


def _shown(corpus: str) -> str:
    """Return the name of a corpus without local directories."""
    found = []
    for place, weight in components_of(public_name(corpus)):
        scheme, colon, name = place.partition(":")
        times = "" if weight == 1 else f" × {weight}"
        found.append(f"{scheme}{colon}{name.rstrip('/').rpartition('/')[2]}{times}")
    return " + ".join(found)


def _without_places(text: str, corpora: Iterable[str]) -> str:
    """Return a text in which corpora are named without the directories of the machine.

    The name of a corpus may begin with that of another, so longer names are replaced first.
    """
    for corpus in sorted(set(corpora), key=len, reverse=True):
        text = text.replace(corpus, _shown(corpus))
    return text


def _python(config: Config, address: str) -> str:
    lines = ["import t2t_jax", f'model = t2t_jax.load("{address}")']
    if config.data.facts.writes_text:
        lines.append('print(model.translate(["A sentence."]))')
    return "\n".join(lines)


def _command(config: Config, address: str) -> str:
    command = config.data.facts.commands[0]
    flag = "--workdir " if config.data.facts.writes_text else ""
    return f"t2t-jax {command} {flag}{address} --input FILE"


def _data(config: Config, workdir: Path) -> str:
    corpus, origin = read_fingerprints(workdir).get("corpus"), workdir / IMPORTED
    if origin.is_file():
        form = read_object(origin, _ORIGIN, "import it again").get("format", "another program")
        return f"The model was imported ({form}); what it was trained on is not recorded."
    known = f"its SHA-256 in t2t_jax's form is `{corpus}`" if corpus else "its hash is not recorded"
    return (
        f"Trained on {_shown(config.data.corpus)}; {known}. The vocabulary has "
        f"{config.data.vocab_size:,} entries, and training took sentences of up to "
        f"{config.data.max_length:,} of them."
    )


def _hardware(workdir: Path) -> str:
    """Describe the jobs of a training: dates, devices and times, without host names."""
    found = read_goodput(workdir)
    if found is None:
        return "The hardware and the time of the training are not recorded."
    lines = []
    for job in found.jobs:
        account = job.account
        begun = time.strftime("%Y-%m-%d", time.gmtime(account["begun"]))
        spent = duration(sum(job.seconds.values()) - job.seconds[BETWEEN])
        hardware = f"{account['devices']} × {account.get('kind', 'unknown device')}"
        lines.append(f"- {begun}: {account.get('hardware', hardware)}, {spent}")
    return "\n".join(["Hardware of the training, a line for each start:", "", *lines])


def _scored(scores: Sequence[Record]) -> str:
    """Describe how each score was measured, as far as the run recorded it."""
    return "\n".join(
        f"- {scored_test_set(score)}: `t2t-jax evaluate RUN --split {score.get('split')}`, "
        f"{score['date']}, {score.get('hardware', 'hardware not recorded')}"
        for score in scores
        if "date" in score
    )


def _limits(config: Config) -> str:
    lines = []
    if config.data.facts.writes_text:
        lines.append(
            f"- Inputs of more than {config.decoding.max_source_length:,} subwords are split or "
            "refused."
        )
    lines += [
        "- It knows what its training text has, with its errors and biases, and was not examined "
        "for any use beyond the scores above.",
        "- What it writes may be fluent and wrong; have it checked where that matters.",
    ]
    return "\n".join(lines)
