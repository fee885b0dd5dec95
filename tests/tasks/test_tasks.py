"""What a corpus is for follows from its scheme, and a further task needs nothing but its module."""

import dataclasses
import sys
import types

import pytest

from t2t_jax import paper, tasks
from t2t_jax.config import Config
from t2t_jax.run.report import build_report
from t2t_jax.tasks import parsing, task_of, translation
from t2t_jax.tasks.task import GridMeasures, Measure, PublishedExperiment, Scored, Task, TaskScores
from t2t_jax.tasks.text_to_text import TextToText


@pytest.mark.parametrize(
    ("corpus", "task"),
    [
        ("bundled:", translation.TASK),
        ("text:trees", translation.TASK),
        ("tfds:wmt14_translate/de-en", translation.TASK),
        ("trees:wsj", parsing.TASK),
        ("trees:wsj+silver", parsing.TASK),
    ],
)
def test_the_task_of_a_corpus_follows_from_its_scheme(corpus, task):
    assert task_of(corpus) is task
    assert isinstance(task, Task)


def test_translations_are_scored_against_the_untouched_lines():
    lines = ["Der  Hund rennt heute sehr schnell", "Hallo"]
    scored = translation.TASK.score_outputs(["The dog", "Hello"], lines, lines, "de")
    assert (scored.hypotheses, scored.references) == (lines, lines)
    assert scored.scores.best == pytest.approx(100)
    record = dataclasses.asdict(scored.scores)
    rows = list(translation.TASK.score_rows(record))
    assert [(name, value) for name, value, _ in rows] == [
        ("sacreBLEU", "100.00"),
        ("tokenized_split_bleu", "100.00"),
        ("chrF", "100.00"),
    ]
    assert rows[0][2] == record["bleu_signature"]


def test_parses_are_shown_as_trees_and_scored_by_f1():
    symbols = ["(S (NP DT NN )NP (VP VBZ )VP )S", "UH"]
    scored = parsing.TASK.score_outputs(["The dog barks", "Oh"], symbols, symbols, "de")
    assert scored.hypotheses == scored.references
    assert scored.hypotheses[1] == "(TOP (UH Oh))"
    assert scored.scores.best == 100
    rows = list(parsing.TASK.score_rows(dataclasses.asdict(scored.scores)))
    assert rows[2] == ("f1", "100.00", "percent, EVALB, COLLINS.prm")
    assert rows[-1][:2] == ("repaired", "0")


def test_experiments_are_those_of_the_paper():
    for corpus in ("text:x", "trees:x", "trees:x+y"):
        for language in ("de", "fr"):
            for width, heads in ((512, 8), (1024, 16)):
                changes = {"data.corpus": corpus, "data.target_language": language}
                sizes = {"model.d_model": width, "model.num_heads": heads}
                config = Config().replace({**changes, **sizes})
                experiment = task_of(corpus).experiment(config)
                assert experiment.name in paper.EXPERIMENTS
                assert experiment.settings.keys() == paper.BASE_SETTINGS.keys()


@dataclasses.dataclass(frozen=True)
class _Accuracy:
    accuracy: float

    @property
    def best(self):
        return self.accuracy


class _Sorting(TextToText):
    """A task that no release has: lines, and their words in order."""

    command = "sorting"
    model = "a model that sorts"
    commands = ("translate", "sorting")
    grid = GridMeasures(Measure("accuracy", "sorted"))
    measures = (Measure("accuracy", "sorted"),)

    def score_outputs(self, sources, outputs, targets, target_language):
        right = sum(output == target for output, target in zip(outputs, targets, strict=True))
        return Scored(_Accuracy(right / len(targets)), list(sources), list(outputs), list(targets))

    def score_rows(self, record):
        return [("accuracy", f"{record['accuracy']:.2f}", "share of the lines")]

    def experiment(self, config):
        return PublishedExperiment(
            "base, English-German", "none", None, {}, "6", frozenset(), {}, {}, ["Nobody sorts."]
        )

    def kind_of_measure(self, records):
        return None


@pytest.fixture
def sorting(monkeypatch):
    """A further task: a module of the package, and an entry of its table."""
    module = types.ModuleType("t2t_jax.tasks.sorting")
    module.TASK = _Sorting()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(tasks._MODULES, "sort", "sorting")
    return module.TASK


def test_a_further_task_is_a_module_and_an_entry_in_the_table(sorting, tmp_path):
    task = task_of("sort:DIR")
    assert task is sorting
    assert isinstance(task, Task)
    scored = task.score_outputs(["b a"], ["a b"], ["a b"], "de")
    assert isinstance(scored.scores, TaskScores)
    config = Config().replace({"data.corpus": "sort:DIR"})
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "scores.jsonl").write_text('{"corpus": "sort:DIR", "accuracy": 0.5}\n')
    section = build_report(tmp_path).sections[-1]
    assert section.notes == ["Nobody sorts."]
    assert section.header[-1] == "sorted"
    assert section.rows[0][-1] == "0.50"
