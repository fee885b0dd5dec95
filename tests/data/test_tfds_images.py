"""Image data sets of TensorFlow Datasets, in the files that it writes, without TensorFlow."""

import io
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError

tfds.disable_progress_bar()
SHAPE = (6, 6, 3)


class Squares(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """Images of one colour each."""

    VERSION = tfds.core.Version("1.0.0")
    code_path = None  # TFDS need not look for checksums of downloads beside this file

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=SHAPE),
            "label": tfds.features.ClassLabel(names=["dark", "light"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples(4), "test": self._generate_examples(2)}

    def _generate_examples(self, count):
        for number in range(count):
            # As a file: of arrays, TFDS makes one by TensorFlow.
            file = io.BytesIO()
            Image.fromarray(np.full(SHAPE, 20 + 200 * (number % 2), np.uint8)).save(file, "PNG")
            file.seek(0)
            yield number, {"image": file, "label": ["dark", "light"][number % 2]}


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    Squares(data_dir=tmp_path, file_format="array_record").download_and_prepare()


def test_images_and_names_of_labels_are_read(prepared):
    corpus = open_corpus(DataConfig(task="image_classification", corpus="tfds:squares"))
    assert corpus.splits == ("train", "test")
    images, labels = corpus.lines("train")
    assert sorted(labels) == ["dark", "dark", "light", "light"]
    for image, label in zip(images, labels, strict=True):
        assert image.shape == SHAPE
        assert image.dtype == np.uint8
        assert set(image.ravel().tolist()) == {20 if label == "dark" else 220}
    assert corpus.fingerprint("train") != corpus.fingerprint("test")
    assert "tensorflow" not in sys.modules


def test_a_data_set_without_images_is_refused(tmp_path, monkeypatch):
    from tests.data.test_corpus import ThreeGreetings

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    ThreeGreetings(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    with pytest.raises(UserError, match="has no image or label"):
        open_corpus(DataConfig(task="image_classification", corpus="tfds:three_greetings"))
