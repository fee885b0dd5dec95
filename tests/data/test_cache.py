"""Whatever happens to the cache, a model is trained on its own corpus, or one line says why not."""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t2t_jax.config import DataConfig
from t2t_jax.data import cache as cache_module
from t2t_jax.data.cache import cache_root, entry
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import prepare_pairs, prepare_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from tests.refusals import refused

CONTENTS = {"tokens.npy": np.arange(1000, dtype=np.uint16), "model": b"a model"}


@pytest.fixture
def config(tmp_path):
    return DataConfig(cache_dir=str(tmp_path / "cache"))


def test_a_cache_in_a_bucket_has_a_folder_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert cache_root(DataConfig(cache_dir="s3://bucket/cache")) == cache_root(DataConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def flip(path, place):
    """Turn a bit, counted from the end if negative."""
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def append(path):
    with path.open("ab") as file:
        file.write(b"\0\0")


def swap(folder):
    (folder / "source_tokens.npy").rename(folder / "other")
    (folder / "target_tokens.npy").rename(folder / "source_tokens.npy")
    (folder / "other").rename(folder / "target_tokens.npy")


def as_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


def as_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def digests(text):
    return lambda folder: Path(folder / "digests.json").write_text(text) and None


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit of a token": lambda folder: flip(folder / "source_tokens.npy", -9),
    "a bit of the magic number": lambda f: flip(f / "source_tokens.npy", 0),
    "a pipe for a file": lambda f: as_a_pipe(f / "source_tokens.npy"),
    "a pipe for the hashes": lambda f: as_a_pipe(f / "digests.json"),
    "a file cut by a byte": lambda f: os.truncate(
        f / "target_tokens.npy", (f / "target_tokens.npy").stat().st_size - 1
    ),
    "a file that is empty": lambda f: (f / "source_offsets.npy").write_bytes(b""),
    "a file with more at its end": lambda f: append(f / "source_tokens.npy"),
    "a file that is missing": lambda f: (f / "target_offsets.npy").unlink(),
    "a file that is a directory": lambda f: (
        (f / "counts.json").unlink() or (f / "counts.json").mkdir()
    ),
    "a file too many": lambda f: (f / "more").touch(),
    "two files swapped": swap,
    "the hashes of nothing": digests('{"blake2b": {}}'),
    "the hashes as a list": digests('{"blake2b": []}'),
    "the hashes as numbers": digests('{"blake2b": {"counts.json": 1}}'),
    "the hashes cut": digests('{"blake2b": {"cou'),
    "the hashes nested too deeply": digests("[" * 100_000),
    "the hashes missing": lambda f: (f / "digests.json").unlink(),
    "an entry that is a file": as_a_file,
    "an entry that is empty": lambda f: shutil.rmtree(f) or f.mkdir(),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus with its cache, which tests copy, and the arrays that it has to give."""
    folder = tmp_path_factory.mktemp("made")
    for language, words in (("en", "the small house"), ("de", "das kleine Haus")):
        lines = [words[: 3 + number % 12] + str(number % 7) for number in range(40)]
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n")
    config = DataConfig(
        corpus=f"text:{folder}", vocab_size=50, max_length=24, cache_dir=str(folder / "cache")
    )
    corpus = open_corpus(config)
    vocabulary = prepare_vocabulary(config, corpus)
    return config, vocabulary, arrays(prepare_pairs(config, corpus, vocabulary, "train"))


def arrays(split):
    return [x.tolist() if isinstance(x, np.ndarray) else x for x in vars(split).values()]


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made[0].cache_dir, tmp_path / "cache")
    return DataConfig(**{**vars(made[0]), "cache_dir": str(tmp_path / "cache")})


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_tokens_are_made_again_with_a_warning(made, copy, capsys, damage):
    (folder,) = Path(copy.cache_dir).glob("tokens-*")
    DAMAGES[damage](folder)
    for warnings in (1, 0):
        assert arrays(prepare_pairs(copy, open_corpus(copy), made[1], "train")) == made[2]
        said = capsys.readouterr().err
        assert said.count("\n") == warnings
        assert not said or f"{folder} is damaged (" in said
    assert {path.name.split("-")[0] for path in folder.parent.iterdir()} == {"vocabulary", "tokens"}


@pytest.mark.parametrize("place", [0, 40, 200, -200, -20, -1])
def test_a_bit_of_the_cached_vocabulary_is_found_wherever_it_turned(made, copy, capsys, place):
    (model,) = Path(copy.cache_dir).glob("vocabulary-*/vocabulary.model")
    flip(model, place)
    learned = prepare_vocabulary(copy, open_corpus(copy))
    assert learned.fingerprint == made[1].fingerprint
    assert "vocabulary.model is not what was written); it is made again" in capsys.readouterr().err
    assert Vocabulary.load(model).fingerprint == made[1].fingerprint


def test_what_is_kept_is_made_once(config):
    folder = entry(config, "one", lambda: CONTENTS)
    np.testing.assert_array_equal(np.load(folder / "tokens.npy"), CONTENTS["tokens.npy"])
    assert (folder / "model").read_bytes() == b"a model"
    assert entry(config, "one", lambda: pytest.fail("made twice")) == folder


def test_a_disk_that_keeps_something_else_is_found(config, monkeypatch):
    write = cache_module._write

    def bad_write(path, content):
        digest = write(path, content)
        flip(path, -1)
        return digest

    monkeypatch.setattr(cache_module, "_write", bad_write)
    with refused(match=r"was written, but is damaged .*; remove it, or set data"):
        entry(config, "one", lambda: CONTENTS)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_without_room_is_named_with_the_need_and_nothing_stays(config, monkeypatch, code):
    def full(self, data):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_module._HashingFile, "write", full)
    contents = {"tokens.npy": np.zeros(3 << 20, np.uint8)}
    with refused() as refusal:
        entry(config, "one", lambda: contents)
    assert re.fullmatch(
        rf"cache directory {config.cache_dir} has no room for 3\.0 MiB: [\d,.]+ MiB are free "
        rf"\({os.strerror(code)}\); make room, or set data\.cache_dir to another directory",
        str(refusal.value),
    )
    assert list(Path(config.cache_dir).iterdir()) == []


@pytest.mark.parametrize("place", ["/proc", "/proc/self/nowhere"])
def test_a_place_where_nothing_can_be_written_names_the_way_out(place):
    with refused(match=rf"cache directory {place} cannot be .*; set data\.cache_dir"):
        entry(DataConfig(cache_dir=place), "one", lambda: CONTENTS)


def test_what_killed_processes_left_goes_after_a_day(config):
    root = Path(config.cache_dir)
    for name, hours in (("unfinished-old", 25), ("unfinished-new", 1), ("tokens-old", 1000)):
        (root / name).mkdir(parents=True)
        then = time.time() - 3600 * hours
        os.utime(root / name, (then, then))
    entry(config, "one", lambda: CONTENTS)
    assert {path.name for path in root.iterdir()} == {"unfinished-new", "tokens-old", "one"}


def test_arrays_stay_readable_when_the_cache_is_removed(made, copy):
    split = prepare_pairs(copy, open_corpus(copy), made[1], "train")
    shutil.rmtree(copy.cache_dir)
    assert arrays(split) == made[2]


def test_a_home_of_nobody_is_a_name_like_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = entry(DataConfig(cache_dir="~nobody-at-all/cache"), "one", lambda: CONTENTS)
    assert json.loads((folder / "digests.json").read_text())
