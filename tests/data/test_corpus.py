"""Corpora are read untouched, line n beside line n, or refused with the way out."""

import gzip
import os

import pytest

from t2t_jax.config import DataConfig
from t2t_jax.data import splits as splits_module
from t2t_jax.data.corpus import open_corpus
from tests.refusals import refused


def text_corpus(directory, **files):
    """Writes `train_en="..."` to `train.en`, `train_en_gz` to `train.en.gz`, and opens them."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        path = directory / name.replace("_", ".")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return open_corpus(DataConfig(corpus=f"text:{directory}"))


def test_bundled_corpus_has_the_pairs_its_sources_page_states():
    corpus = open_corpus(DataConfig())
    assert corpus.splits == ("train", "dev", "test")
    for split, count in (("train", 43_873), ("dev", 1000), ("test", 1000)):
        source, target = corpus.lines(split)
        assert len(source) == len(target) == count
        assert all(source)
        assert all(target)
    # Too many words on the wrong side would tell if the languages were swapped.
    assert sum("the" in line.split() for line in source) > 200
    assert sum("der" in line.split() for line in target) > 100


def test_bundled_corpus_translates_in_both_directions():
    forward = open_corpus(DataConfig())
    backward = open_corpus(DataConfig(source_language="de", target_language="en"))
    assert backward.lines("dev") == forward.lines("dev")[::-1]
    assert backward.fingerprint("dev") != forward.fingerprint("dev")


def test_gzip_holds_the_same_corpus(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "packed").mkdir()
    plain = text_corpus(tmp_path / "plain", dev_en="Grüße\nx\n", dev_de="1\n2\n")
    packed = text_corpus(tmp_path / "packed", dev_en_gz="Grüße\nx\n", dev_de_gz="1\n2\n")
    assert plain.splits == packed.splits == ("dev",)
    assert plain.lines("dev") == packed.lines("dev")
    assert plain.fingerprint("dev") == packed.fingerprint("dev")


def test_fingerprint_follows_the_content_of_either_side(tmp_path):
    seen = {
        text_corpus(tmp_path, train_en=source, train_de=target).fingerprint("train")
        for source, target in (("a\n", "b\n"), ("c\n", "b\n"), ("a\n", "c\n"), ("a", "b\n"))
    }
    assert len(seen) == 4


def test_chunks_stay_aligned(tmp_path, monkeypatch):
    monkeypatch.setattr(splits_module, "CHUNK_LINES", 2)
    source = "".join(f"s{i}\n" for i in range(5))
    corpus = text_corpus(tmp_path, train_en=source, train_de=source.replace("s", "t"))
    chunks = list(corpus.pairs("train"))
    assert [len(chunk[0]) for chunk in chunks] == [2, 2, 1]
    assert [pair for chunk in chunks for pair in zip(*chunk, strict=True)] == [
        (f"s{i}", f"t{i}") for i in range(5)
    ]


def test_a_split_of_no_lines_has_no_pairs(tmp_path):
    assert text_corpus(tmp_path, train_en="", train_de="").lines("train") == ([], [])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"has no train\.en and train\.de"),
        ({"train_en": "a"}, r"has .*train\.en, but no train\.de"),
        ({"train_en": "a", "train_de": "a", "dev_de_gz": "a"}, r"has .*dev\.de\.gz, but no dev"),
    ],
)
def test_missing_files_are_named(tmp_path, files, message):
    with refused(match=message):
        text_corpus(tmp_path, **files)


def test_a_missing_split_is_named_with_those_there_are(tmp_path):
    corpus = text_corpus(tmp_path, train_en="a", train_de="a", test_en="a", test_de="a")
    with refused("has no dev split, only train, test"):
        corpus.pairs("dev")


def test_other_pairs_of_files_are_test_sets_by_their_names(tmp_path):
    corpus = text_corpus(
        tmp_path,
        train_en="a",
        train_de="b",
        newstest2014_en_gz="c\n",
        newstest2014_de="d\n",
        flickr_2016_en="e",
        flickr_2016_de="f",
        notes_en="no partner",
        notes_fr="another language",
        SOURCES_md="# Where this is from",
    )
    assert corpus.splits == ("train", "flickr.2016", "newstest2014")
    assert corpus.lines("newstest2014") == (["c"], ["d"])
    assert corpus.lines("flickr.2016") == (["e"], ["f"])
    assert len({corpus.fingerprint(split) for split in corpus.splits}) == 3


def test_a_directory_of_test_sets_alone_is_a_corpus(tmp_path):
    assert text_corpus(tmp_path, old_en="a", old_de="b", en="c", de="d").splits == ("old",)


def test_a_bad_test_set_stops_only_who_asks_for_it(tmp_path):
    corpus = text_corpus(tmp_path, dev_en="a", dev_de="b", odd_en="a\nb\nc", odd_de="b\n")
    assert corpus.lines("dev") == (["a"], ["b"])
    for ask in (corpus.pairs, corpus.lines, corpus.fingerprint):
        with refused(match=r"odd\.en has 3 lines, but .*odd\.de has 1;"):
            ask("odd")


def fifo(path):
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def directory(path):
    path.unlink(missing_ok=True)
    path.mkdir()


def link(target):
    def make(path):
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return make


def holds(content):
    return lambda path: path.write_bytes(content)


def beside(content):
    return lambda path: path.with_name("train.en.gz").write_bytes(gzip.compress(content))


def packed(content):
    def pack(path):
        path.unlink()
        path.with_name("train.en.gz").write_bytes(content)

    return pack


TEXT = "one\ntwo\nthree\n"
LINES, PACKED = TEXT.encode(), gzip.compress(TEXT.encode())
REFUSED = {
    "carriage returns alone": (holds(b"one\rtwo\rthree\r"), "train.en ends its lines only with"),
    "UTF-16 with its mark": (holds(TEXT.encode("utf-16")), "train.en is not UTF-8 text"),
    "UTF-16 without its mark": (holds(TEXT.encode("utf-16-le")), "iconv -f UTF-16 -t UTF-"),
    "zeros": (holds(bytes(99) + LINES), "train.en is not UTF-8 text"),
    "Latin-1": (holds(b"one\ncaf\xe9\nthree\n"), "train.en line 2, byte 4 is not UTF-8"),
    "a surrogate": (holds(b"one\ntwo\n\xed\xa0\x80\n"), "train.en line 3, byte 1 is not UTF-8"),
    "a packed file beside it with other text": (
        beside(b"other\ntwo\nthree\n"),
        "train.en.gz hold different text; remove one",
    ),
    "a damaged packed file beside it": (
        lambda path: path.with_name("train.en.gz").write_bytes(b"no gzip"),
        "train.en.gz cannot be read: Not a gzipped file",
    ),
    "a packed file without a byte": (packed(b""), "train.en.gz cannot be read: it has no bytes"),
    "a packed file with more after it": (
        packed(PACKED + b"garbage"),
        "train.en.gz cannot be read: Not a gzipped file",
    ),
    "a packed file with a turned bit": (
        packed(PACKED[:-6] + b"\1" + PACKED[-5:]),
        "train.en.gz cannot be read: CRC check failed",
    ),
    "a directory": (directory, "train.en is a directory, a pipe or a broken link"),
    "a pipe": (fifo, "train.en is a directory, a pipe or a broken link"),
    "a link to nothing": (link("nowhere"), "train.en is a directory, a pipe or a broken link"),
    "a link to itself": (link("train.en"), "train.en is a directory, a pipe or a broken link"),
    "a file that cannot be read": (link("/proc/self/mem"), "train.en cannot be read: "),
    "one line too few": (holds(LINES[:-6]), "train.en has 2 lines, but"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path, case):
    (tmp_path / "train.de").write_bytes(LINES)
    (tmp_path / "train.en").write_bytes(LINES)
    damage, message = REFUSED[case]
    damage(tmp_path / "train.en")
    with refused(message):
        open_corpus(DataConfig(corpus=f"text:{tmp_path}")).lines("train")


READ = {
    "a byte order mark": (holds(b"\xef\xbb\xbf" + LINES), ["one", "two", "three"]),
    "a zero in a line": (holds(b"one\nt\0wo\nthree\n"), ["one", "t\0wo", "three"]),
    "the same text packed beside it": (beside(LINES), ["one", "two", "three"]),
    "two packed files in one": (
        packed(gzip.compress(LINES[:4]) + gzip.compress(LINES[4:])),
        ["one", "two", "three"],
    ),
    "a line of a million letters": (holds(b"a" * 10**6 + b"\n\nb"), ["a" * 10**6, "", "b"]),
}


@pytest.mark.parametrize("case", READ)
def test_odd_but_good_text_is_read(tmp_path, case):
    (tmp_path / "train.de").write_bytes(LINES)
    (tmp_path / "train.en").write_bytes(LINES)
    change, expected = READ[case]
    change(tmp_path / "train.en")
    assert open_corpus(DataConfig(corpus=f"text:{tmp_path}")).lines("train")[0] == expected


CHANGES = {
    "grows": lambda text: text + b"more\n",
    "grows by part of a line": lambda text: text + b"more",
    "shrinks": lambda text: text[:-6],
    "becomes empty": lambda text: b"",
    "has another word": lambda text: text.replace(b"two", b"owt"),
    "loses its last line end": lambda text: text[:-1],
}


@pytest.mark.parametrize("name", ["train.en", "train.de"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_between_two_readings_is_refused(tmp_path, name, change):
    corpus = text_corpus(tmp_path, train_en=LINES, train_de=LINES)
    (tmp_path / name).write_bytes(CHANGES[change](LINES))
    with refused(match=rf"{name} changed while it was read; start again when no"):
        corpus.lines("train")


def test_trees_that_change_between_two_readings_are_refused(tmp_path):
    corpus = tree_corpus(tmp_path, {"a/train.mrg": DOG})
    (tmp_path / "a" / "train.mrg").write_text(DOG.replace("dog", "cat"))
    with refused("train.mrg changed while it was read"):
        corpus.lines("train")


@pytest.mark.parametrize("place", ["nowhere", "x" * 300, "~nobody-at-all", "a\0b", "/dev/null"])
def test_what_can_be_no_directory_is_named(tmp_path, place):
    for before in ("text:", "trees:", f"trees:{tmp_path}+"):
        with refused(f"corpus directory {place} does not exist"):
            open_corpus(DataConfig(corpus=f"{before}{place}"))


DOG = "(TOP (S-HLN (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks) (NP (-NONE- *))) (. .)))"
DOG_PAIR = ("The dog barks .", "(S (NP DT NN )NP (VP VBZ )VP . )S")


def tree_corpus(root, files):
    """Writes files, as `{"a/train.mrg": ...}`, and opens their directories in order."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        data = content.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    directories = dict.fromkeys(str((root / name).parent) for name in files)
    return open_corpus(DataConfig(corpus="trees:" + "+".join(directories)))


def test_trees_are_pairs_of_words_and_symbols(tmp_path):
    files = {"a/train.mrg": f"{DOG}\n(TOP (-NONE- 0))", "a/test.mrg.gz": "(UH Oh)"}
    corpus = tree_corpus(tmp_path, files)
    assert corpus.splits == ("train", "test")
    assert corpus.lines("train") == ([DOG_PAIR[0], ""], [DOG_PAIR[1], ""])
    assert corpus.lines("test") == (["Oh"], ["UH"])


def test_more_directories_of_trees_add_to_train_alone(tmp_path):
    more = {"b/train.mrg": "(UH b)(UH bb)", "b/dev.mrg": "(UH c)", "c/train.mrg.gz": "(UH d)"}
    corpus = tree_corpus(tmp_path, {"a/train.mrg": DOG, "a/dev.mrg": "(UH e)", **more})
    assert corpus.splits == ("train", "dev")
    assert corpus.lines("train")[0] == [DOG_PAIR[0], "b", "bb", "d"]
    assert corpus.lines("dev") == (["e"], ["UH"])
    only_more = tree_corpus(tmp_path, {"d/dev.mrg": "(UH f)", **more})
    assert only_more.splits == ("train", "dev")
    assert only_more.lines("train")[0] == ["b", "bb", "d"]


def test_fingerprint_of_trees_follows_every_file_of_the_split(tmp_path):
    first = {"a/train.mrg": DOG, "a/dev.mrg": DOG}
    corpus = tree_corpus(tmp_path, {**first, "b/train.mrg": "(UH b)"})
    changed = tree_corpus(tmp_path, {**first, "b/train.mrg": "(UH c)"})
    assert corpus.fingerprint("dev") == changed.fingerprint("dev")
    assert corpus.fingerprint("train") != changed.fingerprint("train")
    packed = tree_corpus(tmp_path, {"c/train.mrg.gz": DOG})
    assert packed.fingerprint("train") == corpus.fingerprint("dev") != corpus.fingerprint("train")


def test_trees_come_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(splits_module, "CHUNK_LINES", 2)
    files = {"a/train.mrg": "(UH\n\n\n0) (UH 1)", "b/train.mrg": "\n(UH\n2)\n"}
    chunks = tree_corpus(tmp_path, files).pairs("train")
    assert list(chunks) == [(["0", "1"], ["UH", "UH"]), (["2"], ["UH"])]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/notes": ""}, r"a has no train\.mrg, dev\.mrg or test\.mrg"),
        ({"a/train.mrg": DOG, "b/dev.mrg": DOG}, r"b has no train\.mrg"),
        ({"a/train.mrg": "(TOP ("}, r"train\.mrg line 1: the tree that begins here"),
    ],
)
def test_missing_and_damaged_trees_are_named(tmp_path, files, message):
    with refused(match=message):
        tree_corpus(tmp_path, files).lines("train")


@pytest.mark.parametrize(
    "corpus",
    ["wmt14", "", "bundled", "bundled:x", "text:", "tfds:", "hf:x", "trees", "trees:", "trees:a+"],
)
def test_an_unknown_scheme_is_refused(corpus):
    with refused(f"corpus={corpus!r} is not bundled:,"):
        open_corpus(DataConfig(corpus=corpus))
