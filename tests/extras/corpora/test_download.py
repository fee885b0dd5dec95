"""Public corpora from a local server that has small archives of the same layout, and misbehaves."""

import fcntl
import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from dataclasses import asdict, replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.dataset import DATASETS

from t2t_jax.__main__ import main
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.extras.corpora import prepare, transfer
from t2t_jax.extras.corpora.catalogue import CORPORA, Archive, Cleaning, Text, public_corpus
from t2t_jax.extras.corpora.texts import lines_of
from t2t_jax.extras.corpora.transfer import fetch_archive
from tests.extras.corpora.archive_server import BYTES, digest_of, resized, sentences, serving, small
from tests.refusals import refused


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(transfer, "_PATIENCE", (0.0, 0.0))


@pytest.fixture
def server():
    with serving() as running:
        yield running


def _archive(server, **known):
    return Archive(f"{server.url}/file", **known)


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("none", {}, "answers 404 Not Found; name a mirror with --mirror"),
        ("file", {"digest": digest_of(b"another")}, "is not the published file: its sha256 sum"),
        ("file", {"size": 100}, "the published file 100; it was removed"),
        ("file", {"size": 2**60}, "make room there, or choose another directory"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(tmp_path, server, name, known, message):
    with refused(match=message):
        fetch_archive(Archive(f"{server.url}/{name}", **known), tmp_path)
    assert not (tmp_path / "file").exists()
    assert fetch_archive(_archive(server), tmp_path).read_bytes() == BYTES


def test_without_a_network_and_with_no_address(tmp_path):
    with refused(match=r"cannot be fetched: .*refused.*; run the same"):
        fetch_archive(Archive("http://127.0.0.1:9/file"), tmp_path)
    with refused("--mirror=mirror is not a URL; begin it with"):
        fetch_archive(Archive("http://127.0.0.1:9/file"), tmp_path, mirror="mirror")


def test_a_file_that_is_there_and_is_another_one_is_not_touched(tmp_path, server):
    (tmp_path / "file").write_bytes(b"mine")
    with refused(match=f"has 4 bytes, but the published file {len(BYTES):,}; remove"):
        fetch_archive(_archive(server, size=len(BYTES)), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_full_disk_is_named_and_a_second_process_is_refused(tmp_path, server, monkeypatch):
    archive = _archive(server)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _full)
        with refused(match=r"cannot write .*\.part: No space left.*; make room"):
            fetch_archive(archive, tmp_path)
    with (tmp_path / "file.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with refused(match=r"another process is writing .*file\.part"):
            fetch_archive(archive, tmp_path)


def _full(_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("name", CORPORA)
def test_every_corpus_is_read_in_its_own_layout(tmp_path, server, monkeypatch, capsys, name):
    corpus = public_corpus(name)
    server.files = small(corpus)
    monkeypatch.setattr(prepare, "public_corpus", lambda _: resized(corpus, server.files))
    directory = tmp_path / "corpus"
    command = ["data", name, str(directory), "--mirror", f"{server.url}/"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    languages = corpus.languages
    found = open_corpus(DataConfig(f"text:{directory}", *languages))
    assert set(found.splits) == {"train", "test", *corpus.evaluation} | {"dev"}
    for split, parts in corpus.evaluation.items():
        sources = list(chain.from_iterable(sentences(part.source) for part in parts))
        targets = list(chain.from_iterable(sentences(part.target) for part in parts))
        assert found.lines(split) == (sources, targets)
        assert f"{split:<5}" in printed
    counts = json.loads((directory / "corpus.json").read_text())["splits"]
    assert counts["train"]["pairs"] == len(found.lines("train")[0])
    sources = (directory / "SOURCES.md").read_text()
    assert all(archive.url in sources for archive in prepare.archives_of(corpus))
    by_name = open_corpus(DataConfig(f"{name}:{directory}", *languages))
    assert by_name.fingerprint("train") == found.fingerprint("train")
    num_requests = len(server.asked)
    assert main(command) == 0  # all is there
    assert capsys.readouterr().out == printed
    assert len(server.asked) == num_requests == len(server.files)


def test_a_directory_that_does_not_hold_the_public_corpus_of_its_name_is_refused(tmp_path):
    name, corpus = "multi30k-en-de", public_corpus("multi30k-en-de")
    config = DataConfig(f"{name}:{tmp_path}")
    with refused(match=f"does not exist; run t2t-jax data {name} 'no text'"):
        open_corpus(DataConfig(f"{name}:no text"))
    with refused(match=f"does not hold {name}; run t2t-jax data {name} "):
        open_corpus(config)
    usual = {"corpus": name, "cleaning": asdict(corpus.cleaning), "splits": {"train": _COUNTS}}
    for changes, message in [
        ({"corpus": "wmt14-en-de"}, f"holds wmt14-en-de, not {name}"),
        ({"cleaning": asdict(Cleaning(9))}, f"with custom cleaning.* text:{tmp_path}"),
        ({}, f"does not hold all of {name} yet; run t2t-jax data {name} "),
    ]:
        (tmp_path / "corpus.json").write_text(json.dumps(usual | changes))
        with refused(match=message):
            open_corpus(config)
    (tmp_path / "corpus.json").write_text("{")
    with refused(match=r"is damaged.* remove it and the texts beside it, and run t2t-jax"):
        open_corpus(config)


def test_training_sets_are_made_of_their_parts_in_order(tmp_path, server, monkeypatch):
    corpus = public_corpus("wmt16-en-ro")
    server.files = small(corpus)
    monkeypatch.setattr(prepare, "public_corpus", lambda _: resized(corpus, server.files))
    main(["data", "wmt16-en-ro", str(tmp_path / "c"), "--mirror", server.url])
    found = open_corpus(DataConfig(f"text:{tmp_path / 'c'}", "en", "ro"))
    europarl = corpus.train[0]
    assert found.lines("train") == (
        [*sentences(europarl.source), "one & two"],
        [*sentences(europarl.target), "unu și doi"],
    )
    counts = json.loads((tmp_path / "c" / "corpus.json").read_text())["splits"]["train"]
    assert counts["left_out"] == {"empty": 1}
    assert counts["source_words"] == len(" ".join(found.lines("train")[0]).split())


def test_every_23rd_pair_that_is_kept_is_of_the_development_set(tmp_path, monkeypatch):
    corpus = public_corpus("iwslt14-de-en")
    pairs = [(f"s {n}", "" if n == 5 else f"t {n}") for n in range(1, 50)]
    monkeypatch.setattr(prepare, "_pairs", lambda *_: iter(pairs))
    prepare._write_splits(replace(corpus, test_sets={}), tmp_path, Cleaning())
    assert (tmp_path / "dev.de").read_text().split("\n") == ["s 24", "s 47", ""]
    assert len((tmp_path / "train.en").read_text().splitlines()) == 46


def test_segments_are_those_of_sacrebleu(tmp_path):
    """Of a test set of WMT, sacreBLEU's own conversion is the reference."""
    text = Text(Archive("http://x/a.tgz"), "test/x-src.en.sgm")
    content = (
        '<srcset setid="x" srclang="any">\n<doc sysid="ref" docid="d" genre="news" origlang="en">\n'
        '<p>\n<seg id="1">It  cost &quot;£ 5&quot;.  </seg>\n</p>\n<seg id="2"></seg>\n'
        '<seg id="3"> <i>no</i> tag\t</seg>\n</doc>\n</srcset>\n'
    ).encode()
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
        info = tarfile.TarInfo(text.member)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    (tmp_path / "raw.sgm").write_bytes(content)
    DATASETS["wmt13"]._convert_format(str(tmp_path / "raw.sgm"), str(tmp_path / "plain"))
    expected = (tmp_path / "plain").read_text().split("\n")[:-1]
    assert list(lines_of(text, tmp_path)) == expected
    assert len(expected) == 3


def test_damaged_and_unaligned_archives_are_named(tmp_path, monkeypatch):
    corpus = public_corpus("wmt14-en-de")
    files = small(corpus)
    archives = tmp_path / "archives"
    archives.mkdir()
    for name, content in files.items():
        (archives / name).write_bytes(content)
    text = corpus.train[0].source
    (archives / text.archive.name).write_bytes(files[text.archive.name][:-60])
    with refused(match=r"europarl-v7\.tgz is damaged .*; remove it"):
        list(lines_of(text, archives))
    with refused("commoncrawl.tgz has no file nothing.en"):
        list(lines_of(replace(corpus.train[1].source, member="nothing.en"), archives))
    (archives / "short.gz").write_bytes(gzip.compress(b"one\n"))
    part = corpus.train[1]._replace(source=Text(Archive("http://x/short.gz")))
    with refused(match=r"short\.gz ends after 1 lines, before .*de-en\.de does"):
        list(prepare._pairs((part,), tmp_path))


def test_a_directory_with_something_else_is_refused(tmp_path):
    (tmp_path / "train.en").write_text("mine\n")
    with refused("holds train.en, which this command has not written"):
        main(["data", "multi30k-en-de", str(tmp_path)])
    (tmp_path / "corpus.json").write_text('{"corpus": "wmt14-en-de", "cleaning": {}, "splits": {}}')
    with refused("holds wmt14-en-de; name another directory"):
        main(["data", "multi30k-en-de", str(tmp_path)])
    assert (tmp_path / "train.en").read_text() == "mine\n"


_COUNTS = {"pairs": 1, "source_words": 1, "target_words": 1, "left_out": {}}


@pytest.mark.parametrize(
    "odd",
    [
        None,
        "many",
        {},
        _COUNTS | {"pairs": "many"},
        _COUNTS | {"pairs": True},
        _COUNTS | {"left_out": []},
        _COUNTS | {"left_out": {"empty": [1]}},
    ],
    ids=str,
)
def test_counts_of_a_split_that_are_none_are_refused(tmp_path, odd):
    with refused(match=r"corpus\.json is damaged .*`\$\.splits.*; remove it and"):
        _prepare_again(tmp_path, dict.fromkeys(("dev", "test"), _COUNTS) | {"train": odd})


@pytest.mark.parametrize(
    "splits",
    [["test"], ["train", "dev"], ["train", "dev", "test", "../../x"], ["train", "dev", "test", ""]],
    ids=str,
)
def test_a_corpus_with_other_splits_is_made_again(tmp_path, splits):
    with refused("would be fetched"):
        _prepare_again(tmp_path, dict.fromkeys(splits, _COUNTS))


def test_a_corpus_with_all_of_its_splits_is_not_made_again(tmp_path):
    done = _prepare_again(tmp_path, dict.fromkeys(("train", "dev", "test"), _COUNTS))
    assert {split: asdict(counts) for split, counts in done.items()} == dict.fromkeys(
        ("train", "dev", "test"), _COUNTS
    )


def _prepare_again(directory, splits):
    """What is said of a directory with all the texts of Multi30k, and these splits on record."""
    name = "multi30k-en-de"
    for split in ("train", "dev", "test"):
        for language in ("en", "de"):
            (directory / f"{split}.{language}").write_text("a\n")
    cleaning = asdict(public_corpus(name).cleaning)
    manifest = {"corpus": name, "cleaning": cleaning, "splits": splits}
    (directory / "corpus.json").write_text(json.dumps(manifest))

    def fetched(*_):
        raise UserError("would be fetched")

    return prepare.prepare_corpus(name, directory, fetched)


def test_what_is_no_file_or_directory_in_a_corpus_is_named(tmp_path):
    os.mkfifo(tmp_path / "corpus.json")
    with refused("corpus.json cannot be read: it is a directory, a pipe"):
        main(["data", "multi30k-en-de", str(tmp_path)])
    (tmp_path / "corpus.json").unlink()
    (tmp_path / "archives").rmdir()
    (tmp_path / "archives").write_text("no directory")
    with refused(match=r"cannot write .*archives: File exists"):
        main(["data", "multi30k-en-de", str(tmp_path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "takes a corpus .wmt14-en-de, .*iwslt14-de-en. and a directory, as in"),
        (["wmt14-ende", "D"], "no public corpus 'wmt14-ende'; did you mean wmt14-en-de"),
        (["wmt14-en-de", "D", "--miror", "m"], "unknown flag --miror; did you mean --mirror"),
        (["wmt14-en-de", "D", "--max-words", "0"], "--max-words=0 would leave no pairs"),
        (["wmt14-en-de", "D", "--max-ratio", "0.5"], "--max-ratio=0.5 is invalid; give 1"),
        (["wmt14-en-de", "D", "--max-ratio", "nan"], "--max-ratio=nan is invalid; give 1"),
    ],
)
def test_command_lines_that_are_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with refused(match=message):
        main(["data", *arguments])


_WORDS = st.text("ab ", max_size=12)


@given(_WORDS, _WORDS, st.integers(1, 5), st.floats(1, 4))
def test_cleaning_counts_words_and_treats_sides_alike(source, target, max_words, max_ratio):
    cleaning = Cleaning(max_words, max_ratio)
    fault = cleaning.fault(source, target)
    assert fault == cleaning.fault(target, f"  {source} ")
    lengths = len(source.split()), len(target.split())
    kept = (
        min(lengths) >= 1 and max(lengths) <= max_words and max(lengths) <= max_ratio * min(lengths)
    )
    assert (fault is None) == kept
    assert (Cleaning().fault(source, target) is None) == (min(lengths) > 0)


_PROGRAM = """
import json, sys
from dataclasses import replace
from t2t_jax.extras.corpora import catalogue
catalogue._MULTI30K = json.loads(sys.argv.pop(1))
train, dev, test = map(catalogue._multi30k, ("train", "val", "test_2016_flickr"))
corpus = catalogue.public_corpus("multi30k-en-de")
of_server = replace(corpus, train=(train,), test_sets={"dev": (dev,), "test": (test,)})
catalogue._CORPORA["multi30k-en-de"] = of_server
from t2t_jax.__main__ import start
start()
"""


def test_a_command_that_is_killed_twice_ends_with_the_right_files(tmp_path, server):
    names = [name.removesuffix(".gz") for name in small(public_corpus("multi30k-en-de"))]
    plain = {name: f"{name} sentence\n".encode() * 20_000 for name in names}
    server.files = {f"{name}.gz": gzip.compress(text, 0) for name, text in plain.items()}
    known = {
        name.removesuffix(".gz"): hashlib.sha256(content).hexdigest()
        for name, content in server.files.items()
    }
    directory = tmp_path / "corpus"
    command = [sys.executable, "-c", _PROGRAM, json.dumps(known), "data", "multi30k-en-de"]
    command += [str(directory), "--mirror", f"{server.url}/"]
    server.hangs = (1, 3)
    for _ in range(2):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            assert server.hung.acquire(timeout=60)
            _wait_for_bytes(directory)
            os.kill(process.pid, signal.SIGKILL)
        assert not (directory / "train.en").exists()
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    for split, stem in {"train": "train", "dev": "val", "test": "test_2016_flickr"}.items():
        for language in ("en", "de"):
            written = (directory / f"{split}.{language}").read_bytes()
            assert written == plain[f"{stem}.{language}"]
    assert [wanted for _, wanted in server.asked if wanted]  # it went on, and did not begin again
    (directory / "corpus.json").unlink()
    for path in directory.glob("*.??"):
        path.unlink()
    damaged = directory / "archives" / "val.de.gz"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert f"error: {damaged} is not the published file" in refused.stderr


def _wait_for_bytes(directory):
    """Wait until a process has written what a server sent it before it hung."""
    for _ in range(600):
        if any(path.stat().st_size for path in directory.glob("archives/*.part")):
            return
        threading.Event().wait(0.1)
    raise AssertionError("nothing has arrived")
