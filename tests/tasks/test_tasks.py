"""What a corpus is for follows from its scheme, and a further task is a module and a row."""

import ast
import dataclasses
import sys
import types
from pathlib import Path

import pytest

import t2t_jax
from t2t_jax import Config, UserError, paper
from t2t_jax.commands.groups import all_commands, check_command
from t2t_jax.config.tasks import TASKS, TaskFacts
from t2t_jax.data.splits import Split
from t2t_jax.extras.encoders.tasks import EncoderTask
from t2t_jax.extras.watching.report import build_report
from t2t_jax.run.history import dev_score, score_name
from t2t_jax.tasks import parsing, task_of, translation
from t2t_jax.tasks.task import GridMeasures, Measure, PublishedExperiment, Scored, Task, TaskScores
from t2t_jax.tasks.text_to_text import TextToText
from t2t_jax.workdir import read_log
from tests.tiny import tiny_sizes


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


@pytest.mark.parametrize("name", TASKS)
def test_every_row_has_a_module_whose_measures_have_its_score_and_commands_that_there_are(name):
    row, corpus = TASKS[name], "trees:" if name == "parsing" else "bundled:"
    task = task_of(corpus, name if name in TASKS.names else "auto")
    assert isinstance(task, Task)
    assert isinstance(task, EncoderTask) == ("predict" in row.commands)
    assert row.score[0] in {measure.field for measure in task.measures}
    assert set(row.commands) <= {command for group in all_commands().values() for command in group}


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
class _Order:
    in_order: float

    @property
    def best(self):
        return self.in_order


class _Sorting(TextToText):
    """A task that no release has: lines, and their words in order."""

    model = "a model that sorts"
    grid = GridMeasures(Measure("in_order", "lines in order"))
    measures = (Measure("in_order", "lines in order"),)

    def score_outputs(self, sources, outputs, targets, target_language):
        right = sum(output == target for output, target in zip(outputs, targets, strict=True))
        return Scored(_Order(right / len(targets)), list(sources), list(outputs), list(targets))

    def score_rows(self, record):
        return [("in order", f"{record['in_order']:.2f}", "share of the lines")]

    def experiment(self, config):
        return PublishedExperiment("base, English-German", "none", ["Nobody sorts."])


def _sorted_lines(name, config):
    """The corpus of `data.task="sorting"`: every split has the same lines."""
    lines = ["b a", "d c b", "a", "c a b"] * 8
    read = [(lines, [" ".join(sorted(line.split())) for line in lines])]
    return {split: Split(lambda: name, lambda: iter(read)) for split in ("train", "dev")}


@pytest.fixture
def sorting(monkeypatch):
    """A further task: a module of the package, and a row of the table."""
    module = types.ModuleType("t2t_jax.tasks.sorting")
    module.TASK = _Sorting()
    module.splits = _sorted_lines
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def add(**facts):
        row = TaskFacts(
            ("encoder_decoder",),
            "t2t_jax.tasks.sorting:splits",
            ("in_order", "lines in order"),
            ("translate",),
            writes_text=True,
            **facts,
        )
        monkeypatch.setitem(TASKS, "sorting", row)
        return module.TASK

    return add


def test_a_task_of_a_scheme_is_a_module_and_a_row_of_the_table(sorting, tmp_path):
    added = sorting(schemes=("sort",))
    task = task_of("sort:DIR")
    assert task is added
    assert isinstance(task, Task)
    scored = task.score_outputs(["b a"], ["a b"], ["a b"], "de")
    assert isinstance(scored.scores, TaskScores)
    config = Config().replace({"data.corpus": "sort:DIR"})
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "scores.jsonl").write_text('{"corpus": "sort:DIR", "in_order": 0.5}\n')
    section = build_report(tmp_path).sections[-1]
    assert section.notes == ["Nobody sorts."]
    assert section.header[-1] == "lines in order"
    assert section.rows[0][-1] == "0.50"


@pytest.mark.thorough
def test_a_task_that_the_config_names_is_checked_read_trained_on_and_scored(sorting, tmp_path):
    with pytest.raises(UserError, match=r"data\.task='sorting' is not one of 'auto', 'language_mo"):
        Config().replace({"data.task": "sorting"})
    sorting()
    with pytest.raises(UserError, match=r"set model\.architecture='encoder_decoder', or data"):
        Config().replace({"data.task": "sorting", "model.architecture": "decoder_only"})
    config = Config().replace(
        {
            **{"data.task": "sorting", "data.corpus": "lines:", "data.vocab_size": 12},
            **tiny_sizes(16, (1, 1)),
            **{"data.max_length": 8, "data.cache_dir": str(tmp_path / "cache")},
            **{"data.source_tokens_per_step": 64, "data.target_tokens_per_step": 64},
            **{"training.num_train_steps": 1, "evaluation.num_sentences": 1},
            "decoding.max_extra_length": 2,
        }
    )
    workdir = tmp_path / "run"
    assert t2t_jax.train(config, workdir).exit_code == 0
    [evaluation] = [one for one in read_log(workdir) if one["of"] == "dev"]
    assert dev_score(evaluation) in (0, 1)
    assert score_name(evaluation) == "lines in order"
    with pytest.raises(UserError, match="is a model that sorts, and t2t-jax score is not for such"):
        check_command("score", [workdir])
    check_command("translate", [workdir])
    check_command("evaluate", [workdir])


_NAMES = frozenset(TASKS.names) - {"auto"}


def _named(node):
    """The names of tasks that a comparison, or a table, has in it."""
    if isinstance(node, ast.Compare):
        inside, names = ast.walk(node), frozenset(TASKS)
    elif isinstance(node, ast.Dict):
        inside, names = filter(None, node.keys), _NAMES
    elif isinstance(node, ast.Set | ast.Tuple | ast.List):
        inside, names = node.elts, _NAMES
    elif isinstance(node, ast.MatchValue):
        inside, names = [node.value], frozenset(TASKS)
    else:
        return set()
    return {one.value for one in inside if isinstance(one, ast.Constant)} & names


def test_no_task_is_asked_for_by_its_name_but_in_its_own_file():
    package = Path(t2t_jax.__file__).parent
    found = {
        f"{path.relative_to(package)}:{node.lineno}": names
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (names := _named(node) - {path.stem})
    }
    # What a format carries is a list of values; see `interchange.carried`.
    assert {place for place in found if not place.startswith("extras/interchange/")} == set()
