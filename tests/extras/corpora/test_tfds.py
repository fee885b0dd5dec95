"""Data sets of TFDS, read without TensorFlow, and those that are damaged."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tensorflow_datasets.translate import Wmt14Translate

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from tests.refusals import refused

tfds.disable_progress_bar()


class ThreeGreetings(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """A TFDS translation data set small enough to read."""

    VERSION = tfds.core.Version("1.0.0")
    code_path = None  # TFDS need not look for checksums of downloads beside this file

    def _info(self):
        features = tfds.features.Translation(languages=("de", "en"))
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        greetings = [("Guten Tag", "good day"), ("Grüß Gott\u2028", "hello"), ("", "empty")]
        return {
            "train": self._generate_examples(greetings),
            "validation": self._generate_examples(greetings[:1]),
        }

    def _generate_examples(self, pairs):
        for number, (german, english) in enumerate(pairs):
            yield number, {"de": german, "en": english}


@pytest.fixture
def tfds_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tfds")
    ThreeGreetings(data_dir=directory, file_format="array_record").download_and_prepare()
    return directory


@pytest.fixture
def greetings(prepared, tfds_directory):
    """Where TFDS has the greetings, for a test to change."""
    return Path(shutil.copytree(prepared, tfds_directory, dirs_exist_ok=True))


def test_tfds_data_set_is_read_without_tensorflow(greetings):
    corpus = open_corpus(DataConfig(corpus="tfds:three_greetings"))
    assert corpus.splits == ("train", "dev")
    assert corpus.lines("dev") == (["good day"], ["Guten Tag"])
    assert set(zip(*corpus.lines("train"), strict=True)) == {  # TFDS shuffles as it writes
        ("good day", "Guten Tag"),
        ("hello", "Grüß Gott\u2028"),
        ("empty", ""),
    }
    assert corpus.fingerprint("train") != corpus.fingerprint("dev")
    with refused("has no language 'fr', only de, en"):
        open_corpus(DataConfig(corpus="tfds:three_greetings", target_language="fr"))


def test_wmt14_opens_although_tfds_does_not_register_it(tfds_directory):
    class SmallWmt14(Wmt14Translate, skip_registration=True):  # type: ignore[misc]
        """WMT14 with nothing to download: the same name, features and layout on disk."""

        name = "wmt14_translate"
        code_path = None
        _split_generators = ThreeGreetings._split_generators
        _generate_examples = ThreeGreetings._generate_examples

    builder = SmallWmt14(config="de-en", data_dir=tfds_directory, file_format="array_record")
    builder.download_and_prepare()
    corpus = open_corpus(DataConfig(corpus="tfds:wmt14_translate/de-en"))
    assert corpus.lines("dev") == (["good day"], ["Guten Tag"])


def test_tfds_data_set_that_is_not_prepared_names_the_command(tfds_directory):
    name = "wmt14_translate/de-en"
    with refused("download_and_prepare") as caught:
        open_corpus(DataConfig(corpus=f"tfds:{name}"))
    assert f"'{name}', file_format='array_record'" in str(caught.value)
    assert str(tfds_directory) in str(caught.value)


def test_tfds_data_set_for_tensorflow_only_names_the_way_out(greetings):
    info = greetings / "three_greetings" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    with refused("set TFDS_DATA_DIR to an empty directory and run: python"):
        open_corpus(DataConfig(corpus="tfds:three_greetings"))


@pytest.mark.parametrize("name", ["no_such_data", "wmt14_translate/de-xx", "not a name"])
def test_an_unknown_tfds_name_is_refused_in_one_line(tfds_directory, name):
    with refused(match=f"TFDS has no data set '{name}'"):
        open_corpus(DataConfig(corpus=f"tfds:{name}"))


def _shard(directory):
    (shard,) = (directory / "three_greetings" / "1.0.0").glob("*-train.array_record-*")
    return shard


def _info(directory):
    return directory / "three_greetings" / "1.0.0" / "dataset_info.json"


TFDS_DAMAGES = {
    "a shard cut in half": lambda d: os.truncate(_shard(d), _shard(d).stat().st_size // 2),
    "a shard that is empty": lambda d: os.truncate(_shard(d), 0),
    "a shard that is missing": lambda d: _shard(d).unlink(),
    "a shard of zeros": lambda d: _shard(d).write_bytes(bytes(_shard(d).stat().st_size)),
    "more examples promised than there are": lambda d: _info(d).write_text(
        _info(d).read_text().replace('"3"', '"4"')
    ),
    "a description that is cut": lambda d: _info(d).write_text(_info(d).read_text()[:99]),
    "a description of nothing": lambda d: _info(d).write_text("[]"),
}


@pytest.mark.parametrize("damage", TFDS_DAMAGES)
def test_a_damaged_tfds_data_set_is_named_in_one_line(greetings, damage):
    TFDS_DAMAGES[damage](greetings)
    with refused(match=r"greetings in .* cannot be read: .*; remove it") as e:
        open_corpus(DataConfig(corpus="tfds:three_greetings")).lines("train")
    assert str(greetings) in str(e.value)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "shard"])
def test_a_named_pipe_in_a_tfds_data_set_is_refused(greetings, name):
    path = _shard(greetings) if name == "shard" else _info(greetings).with_name(name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with refused(match=f"{path.name} cannot be read: it is a directory, a pipe"):
        open_corpus(DataConfig(corpus="tfds:three_greetings")).lines("train")


class Numbers(ThreeGreetings):
    """A TFDS data set whose `de` is no text."""

    def _info(self):
        number = tfds.features.Scalar(np.int64)
        features = tfds.features.FeaturesDict({"en": tfds.features.Text(), "de": number})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _generate_examples(self, pairs):
        for number, (_, english) in enumerate(pairs):
            yield number, {"de": number, "en": english}


def test_a_tfds_feature_that_is_no_text_is_refused(tfds_directory):
    Numbers(data_dir=tfds_directory, file_format="array_record").download_and_prepare()
    with refused("'de' of TFDS data set numbers is not text, but a Scalar"):
        open_corpus(DataConfig(corpus="tfds:numbers"))


@pytest.mark.parametrize("place", ["/nowhere/at/all", "/dev/null"])
def test_a_tfds_directory_that_is_none_is_named(monkeypatch, place):
    monkeypatch.setenv("TFDS_DATA_DIR", place)
    with refused(match=f"is not in {place}/.*; prepare it with"):
        open_corpus(DataConfig(corpus="tfds:wmt14_translate/de-en"))
