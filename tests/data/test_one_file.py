"""Corpora in one file, and dev sets that are held out of a train split."""

import gzip
import hashlib
import json
import random

import pytest

from t2t_jax.config import DataConfig
from t2t_jax.data import splits
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import prepare_pairs, prepare_vocabulary
from tests.refusals import refused

PAIRS = [(f"word {number}", f"Wort {number}") for number in range(40)]


def tsv(pairs):
    return "".join(f"{source}\t{target}\n" for source, target in pairs)


def json_lines(pairs, *names):
    return "".join(json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs)


def write(folder, name, content):
    data = content.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return f"text:{folder / name}"


def pairs_of(corpus, split):
    return list(zip(*corpus.lines(split), strict=True))


NESTED = "".join(json.dumps({"translation": {"en": s, "de": t}}) + "\n" for s, t in PAIRS)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("all.tsv", tsv(PAIRS), {}),
        ("all.tsv.gz", tsv(PAIRS), {}),
        ("all.tsv", tsv(PAIRS) + "\n\n", {}),  # empty lines are left out
        ("all.jsonl", json_lines(PAIRS, "en", "de"), {}),
        ("all.jsonl", NESTED, {"fields": ("translation.en", "translation.de")}),
        ("all.tsv", tsv(PAIRS), {"task": "classification"}),
        ("all.jsonl.gz", json_lines(PAIRS, "text", "tags"), {"task": "tagging"}),
    ],
)
def test_a_file_of_pairs_is_a_corpus_by_its_name(tmp_path, name, content, options):
    place = write(tmp_path, name, content)
    whole = open_corpus(DataConfig(corpus=place, **options))
    assert whole.splits == ("train",)
    assert pairs_of(whole, "train") == PAIRS
    split = open_corpus(DataConfig(corpus=place, dev_lines=10, **options))
    assert len(pairs_of(split, "dev")) == 10
    assert {*pairs_of(split, "dev"), *pairs_of(split, "train")} == {*PAIRS}


def test_a_file_of_documents_is_a_corpus_of_one_language(tmp_path):
    place = write(tmp_path, "all.jsonl", json_lines([(s,) for s, _ in PAIRS], "text"))
    corpus = open_corpus(DataConfig(corpus=place, task="language_modelling", dev_lines=5))
    assert len(corpus.lines("dev")[1]) == 5
    assert {*corpus.lines("train")[1], *corpus.lines("dev")[1]} == {s for s, _ in PAIRS}


def test_the_pairs_with_the_smallest_hashes_are_held_out_with_all_their_copies(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(splits, "_SPARE", 3)
    lines = [*PAIRS, *PAIRS, ("", "no source"), ("no target", "")]
    order = sorted(PAIRS, key=lambda pair: hashlib.sha256("\n".join(pair).encode()).digest())
    opened = []
    for seed in (0, 1):
        random.Random(seed).shuffle(lines)
        place = write(tmp_path, f"{seed}.tsv", tsv(lines))
        opened.append(open_corpus(DataConfig(corpus=place, dev_lines=7)))
    for corpus in opened:
        assert pairs_of(corpus, "dev") == order[:7]
        assert sorted(pairs_of(corpus, "train")) == sorted(x for x in lines if x not in order[:7])
    one, other = opened
    assert one.fingerprint("dev") == other.fingerprint("dev")
    assert one.fingerprint("train") != other.fingerprint("train")


def test_without_dev_lines_a_directory_is_the_corpus_that_it_was(tmp_path):
    for language, side in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        write(tmp_path, f"train.{language}", "\n".join(side))
    config = DataConfig(corpus=f"text:{tmp_path}", vocab_size=40, cache_dir=str(tmp_path / "cache"))
    sides = (hashlib.sha256("\n".join(x).encode()).hexdigest() for x in zip(*PAIRS, strict=True))
    whole = open_corpus(config)
    assert whole.fingerprint("train") == hashlib.sha256(" ".join(sides).encode()).hexdigest()
    config = DataConfig(**{**vars(config), "dev_lines": 10})
    corpus = open_corpus(config)
    vocabulary = prepare_vocabulary(config, corpus)
    numbers = [len(prepare_pairs(config, corpus, vocabulary, x)) for x in ("train", "dev")]
    assert numbers == [30, 10]


NOT_A_CORPUS = {
    "text:short.tsv": (
        {},
        r"short\.tsv line 2 is refused as without a side, the first of 1; a line needs en and",
    ),
    "text:wide.tsv": (
        {},
        r"wide\.tsv line 1 is refused as having too many columns, the first of 1; a line needs",
    ),
    "text:nested.jsonl": (
        {},
        r"line 1 is refused as without a side, the first of 40; a line needs en and de",
    ),
    "text:notes.txt": ({}, r"notes\.txt is neither a directory nor a \.tsv or \.jsonl file"),
    "text:gone.tsv": ({}, r"corpus file gone\.tsv does not exist"),
    "text:all.tsv": ({"dev_lines": 40}, "leaves nothing to train on: it has 40 distinct pairs"),
    "text:./all.tsv": ({"fields": ("de",)}, "data.fields=de names 1, but a line holds a source"),
    "bundled:": ({"dev_lines": 5}, "is not for bundled:, which has a dev split; leave it out"),
    "shards:all.tsv": ({"dev_lines": 5}, "which has shards; leave it out"),
    "text:all.tsv+text:all.tsv": ({"dev_lines": 5}, "is a mixture; give its first corpus a dev"),
}


@pytest.mark.parametrize("name", NOT_A_CORPUS)
def test_what_is_no_corpus_of_one_file_is_explained(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "all.tsv", tsv(PAIRS))
    write(tmp_path, "short.tsv", "a\tA\nb\n")
    write(tmp_path, "wide.tsv", "a\tA\tmore\n")
    write(tmp_path, "nested.jsonl", NESTED)
    write(tmp_path, "notes.txt", "a")
    options, message = NOT_A_CORPUS[name]
    with refused(match=message):
        open_corpus(DataConfig(corpus=name, **options)).lines("train")
