"""A run, a new corpus, and a directory from which fine-tuning starts with new subwords."""

import re
import shutil

import numpy as np
import pytest

import t2t_jax
from t2t_jax.__main__ import main
from t2t_jax.config import DataConfig
from t2t_jax.config.file import load_config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.labelled import labelled_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange.formats import write_model
from t2t_jax.run.start import check_start
from t2t_jax.training.parameter_file import read_parameters, write_parameters
from t2t_jax.workdir import read_config, read_vocabulary
from tests.interchange.models import portable
from tests.run.test_loading import LINES

COMMAND = "data", "extend-vocabulary"
NUMBER = 60


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run with random parameters, and real subwords of the bundled corpus."""
    workdir = tmp_path_factory.mktemp("base") / "run"
    write_model(portable({}), "run", workdir)
    return workdir


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of other languages, as the names of its files have it."""
    folder = tmp_path_factory.mktemp("corpus")
    sources, targets = open_corpus(DataConfig()).lines("test")
    (folder / "train.xx").write_text("".join(f"{line} ωω\n" for line in sources[:300]), "utf-8")
    (folder / "train.yy").write_text("".join(f"{line} ωω\n" for line in targets[:300]), "utf-8")
    return folder


def flags(base, new, corpus, number=NUMBER):
    of_corpus = ["--source-language", "xx", "--target-language", "yy"]
    return [str(base), str(new), "--corpus", f"text:{corpus}", "--num-new", str(number), *of_corpus]


@pytest.fixture(scope="module")
def extended(base, corpus):
    new = base.with_name("new")
    assert main([*COMMAND, *flags(base, new, corpus)]) == 0
    return new


def test_the_same_command_writes_the_same_bytes_and_says_what_has_changed(
    base, corpus, extended, tmp_path, capsys
):
    assert main([*COMMAND, *flags(base, tmp_path / "again", corpus)]) == 0
    printed = capsys.readouterr().out
    for file in extended.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
    table = dict(re.findall(r"^(\S.*\S) {2,}(\S+ +\S+)$", printed, re.MULTILINE))
    assert table["entries of the vocabulary"].split() == ["500", "560"]
    lines = [line for language in ("xx", "yy") for line in read(corpus, language)]
    words, expected = sum(len(line.split()) for line in lines), []
    for vocabulary in map(read_vocabulary, (base, extended)):
        rows = vocabulary.encode(lines)
        number = sum(len(row) - 1 for row in rows)  # without the end of a sentence
        expected.append([f"{number / words:.2f}", f"{sum(r.count(3) for r in rows) / number:.2%}"])
    shown = "subwords per word", "unknown or in bytes"
    found = [table[f"new text: {figure}"].split() for figure in shown]
    assert [*map(list, zip(*expected, strict=True))] == found
    before, after = map(float, table["old text: subwords per 100 characters"].split())
    assert 0.8 * before < after <= before
    assert "most frequent new subwords: \u2581ωω (600), " in printed
    command = printed.split("train it with: t2t-jax ")[1].split()
    assert command[:2] == ["train", "FINE"]


def read(corpus, language):
    return (corpus / f"train.{language}").read_text(encoding="utf-8").splitlines()


def test_fine_tuning_takes_it_with_its_own_config(base, extended):
    start = {"training.init_from": str(extended)}
    check_start(read_config(extended).replace(start))
    with pytest.raises(UserError, match=r"another model \(data.vocab_size 560 -> 500\)"):
        check_start(read_config(base).replace(start))


@pytest.mark.thorough
def test_it_translates_at_once_and_fine_tuning_starts_better_than_from_random_rows(
    tiny_run, tmp_path
):
    lines = "".join(f"{line}\n" for line in LINES * 60)
    for language in "en", "de":
        (tmp_path / f"train.{language}").write_text(lines, "utf-8")
    fields = {
        "data.corpus": f"text:{tmp_path}",
        "data.vocab_size": 40,
        "training.num_train_steps": 150,
        "training.learning_rate_factor": 0.3,
        "checkpoint.every_steps": 150,
    }
    config = load_config(str(tiny_run.folder / "tiny.py")).replace(fields)
    assert t2t_jax.train(config, tmp_path / "base").exit_code == 0
    extended, random = tmp_path / "extended", tmp_path / "random"
    of_corpus = "--corpus", f"text:{tmp_path}", "--num-new", "10"
    assert main([*COMMAND, str(tmp_path / "base"), str(extended), *of_corpus]) == 0
    assert len(t2t_jax.load(extended).translate(["a red house"], beam_size=1)) == 1
    shutil.copytree(extended, random)
    (random / "SHA256SUMS").unlink()
    saved, rng = read_parameters(random / "model.safetensors"), np.random.default_rng(0)
    rows = np.array(saved.arrays["embedding"])
    rows[40:] = rng.normal(0, rows.shape[1] ** -0.5, rows[40:].shape)  # as a training begins
    arrays = {**saved.arrays, "embedding": rows}
    write_parameters(random / "model.safetensors", saved._replace(arrays=arrays))
    losses = []
    for start in extended, random:
        tuned = {"training.init_from": str(start), "training.num_train_steps": 3}
        run = t2t_jax.train(read_config(start).replace(tuned), tmp_path / f"from_{start.name}")
        assert run.exit_code == 0
        losses.append(run.history.training[0]["loss"])
    assert np.isfinite(losses).all()
    assert losses[0] < losses[1], losses


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": 0}, r"--num-new=0 adds nothing; give 1 or more"),
        ({"number": 10**6}, r"has \d+ new subwords that occur 2 times or more, fewer than 1000000"),
        ({"base": "nowhere"}, "nowhere is not a run directory"),
        ({"corpus": "nowhere"}, "corpus directory nowhere does not exist"),
        ({"new": "."}, "exists and is not empty; choose another directory"),
        ({"new": "new.zip"}, "would be a directory with the name of an archive"),
    ],
)
def test_what_cannot_be_extended_is_refused_in_one_line(
    base, corpus, tmp_path, monkeypatch, change, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    asked = {"base": base, "new": "new", "corpus": corpus} | change
    with pytest.raises(UserError, match=message) as refused:
        main([*COMMAND, *flags(**asked)])
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_of_labels_and_one_without_checkpoints_are_refused(base, corpus, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in "config.json", "vocabulary.model":
        shutil.copy(base / name, run)  # without parameters
    with pytest.raises(UserError, match=r"has no checkpoints/ directory and no model\.s"):
        main([*COMMAND, *flags(run, tmp_path / "new", corpus)])
    labelled_vocabulary(read_vocabulary(base), ["a"]).save(run / "vocabulary.model")
    with pytest.raises(UserError, match="has a LabelledVocabulary, and only a SentencePiece BPE"):
        main([*COMMAND, *flags(run, tmp_path / "new", corpus)])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
