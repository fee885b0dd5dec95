"""Splits with nothing to score are refused before a run begins, and all others are scored."""

import pytest

from t2t_jax.config import Config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.run.evaluation import prepare_evaluation
from t2t_jax.tasks import task_of
from tests.refusals import refused

LEARNED = ["the old dog runs", "a red house"] * 20
LABELS = {"tags": ["DT JJ NN VB", "DT JJ NN"] * 20, "label": ["some", "none"] * 20}
SUFFIX = {"tagging": "tags", "classification": "label"}
UNKNOWN = "the dev split of .* has no label that its train split has"

REFUSED = {
    "tags that train does not have": ("tagging", ["the dog"], ["XX YY"], UNKNOWN),
    "tags of blank lines": ("tagging", ["", " "], ["", ""], UNKNOWN),
    "labels that train does not have": ("classification", ["the dog"], ["X"], UNKNOWN),
    "labels of blank lines": ("classification", ["", " "], ["", "some"], UNKNOWN),
    "no lines": ("tagging", [], [], "the dev split of .* has no pairs"),
    "no text": ("masked_language_modelling", ["", " "], [], "the dev split of .* has no pairs"),
}
SCORED = {
    "one tag that is known": ("tagging", ["the dog", "runs"], ["XX NN", "YY"], 1),
    "one label that is known": ("classification", ["a", "the dog"], ["X", "some"], 1),
}


def _opened(directory, task, dev, labels, **changes):
    """A corpus with these lines of dev, and the config and the vocabulary of a run on it."""
    parts = {"train": (LEARNED, LABELS.get(SUFFIX.get(task), [])), "dev": (dev, labels)}
    for split, (lines, own) in parts.items():
        (directory / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))
        if task in SUFFIX:
            text = "".join(f"{label}\n" for label in own)
            (directory / f"{split}.{SUFFIX[task]}").write_text(text)
    settings = {
        "model.architecture": "encoder_only",
        "model.share_embeddings": task == "masked_language_modelling",
        "data.task": task,
        "data.corpus": f"text:{directory}",
        "data.cache_dir": str(directory / "cache"),
        "data.vocab_size": 30,
        "data.max_length": 24,
    }
    config = Config().replace(settings | changes)
    corpus = open_corpus(config.data)
    return config, corpus, task_of(corpus.name, corpus.task).vocabulary(config, corpus)


@pytest.mark.parametrize("batching", ["bucket", "pack"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_dev_split_with_nothing_to_score_is_refused_in_one_line(tmp_path, case, batching):
    task, lines, labels, message = REFUSED[case]
    opened = _opened(tmp_path, task, lines, labels, **{"data.batching": batching})
    with refused(match=message):
        prepare_evaluation(*opened, "dev")


@pytest.mark.parametrize("case", SCORED)
def test_a_dev_split_with_one_known_label_is_scored(tmp_path, case):
    task, lines, labels, number = SCORED[case]
    found = prepare_evaluation(*_opened(tmp_path, task, lines, labels), "dev")
    assert len(found.target_tokens) == number
