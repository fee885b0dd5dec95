"""Data that a Python program gives, which are the corpus that the same text files are."""

import dataclasses
import json
import signal

import grain
import jax
import numpy as np
import pytest

from t2t_jax import evaluate, load, train
from t2t_jax.commands.train import train_command
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus, own_corpus
from t2t_jax.data.tokenized import prepare_pairs, prepare_vocabulary
from t2t_jax.workdir import read_config
from tests.programs import run_python
from tests.refusals import refused
from tests.trained import account, records_of

PAIRS = [(f"word {n} of {n % 7}", f"Wort {n} von\u2028{n % 7}") for n in range(40)]


class Sequence:
    """Rows by index alone, without an iterator or an end, as PyTorch has them."""

    def __init__(self, rows, **attributes):
        self.rows = rows
        vars(self).update(attributes)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index % len(self.rows)]


def written(folder, *columns, train=PAIRS):
    """Write the sides of pairs as text files, and return the name of the corpus."""
    folder.mkdir(exist_ok=True)
    for name, side in zip(columns, zip(*train, strict=True), strict=True):
        (folder / f"train.{name}").write_text("".join(f"{line}\n" for line in side), "utf-8")
    return f"text:{folder}"


def dicts(*names):
    return [dict(zip(names, pair, strict=True)) for pair in PAIRS]


def batches(config, corpus):
    vocabulary = prepare_vocabulary(config, corpus)
    examples = prepare_pairs(config, corpus, vocabulary, "train")
    batches = Batches(examples, config, seed=0)
    return jax.tree.map(np.ndarray.tolist, [batches(step) for step in range(3)])


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (PAIRS, ()),
        ({"train": [list(pair) for pair in PAIRS], "validation": PAIRS[:3]}, ()),
        (dicts("en", "de"), ()),
        ([{"id": 1, "translation": row} for row in dicts("en", "de")], ()),
        ([{"x": {"y": s}, "z": t} for s, t in PAIRS], ("x.y", "z")),
        (Sequence(dicts("en", "de")), ()),
        (grain.MapDataset.source(PAIRS), ()),
        (grain.MapDataset.source(dicts("en", "de")).filter(lambda row: True), ()),
        ([(f"{s}\n", "\r\n".join(t.split(" "))) for s, t in PAIRS], ()),  # a text is one line
    ],
)
def test_rows_are_the_corpus_that_text_files_are(tmp_path, data, fields):
    config = DataConfig(vocab_size=64, cache_dir=str(tmp_path / "own"), fields=fields)
    in_files = dataclasses.replace(
        config, corpus=written(tmp_path, "en", "de"), cache_dir=str(tmp_path / "files")
    )
    own, expected = own_corpus(data, config), open_corpus(in_files)
    assert (own.name, own.splits[1:]) == ("python:", ("dev",) * isinstance(data, dict))
    assert own.lines("train") == expected.lines("train")
    assert own.fingerprint("train") == expected.fingerprint("train")
    assert batches(config, own) == batches(in_files, expected)


TEXTS = [(target,) for _, target in PAIRS]
LABELS = [(source, n % 2) for n, (source, _) in enumerate(PAIRS)]


@pytest.mark.parametrize(
    ("task", "suffixes", "rows", "data"),
    [
        ("language_modelling", ["txt"], TEXTS, [text for (text,) in TEXTS]),
        ("language_modelling", ["txt"], TEXTS, [{"text": text} for (text,) in TEXTS]),
        ("classification", ["txt", "label"], LABELS, LABELS),
        ("classification", ["txt", "label"], LABELS, [{"text": t, "label": n} for t, n in LABELS]),
    ],
)
def test_other_tasks_read_texts_and_labels(tmp_path, task, suffixes, rows, data):
    config = DataConfig(task=task, corpus=written(tmp_path, *suffixes, train=rows))
    own, files = own_corpus(data, config), open_corpus(config)
    assert own.lines("train") == files.lines("train")
    assert own.fingerprint("train") == files.fingerprint("train")


def test_blank_documents_are_left_out():
    own = own_corpus(["a", " ", "b"], DataConfig(task="language_modelling"))
    assert own.lines("train") == (["", ""], ["a", "b"])


def test_data_with_a_fingerprint_are_known_by_it_and_by_a_sample():
    def fingerprint(rows, **attributes):
        return own_corpus(Sequence(rows, **attributes), DataConfig()).fingerprint("train")

    expected = fingerprint(PAIRS, fingerprint="abc")
    for attributes in ({"fingerprint": lambda: "abc"}, {"_fingerprint": "abc"}):
        sampled_rows = [row if n % 3 == 0 else None for n, row in enumerate(PAIRS)]
        assert fingerprint(sampled_rows, **attributes) == expected
    others = [
        fingerprint(PAIRS),
        fingerprint(PAIRS, fingerprint="abd"),
        fingerprint(PAIRS[:-1], fingerprint="abc"),
        fingerprint([(target, source) for source, target in PAIRS], fingerprint="abc"),
    ]
    assert len({expected, *others}) == 5


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([*PAIRS, ("a", "b", "c")], "row 40 (from 0) of the train split of data has 3 values: it"),
        ({"dev": [None]}, "row 0 (from 0) of the dev split of data has 1 values: it is None"),
        ([("a", None)], "has no text as de: it is ('a', None); give a pair of str (en, de), or a"),
        ([("a\ud800", "b")], "has no text as en: it is"),
        ([{"en": "a", "fr": "b"}], "as de: it is {'en': 'a', 'fr': 'b'}; give a pair of str"),
        ((pair for pair in PAIRS), "the train split of data is a generator of an unknown number"),
        ({"train": []}, "the train split of data is a list of 0 rows; give a sequence with rows"),
        ({"train": {"en": ["a"], "de": ["b"]}}, "the train split of data is a dict of an unknown"),
        (grain.MapDataset.source(PAIRS).repeat(), "of 9,223,372,036,854,775,807 rows; give a"),
        ({"dev": PAIRS, "validation": PAIRS}, "data has the split 'validation' twice"),
        ({0: PAIRS}, "data has the split 0 "),
        ({}, "data is an empty dict"),
        ("corpus.tsv", "is a str of an unknown number of rows"),
    ],
)
def test_bad_rows_are_refused_with_their_place(data, told):
    with refused(told):
        own_corpus(data, DataConfig())


def test_rows_that_change_are_refused():
    rows = [*PAIRS]
    own = own_corpus(rows, DataConfig())
    rows.reverse()
    with refused("the train split of data has other rows when it is read again"):
        own.lines("train")


def test_dev_lines_hold_out_pairs(tmp_path):
    place, config = written(tmp_path, "en", "de"), DataConfig(corpus="python:", dev_lines=7)
    own, files = open_corpus(config, PAIRS), open_corpus(dataclasses.replace(config, corpus=place))
    assert [own.lines(x) for x in own.splits] == [files.lines(x) for x in files.splits]
    assert own_corpus(PAIRS, config, "test").splits == ("test",)
    assert own_corpus(PAIRS, config, "dev").lines("dev") == own.lines("dev")
    assert len(own_corpus({"dev": PAIRS}, config).lines("dev")[0]) == len(PAIRS)


KILLED = """
import os, signal, sys
from t2t_jax import Config, train
from t2t_jax.data.corpus import open_corpus

config, place, workdir = Config.from_json(sys.stdin.read()), *sys.argv[1:]
corpus = open_corpus(config.replace({"data.corpus": place}).data)
data = {split: [*zip(*corpus.lines(split))] for split in corpus.splits}
train(config, workdir, data=data, hooks=[
    lambda step, record, state: step == 7 and os.kill(os.getpid(), signal.SIGKILL)
])
"""


def test_a_killed_run_on_own_data_is_the_run_on_text_files(tiny_run, tmp_path):
    config, workdir = tiny_run.config, tmp_path / "own"
    corpus = open_corpus(config.data)
    data = {split: [*zip(*corpus.lines(split), strict=True)] for split in corpus.splits}
    unnamed = config.replace({"data.corpus": "bundled:"})
    killed = run_python("-c", KILLED, config.data.corpus, workdir, stdin=unnamed.to_json())
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    refusal = f"is not what {workdir} was started with (corpus.sha256 in there); give as `data`"
    with refused(f"python: {refusal}"):
        train(unnamed, workdir, data={**data, "train": data["train"][::-1]})
    with refused("was trained with another dev split than this run"):
        train(unnamed, workdir, data={**data, "dev": data["dev"][::-1]})
    with refused(f"bundled: {refusal}"):
        train(unnamed, workdir)
    with refused("give the same data to t2t_jax.train(config, workdir, data=...)"):
        train(read_config(workdir), workdir)
    train(unnamed, workdir, data=data)
    train(config, tmp_path / "files")
    assert account(workdir)["parameters"] == account(tmp_path / "files")["parameters"]
    assert records_of(workdir, "end")[-1]["text"] == "12 steps are done"
    translator = load(workdir)
    [own, files] = [evaluate(translator, x, "dev") for x in (data, corpus)]
    assert (own.loss[:3], own.scores) == (files.loss[:3], files.scores)
    assert evaluate(translator, data["dev"], "mine").scores == files.scores
    with refused("or t2t_jax.evaluate(translator, data), or name a corpus such as text:DIR"):
        evaluate(translator)
    _check_missing_plugin(workdir, translator)


def _check_missing_plugin(workdir, translator):
    """A run on the corpus of a plugin that is not installed still translates."""
    config = json.loads((workdir / "config.json").read_text())
    config["data"]["corpus"] = "mine:x"
    (workdir / "config.json").write_text(json.dumps(config))
    results = [x.translate(["A cat."], beam_size=2) for x in (load(workdir), translator)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda name: DataConfig(corpus=name),
        lambda name: Config().replace({"data.corpus": f"{name}+text:A"}),
        lambda name: train_command(["w", f"--data.corpus={name}"]),
    ],
)
def test_a_corpus_of_an_unknown_form_is_refused_at_once(make):
    for name in ("mine:x", "mine", "text:"):
        with refused("' is not bundled:, text:DIR, text:FILE.tsv, text:FILE.jsonl, trees:DIR"):
            make(name)
