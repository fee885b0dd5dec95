"""Images: how they are cut into patches and changed, and the corpora that have them."""

import os
from dataclasses import replace

import numpy as np
import pytest

from t2t_jax.config import Config, DataConfig, network_config
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.extras.encoders.images import images_in
from t2t_jax.extras.encoders.labelled import labelled_images
from t2t_jax.extras.encoders.tasks import IMAGES as TASK
from t2t_jax.run.evaluation import prepare_evaluation

IMAGES = {
    "model.architecture": "image_encoder",
    "model.patch_size": 2,
    "model.image_size": 4,
    "model.image_channels": 2,
    "data.task": "image_classification",
}


def images(n=5, size=4, channels=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(1, 256, (n, size, size, channels)).astype(np.uint8)


def data(batching="bucket", tokens=24):
    return DataConfig(
        task="image_classification",
        max_length=8,
        batching=batching,
        source_tokens_per_step=tokens,
        target_tokens_per_step=tokens,
    )


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_a_row_has_the_patches_of_its_images_from_left_to_right(batching):
    pixels, labels = images(), [3, 1, 4, 1, 5]
    model = Config().replace(IMAGES).model
    batches = Batches(labelled_images([*pixels], labels, model), data(batching, 48), seed=0)
    found = {}
    for step in range(batches.steps_per_epoch):
        inputs, targets = batches(step)
        assert inputs.values.shape[:2] == inputs.segments.shape == inputs.positions.shape
        for example, row, segment in zip(*batches.placement(step), strict=True):
            own = inputs.segments[row] == segment
            assert inputs.positions[row][own].tolist() == [0, 1, 2, 3, 4]
            values = inputs.values[row][own]
            assert not values[0].any()
            corners = [(0, 0), (0, 2), (2, 0), (2, 2)]
            for patch, (down, right) in zip(values[1:], corners, strict=True):
                wanted = pixels[example, down : down + 2, right : right + 2]
                assert patch.tolist() == wanted.ravel().tolist()
            [label] = targets.tokens[row][targets.segments[row] == segment]
            found[int(example)] = int(label)
        assert not targets.positions.any()
    assert [found[n] for n in range(5)] == labels


def _open(path):
    return open_corpus(DataConfig(task="image_classification", corpus=f"npz:{path}"))


def corpus_of(tmp_path, **arrays):
    np.savez(tmp_path / "images.npz", **arrays)
    return _open(tmp_path / "images.npz")


def test_files_of_arrays_are_read_under_their_usual_names(tmp_path):
    pixels = images(6)
    keras = corpus_of(
        tmp_path, x_train=pixels[:3], y_train=[0, 1, 0], x_test=pixels[3:], y_test=[[1], [2], [1]]
    )
    assert keras.splits == ("train", "test")
    found, labels = keras.lines("test")
    np.testing.assert_array_equal(np.stack(found), pixels[3:])
    assert labels == ["1", "2", "1"]
    before = keras.fingerprint("train")
    names = np.array(["cat", "dog", "cat"])
    other = corpus_of(
        tmp_path, train_images=pixels[:3], train_labels=names, val_images=pixels, val_labels=[0] * 6
    )
    assert other.splits == ("train", "dev")
    assert other.lines("train")[1] == names.tolist()
    assert other.fingerprint("train") != before


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": [1]}, "no images with labels"),
        ({"x_train": np.zeros((2, 4, 4)), "y_train": [1]}, "a label for each"),
        ({"x_train": np.zeros((2, 4)), "y_train": [1, 2]}, "give images"),
        ({"x_train": 3, "y_train": [1]}, r"x_train is an array \[\] with labels \[1\]; give"),
        ({"x_train": images(1), "y_train": 3}, r"with labels \[\]; give images"),
        ({"x_train": images(2), "y_train": np.eye(2)}, r"with labels \[2, 2\]; give images"),
        ({"x_train": images(2), "y_train": ["a", " "]}, "x_train has the label ''; give each"),
        ({"x_train": images(2), "y_train": ["a\nb", "a"]}, "in one line"),
        ({"x_train": images(1), "y_train": ["\ud800"]}, "has the label"),
        ({"x_train": images(1), "y_train": [b"\xff"]}, "has the label"),
        ({"x_train": images(1), "y_train": np.array([{}], object)}, "Object arrays cannot be"),
    ],
)
def test_files_without_images_are_refused(arrays, said, tmp_path):
    with pytest.raises(UserError, match=said) as refusal:
        corpus_of(tmp_path, **arrays)
    assert str(refusal.value).isprintable()


def test_labels_may_have_spaces_in_them_and_lose_those_around_them(tmp_path):
    names = ["polar bear", " cat", "cat ", "polar bear"]
    corpus = corpus_of(tmp_path, x_train=images(4), y_train=names)
    config = Config().replace(IMAGES)
    vocabulary = TASK.vocabulary(config, corpus)
    assert vocabulary.labels == ("cat", "polar bear")
    examples = TASK.training_examples(config, corpus, vocabulary)
    assert examples.target_tokens.tolist() == [1, 0, 0, 1]
    packed = corpus_of(tmp_path, x_train=images(2), y_train=[b"cat", "Bär".encode()])
    assert packed.lines("train")[1] == ["cat", "Bär"]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_images_is_refused_before_training(split, tmp_path):
    arrays = {"x_train": images(), "y_train": [0] * 5, "x_val": images(), "y_val": [0] * 5}
    arrays |= {f"x_{split}": images(0), f"y_{split}": []}
    corpus = corpus_of(tmp_path, **arrays)
    with pytest.raises(UserError, match=r"train split of .* has no labels|dev split .* has no"):
        _prepare(corpus)


def test_a_split_whose_labels_train_does_not_have_is_refused_before_training(tmp_path):
    known = {"x_train": images(), "y_train": [0] * 5}
    with pytest.raises(UserError, match=r"the dev split of .* has no label that its train split"):
        _prepare(corpus_of(tmp_path, **known, x_val=images(2), y_val=[1, 2]))
    mixed = _prepare(corpus_of(tmp_path, **known, x_val=images(2), y_val=[0, 2]))
    assert mixed.target_tokens.tolist() == [0]


def _prepare(corpus):
    config = Config().replace(IMAGES)
    return prepare_evaluation(config, corpus, TASK.vocabulary(config, corpus), "dev")


@pytest.mark.parametrize("read", [images_in, _open], ids=["predict", "corpus"])
def test_what_is_no_file_is_refused_in_its_place(tmp_path, read):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "zeros.npz").symlink_to("/dev/zero")
    for name in ("pipe.npz", "zeros.npz"):
        with pytest.raises(UserError, match=f"{name} cannot be read: it is a directory, a pipe"):
            read(tmp_path / name)


def test_damaged_and_missing_files_are_refused(tmp_path):
    file = tmp_path / "images.npz"
    with pytest.raises(UserError, match="cannot be read"):
        _open(file)
    np.savez(file, x_train=images())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"images\.npz"):
        _open(file)
    with pytest.raises(UserError, match=r"removed image corpora of TFDS; .* before-cut"):
        open_corpus(DataConfig(task="image_classification", corpus="tfds:cifar10"))
    with pytest.raises(UserError, match="has no images"):
        open_corpus(DataConfig(task="image_classification", corpus="bundled:"))


def test_an_image_of_another_size_is_refused(tmp_path):
    model = network_config("image_encoder", patch_size=2, image_size=4)
    grey = replace(model, image_channels=1)
    assert len(labelled_images([np.zeros((4, 4), np.uint8)], [0], grey)) == 1
    np.savez(tmp_path / "a.npz", x_test=np.zeros((2, 4, 5, 3), np.uint8), x=3)
    wrong = np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), *images_in(tmp_path / "a.npz"), "a"
    for image in wrong:
        with pytest.raises(UserError, match=r"image 7 is an array .*the model reads images"):
            labelled_images([image], [0], model, first=7)


def test_digits_are_those_of_scikit_learn_in_three_parts():
    from sklearn.datasets import load_digits

    corpus = open_corpus(DataConfig(task="image_classification", corpus="digits:"))
    parts = {split: corpus.lines(split) for split in corpus.splits}
    assert {split: len(labels) for split, (_, labels) in parts.items()} == {
        "train": 1257,
        "dev": 180,
        "test": 360,
    }
    theirs, _ = load_digits(return_X_y=True)
    ours = np.concatenate([np.stack(images).reshape(-1, 64) for images, _ in parts.values()])
    np.testing.assert_array_equal(np.sort(ours, 0), np.sort(np.rint(theirs * (255 / 16)), 0))
    for _, names in parts.values():
        assert min(names.count(digit) for digit in "0123456789") > 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.patch_size": 3}, "not a multiple"),
        ({"model.patch_size": None}, "is a NoneType, expected int"),
        ({"model.share_embeddings": True}, "share_embeddings is for .*not for 'image_encoder'"),
        ({"data.task": "tagging"}, "set model.architecture='encoder_only'"),
        ({"model.architecture": "encoder_decoder"}, "is for model.architecture"),
        ({"data.task": "auto"}, "a task that the network can learn"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, said):
    config = {
        "model.architecture": "image_encoder",
        "model.patch_size": 4,
        "model.image_size": 8,
        "data.task": "image_classification",
    }
    Config().replace(config)
    with pytest.raises(UserError, match=said):
        Config().replace(config | changes)
