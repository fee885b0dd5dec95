"""Corpora in shards: the same pairs from every format, faults named, pieces made once."""

import gzip
import json
import os
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from t2t_jax import Config, UserError
from t2t_jax.__main__ import main
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.pair_files import Faults, Shard
from t2t_jax.data.tokenized import prepare_vocabulary
from t2t_jax.extras.shards import listing
from t2t_jax.extras.shards import pieces as shard_pieces
from t2t_jax.extras.shards.listing import shard_of
from t2t_jax.tasks import task_of
from tests.data.test_batching import pairs_in

SOURCES = [f"the {word} house number {n}" for n in range(90) for word in ("red", "old", "big")]
TARGETS = [line.replace("the", "das").replace("house", "Haus") for line in SOURCES]
FIELDS = "text.en", "text.de"


def packed(path, content):
    """Write bytes as the suffix of the name says."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif path.suffix == ".zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
            file.write(content)
    else:
        path.write_bytes(content)


def write_shards(folder, kind, num=3):
    """Write the pairs as shards, and return the pattern of their names."""
    folder.mkdir(exist_ok=True)
    size = len(SOURCES) // num
    for k in range(num):
        own = slice(k * size, (k + 1) * size)
        pairs = list(zip(SOURCES[own], TARGETS[own], strict=True))
        rows = [{"text": {"en": source, "de": target}} for source, target in pairs]
        name = folder / f"train-{k}"
        if kind == "parquet":
            parquet.write_table(pyarrow.Table.from_pylist(rows), f"{name}.parquet")
        elif kind.startswith("jsonl"):
            packed(Path(f"{name}.{kind}"), "".join(json.dumps(row) + "\n" for row in rows).encode())
        elif kind.startswith("tsv"):
            packed(Path(f"{name}.{kind}"), "".join(f"{s}\t{t}\n" for s, t in pairs).encode())
        else:
            for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
                file = Path(f"{name}.{language}{kind.removeprefix('text')}")
                packed(file, "".join(f"{line}\n" for line in lines).encode())
    ending = f"{{language}}{kind.removeprefix('text')}" if kind.startswith("text") else kind
    return f"shards:{folder}/{{split}}-*.{ending}"


@pytest.fixture
def config(tmp_path):
    return Config().replace(
        {
            "data.corpus": write_shards(tmp_path / "shards", "jsonl"),
            "data.fields": FIELDS,
            "data.vocab_size": 100,
            "data.max_length": 40,
            "data.source_tokens_per_step": 200,
            "data.target_tokens_per_step": 240,
            "data.cache_dir": str(tmp_path / "cache"),
            "data.window": 2,
        }
    )


def opened(config):
    """Return the pieces of a corpus, and the vocabulary."""
    corpus = open_corpus(config.data)
    vocabulary = prepare_vocabulary(config.data, corpus)
    text = task_of(corpus.name, corpus.task).train_text(config, vocabulary)
    return corpus.parts["train"].pieces(config.data, vocabulary, text), vocabulary


def epoch(batches):
    steps = range(batches.steps_per_epoch)
    return Counter(pair for step in steps for pair in pairs_in(batches(step)))


@pytest.mark.parametrize(
    "kind", ["text", "text.gz", "text.zst", "tsv", "tsv.gz", "jsonl", "jsonl.zst", "parquet"]
)
def test_every_format_gives_the_same_pairs(tmp_path, config, kind):
    of_kind = write_shards(tmp_path / "others", kind)
    fields = FIELDS if kind[:5] in ("jsonl", "parqu") else ()
    corpus = open_corpus(config.replace({"data.corpus": of_kind, "data.fields": fields}).data)
    assert corpus.splits == ("train",)
    assert corpus.lines("train") == (SOURCES, TARGETS)


def test_an_epoch_has_every_pair_once_whatever_the_batching(config):
    pieces, vocabulary = opened(config)
    sides = (vocabulary.encode(lines) for lines in (SOURCES, TARGETS))
    expected = Counter((tuple(s), tuple(t)) for s, t in zip(*sides, strict=True))
    assert len(pieces) == 3
    assert pieces.content.num_examples == len(SOURCES)
    for batching in ("bucket", "pack"):
        found, _ = opened(config.replace({"data.batching": batching}))
        batches = Batches(found, found.config, 5)
        assert epoch(batches) == expected
        first = batches.steps_per_epoch
        assert pairs_in(batches(0)) != pairs_in(batches(first))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model.architecture": "decoder_only", "training.source_loss": True, "data.max_length": 16},
    ],
)
def test_rows_are_counted_with_the_pieces_as_a_training_lays_them_out(config, tmp_path, changes):
    long = {"text": {"en": "the red house " * 4, "de": "das red Haus " * 4}}
    with (tmp_path / "shards" / "train-1.jsonl").open("a") as file:
        file.write(json.dumps(long) + "\n")
    for batching in ("bucket", "pack"):
        pieces, _ = opened(config.replace({"data.batching": batching, **changes}))
        batches = Batches(pieces, pieces.config, 3)
        laid_out = [batches._count_rows(part) for part in range(len(pieces))]
        counts, most = pieces.row_counts(batches._form, batches._count_rows)
        assert np.array_equal(counts, [rows for rows, _ in laid_out])
        assert most == max(m for _, m in laid_out)


def test_packed_rows_are_counted_once(config, capsys, monkeypatch):
    expected = epoch(Batches(opened(config)[0], config.data, 0))
    [folder] = Path(config.data.cache_dir).glob("pieces-*")
    assert [*folder.glob("packed-*.json")] == []
    monkeypatch.setattr(shard_pieces, "_MANY_PIECES", 2)
    packing = config.replace({"data.batching": "pack"})
    for said in (1, 0):
        assert epoch(Batches(opened(packing)[0], packing.data, 0)) == expected
        assert capsys.readouterr().err.count("to count their rows") == said
    assert [path.name for path in folder.glob("packed-*.json")] == ["packed-40x40.json"]


def test_other_fields_of_the_same_shards_are_other_text(config):
    pieces, _ = opened(config)
    swapped, _ = opened(config.replace({"data.fields": FIELDS[::-1]}))
    assert pieces.folder != swapped.folder
    assert pieces.content.source == swapped.content.target


def test_tokenising_goes_on_where_it_was_stopped_and_gives_the_same_bytes(config, monkeypatch):
    opened(config)
    [folder] = Path(config.data.cache_dir).glob("pieces-*")
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    tokenised = []
    make = shard_pieces.ShardJob.make

    def counted(self, *arguments):
        tokenised.append(self.number)
        return make(self, *arguments)

    monkeypatch.setattr(shard_pieces.ShardJob, "make", counted)
    opened(config)
    assert tokenised == []
    for gone in (["prepared.json"], ["00001.json", "prepared.json"], ["00002-0.npy"]):
        for name in gone:
            (folder / name).unlink()
        opened(config)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    assert tokenised == [1, 2]


def test_only_shards_that_changed_are_hashed_again(config, tmp_path, monkeypatch):
    hashed: list[str] = []

    def noted(path, kind):
        hashed.append(path.name)
        return digest_of(path, kind)

    digest_of = listing.digest_of
    monkeypatch.setattr(listing, "digest_of", noted)
    before = open_corpus(config.data).fingerprint("train")
    assert sorted(hashed) == ["train-0.jsonl", "train-1.jsonl", "train-2.jsonl"]
    hashed.clear()
    assert open_corpus(config.data).fingerprint("train") == before
    assert hashed == []
    shard = tmp_path / "shards" / "train-1.jsonl"
    os.utime(shard, ns=(1, 1))
    assert open_corpus(config.data).fingerprint("train") == before
    shard.write_text(shard.read_text().replace("red", "blu"))
    assert open_corpus(config.data).fingerprint("train") != before
    assert hashed == ["train-1.jsonl"] * 2


def test_a_damaged_or_missing_piece_is_named(config):
    pieces, _ = opened(config)
    [folder] = Path(config.data.cache_dir).glob("pieces-*")
    piece = folder / "00001-0.npy"
    content = piece.read_bytes()
    piece.write_bytes(content[:-2] + b"\xff\xff")
    with pytest.raises(UserError, match=r"00001-0.npy is damaged.*makes it again"):
        pieces.open(1)
    piece.unlink()
    with pytest.raises(UserError, match=r"00001-0.npy is missing.*makes it again"):
        pieces.open(1)
    opened(config)
    assert piece.read_bytes() == content


def test_a_line_of_one_side_that_is_not_utf8_takes_its_translation_along(tmp_path):
    for name, lines in (("b.en", b"one\nt\xffo\nthree\n"), ("b.de", b"eins\nzwei\ndrei\n")):
        (tmp_path / name).write_bytes(lines)
    pair = Shard((tmp_path / "b.en", tmp_path / "b.de"), ("en", "de"))
    assert list(pair.pairs()) == [(["one", "three"], ["eins", "drei"])]


def test_lines_at_fault_do_not_stop_a_training_and_are_told(config, tmp_path, capsys):
    shard = tmp_path / "shards" / "train-1.jsonl"
    shard.write_bytes(shard.read_bytes() + b'{"text": {"en": "alone"}}\n')
    content = opened(config)[0].content
    assert content.num_pairs_read == len(SOURCES) + 1
    assert content.skipped["without_a_side"] == 1
    assert f"1 line is left out as without a side, the first of them {shard} line 91" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.jsonl.gz", "empty.jsonl.zst"])
def test_a_shard_without_a_byte_is_refused_if_packed_and_named_if_plain(
    config, tmp_path, capsys, name
):
    shard = tmp_path / "shards" / f"train-{name}"
    shard.touch()
    place = {"data.corpus": f"shards:{shard.parent}/train-*"}
    if name == "empty.jsonl":
        opened(config.replace(place))
        assert f"shard {shard} is empty; was it copied completely?" in capsys.readouterr().err
        return
    with pytest.raises(UserError, match=f"shard {shard} cannot be read: it has no bytes"):
        opened(config.replace(place))


def test_lines_at_fault_are_told_where_no_line_is_left_and_only_once(config, tmp_path, capsys):
    """As of a file with a third column of attributions, which has no pair."""
    shard = tmp_path / "columns" / "train-1.tsv"
    shard.parent.mkdir()
    shard.write_text("one\teins\tCC-BY\ntwo\tzwei\tCC-BY\n")
    corpus = f"shards:{shard.parent}/*.tsv"
    for _ in range(2):
        with pytest.raises(UserError, match="no text to learn a vocabulary from"):
            opened(config.replace({"data.corpus": corpus, "data.fields": ()}))
    said = capsys.readouterr().err
    assert (
        said.count(f"2 lines are left out as having too many columns, the first of them {shard}")
        == 1
    )


@pytest.mark.parametrize("kind", ["tsv.gz", "tsv.zst", "parquet"])
def test_a_shard_that_is_cut_short_is_named(tmp_path, config, kind):
    of_kind = write_shards(tmp_path / "others", kind)
    shard = tmp_path / "others" / f"train-1.{kind}"
    shard.write_bytes(shard.read_bytes()[:-9])
    broken = config.replace({"data.corpus": of_kind, "data.fields": FIELDS})
    with pytest.raises(UserError, match=rf"shard .*train-1.{kind} cannot be read: .*whole copy"):
        opened(broken)


def test_a_table_whose_text_is_not_utf8_is_named(tmp_path):
    text = pyarrow.array([b"one", b"t\xffo"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet cannot be read: 'utf-8' codec"):
        list(shard_of(tmp_path / "a.parquet", ("text",)).pairs())


@pytest.mark.parametrize(
    ("name", "content", "read", "faults"),
    [
        (
            "a.tsv",
            b"\xef\xbb\xbfone\teins\r\n\tleer\nt\two\tzwei\nx\tx\t\n\nalone\nt\xff\tx\nsix\t\n",
            [("one", "eins"), ("", "leer"), ("six", "")],
            {"having_too_many_columns": [3, 4], "without_a_side": [6], "not_utf8": [7]},
        ),
        (
            "a.jsonl",
            b'\xef\xbb\xbf{"en": "one", "de": "eins"}\r\n{"en": "", "de": "o\\nn\\re", "id": 3}\n\n'
            b'{"en": null, "de": "x"}\n{"de": "x"}\n["x", "y"]\n{"en": "x", "de": {"x": "y"}}\n'
            b'{"en": 1.5, "de": "x"}\n{"en": true, "de": "x"}\n{"en": ["x"], "de": "x"}\n{"en"\n'
            b'{"en": "\xff", "de": "x"}\n{"en": "\\ud83d", "de": "x"}\nnothing\n',
            [("one", "eins"), ("", "o n e")],
            {
                **{"without_a_side": [4, 5, 6], "not_text": [7, 8, 9, 10]},
                **{"not_json": [11, 14], "not_utf8": [12, 13]},
            },
        ),
        (
            "a.parquet",
            {"en": [b"one", b"\xff", None, b"o\nn\r\ne"], "de": ["eins", "x", "x", ""]},
            [("one", "eins"), ("o n e", "")],
            {"not_utf8": [2], "without_a_side": [3]},
        ),
    ],
)
def test_every_line_or_row_is_read_or_counted_with_a_reason(name, content, read, faults, tmp_path):
    """`faults` has the lines that are left out by reason."""
    found, path = Faults(), tmp_path / name
    if name == "a.parquet":
        parquet.write_table(pyarrow.table(content), path)
    else:
        path.write_bytes(content)
    [(sources, targets)] = shard_of(path, ("en", "de")).pairs(found)
    assert [*zip(sources, targets, strict=True)] == read
    assert found.counts == {reason: len(lines) for reason, lines in faults.items()}
    assert found.first == {reason: f"{path} line {lines[0]}" for reason, lines in faults.items()}


_MAP = pyarrow.map_(pyarrow.string(), pyarrow.string())


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([{"en": "one"}, {"en": "two"}], ["one", "two"]),
        (pyarrow.array([[("de", "x"), ("en", "one")], None, [], [("de", "x")]], _MAP), ["one"]),
        (["one", "two"], "no column 'en', which data.fields names; it has string"),
        ([{"eng": "one"}], "no column 'en', which data.fields names; did you mean eng"),
        ([{"en": 1}], "no text in the column 'text.en', but int64"),
        ([{"en": date(2026, 1, 1)}], "no text in the column 'text.en', but date32"),
        ([{"en": ["one"]}], "no text in the column 'text.en', but list<"),
    ],
)
def test_a_column_of_parquet_is_read_or_refused_by_its_type(column, expected, tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": column}), path)
    shard = shard_of(path, ("text.en",))
    if isinstance(expected, str):
        with pytest.raises(UserError, match=rf"a\.parquet has {expected}"):
            list(shard.pairs())
    else:
        assert [*shard.pairs()] == [([""] * len(expected), expected)]


def test_lines_at_fault_of_a_dev_split_are_told(config, tmp_path, capsys):
    shard = tmp_path / "shards" / "dev-0.jsonl"
    rows = {"text": {"en": "one", "de": "eins"}}, {"text": {"en": 3, "de": "drei"}}
    shard.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert open_corpus(config.data).lines("dev") == (["one"], ["eins"])
    assert f"1 line is left out as not text, the first of them {shard} line 2" in (
        capsys.readouterr().err
    )


def test_a_pattern_fits_each_shard_once_and_finds_its_other_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation"):
        for language, line in (("en", "one"), ("de", "eins")):
            Path(f"{split}-1.{language}").write_text(f"{line}\n")
    for name in ("{split}*.{language}", "./{split}-?.{language}", ".//{split}-[0-9].{language}"):
        corpus = open_corpus(Config().replace({"data.corpus": f"shards:{name}"}).data)
        assert corpus.lines("train") == corpus.lines("dev") == (["one"], ["eins"])


def test_pieces_stand_in_the_cache_that_other_corpora_use(config, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    pieces, _ = opened(config.replace({"data.cache_dir": "~/cache"}))
    assert pieces.folder.parent == tmp_path / "home" / "cache"


def test_what_is_no_corpus_of_shards_is_refused(tmp_path, config):
    def refused(message, **fields):
        changed = {f"data.{name}": value for name, value in fields.items()}
        with pytest.raises(UserError, match=message):
            opened(config.replace(changed))

    refused("matches no file; give a path with wildcards", corpus=f"shards:{tmp_path}/none-*.tsv")
    refused(r"names 1, but a line holds a source and a target; name 2", fields=("text",))
    of_kind = write_shards(tmp_path / "others", "parquet")
    refused(
        "train-0.parquet has no column 'txt', which data.fields names.*text",
        corpus=of_kind,
        fields=("txt.en", "txt.de"),
    )
    text = write_shards(tmp_path / "pairs", "text")
    (tmp_path / "pairs" / "train-1.de").write_text("zu kurz\n")
    refused("train-1.de has 1 lines, and .*train-1.en has more", corpus=text, fields=())
    (tmp_path / "pairs" / "train-1.de").unlink()
    refused("train-1.en has no .*train-1.de beside it", corpus=text, fields=())
    (tmp_path / "pairs" / "train-1.en").unlink()
    (tmp_path / "pairs" / "train-2.en").unlink()
    refused("train-2.de has no file beside it", corpus=text, fields=())
    (tmp_path / "pairs" / "train-2.de").unlink()
    assert open_corpus(config.replace({"data.corpus": text, "data.fields": ()}).data).splits


def test_documents_in_shards_are_those_of_a_text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for k in range(2):
        lines = [f"{line}\n" for line in SOURCES[k * 100 : (k + 1) * 100]]
        (folder / f"train-{k}.txt").write_text("\n".join(lines))  # with blank lines
    (folder / "validation-0.txt").write_text("the red house\n")
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in SOURCES[:200]))
    config = Config().replace(
        {
            "model.architecture": "decoder_only",
            "data.task": "language_modelling",
            "data.corpus": f"shards:{folder}/{{split}}-*.txt",
            "data.vocab_size": 100,
            "data.max_length": 16,
            "data.cache_dir": str(tmp_path / "cache"),
        }
    )
    corpus = open_corpus(config.data)
    assert corpus.lines("dev") == ([""], ["the red house"])
    whole = open_corpus(config.replace({"data.corpus": f"text:{folder}"}).data)
    assert corpus.lines("train") == whole.lines("train")
    pieces, vocabulary = opened(config)
    task = task_of(corpus.name, corpus.task)
    expected = task.training_examples(config, whole, vocabulary)
    assert pieces.content.num_pairs_read == 200
    assert np.array_equal(
        np.concatenate([pieces.open(n).target_tokens for n in range(2)]), expected.target_tokens
    )
    with pytest.raises(UserError, match="documents='paragraphs' is not for shards"):
        open_corpus(config.replace({"data.documents": "paragraphs"}).data)


def test_prepare_tokenises_into_a_place_that_a_training_reads(config, tmp_path, capsys):
    (tmp_path / "config.py").write_text(
        "from pathlib import Path\n\nfrom t2t_jax import Config\n\n\n"
        f"def get_config() -> Config:\n    return Config.from_json({config.to_json()!r})\n"
    )
    out = tmp_path / "tokens"
    command = ["data", "prepare", str(tmp_path / "config.py"), "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"train on it with --data.cache-dir {out}" in printed
    assert "270" in printed
    made = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    opened(config.replace({"data.cache_dir": str(out)}))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == made
    write_shards(tmp_path / "others", "tsv")
    mixed = f"{config.data.corpus}+shards:{tmp_path}/others/*.tsv"
    fields = ["--data.corpus", mixed, "--data.fields", *FIELDS, "--out", str(tmp_path / "both")]
    assert main([*command[:3], *fields]) == 0
    folders = (tmp_path / "both").glob("pieces-*/prepared.json")
    assert len([*folders]) == 2  # of each corpus, as a training reads them
    with pytest.raises(UserError, match="bundled: has no shards to train on"):
        main([*command, "--data.corpus", "bundled:"])
