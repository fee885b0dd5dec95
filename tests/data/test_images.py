"""Images: how they are cut into patches and changed, and the corpora that have them."""

import numpy as np
import pytest

from t2t_jax.config import Config, DataConfig, ModelConfig
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.images import LabelledImages, checked_image
from t2t_jax.errors import UserError


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
    pixels, labels = images(), np.array([3, 1, 4, 1, 5], np.int32)
    batches = Batches(LabelledImages(pixels, labels, 2), data(batching, 48), seed=0)
    found = {}
    for step in range(batches.steps_per_epoch):
        inputs, targets = batches(step)
        assert inputs.values.shape[:2] == inputs.segments.shape == inputs.positions.shape
        for example, row, segment in zip(*batches.chosen(step), strict=True):
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
    assert [found[n] for n in range(5)] == labels.tolist()


def test_images_are_moved_and_turned_by_what_step_and_row_say():
    pixels = images(40, 5, 1)
    plain = LabelledImages(pixels, np.zeros(40, np.int32), 1)
    moved = LabelledImages(pixels, np.zeros(40, np.int32), 1, seed=3, shift=1, flip=True)
    config = data(tokens=256)
    batches, others = Batches(plain, config, seed=0), Batches(moved, config, seed=0)
    kinds = set()
    for step in range(2 * others.steps_per_epoch):
        inputs = others(step).inputs
        for example, row, _ in zip(*others.chosen(step), strict=True):
            found = inputs.values[row, 1:26, 0].reshape(5, 5)
            allowed = {}
            for turned in (False, True):
                image = pixels[example, :, :, 0]
                padded = np.pad(image[:, ::-1] if turned else image, 1)
                for down in range(3):
                    for right in range(3):
                        key = turned, down, right
                        allowed[key] = padded[down : down + 5, right : right + 5]
            [kind] = [key for key, image in allowed.items() if (image == found).all()]
            kinds.add(kind)
    assert len(kinds) == 18
    some = np.array([2, 5])
    np.testing.assert_array_equal(others(1, some).inputs.values, others(1).inputs.values[some])
    np.testing.assert_array_equal(batches.chosen(1).examples, others.chosen(1).examples)


def corpus_of(tmp_path, **arrays):
    np.savez(tmp_path / "images.npz", **arrays)
    return open_corpus(
        DataConfig(task="image_classification", corpus=f"npz:{tmp_path / 'images.npz'}")
    )


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
        ({"x": [1]}, "none of images"),
        ({"x_train": np.zeros((2, 4, 4)), "y_train": [1]}, "a label for each"),
        ({"x_train": np.zeros((2, 4)), "y_train": [1, 2]}, "give images"),
    ],
)
def test_files_without_images_are_refused(arrays, said, tmp_path):
    with pytest.raises(UserError, match=said):
        corpus_of(tmp_path, **arrays)


def test_damaged_and_missing_files_are_refused(tmp_path):
    def opened():
        name = f"npz:{tmp_path / 'images.npz'}"
        return open_corpus(DataConfig(task="image_classification", corpus=name))

    with pytest.raises(UserError, match="can be read"):
        opened()
    np.savez(tmp_path / "images.npz", x_train=images())
    whole = (tmp_path / "images.npz").read_bytes()
    (tmp_path / "images.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"images\.npz"):
        opened()
    with pytest.raises(UserError, match="has no images"):
        open_corpus(DataConfig(task="image_classification", corpus="bundled:"))


def test_an_image_of_another_size_is_refused():
    model = ModelConfig(
        architecture="encoder_only", patch_size=2, image_size=4, share_embeddings=False
    )
    grey = ModelConfig(**{**vars(model), "image_channels": 1})
    assert checked_image(np.zeros((4, 4), np.uint8), grey, "image 1").shape == (4, 4, 1)
    for wrong in (np.zeros((4, 4, 3)), np.zeros((4, 5, 3), np.uint8), np.zeros((4, 4), np.uint8)):
        with pytest.raises(UserError, match="image 7 is an array"):
            checked_image(wrong, model, "image 7")


@pytest.mark.parametrize(("height", "width"), [(8, 16), (16, 8), (5, 7), (4, 4), (2, 3)])
def test_images_of_other_sizes_are_fitted(height, width):
    model = ModelConfig(
        architecture="encoder_only", patch_size=2, image_size=4, share_embeddings=False
    )
    colours = np.array([10, 100, 250], np.uint8)
    image = np.full((height, width, 3), 0, np.uint8) + colours
    found = checked_image(image, model, "image", resize=True)
    np.testing.assert_array_equal(found, np.zeros((4, 4, 3), np.uint8) + colours)
    # A ramp along the longer side: the middle of it is kept.
    longer = int(width > height)
    ramp = np.linspace(0, 240, max(height, width)).astype(np.uint8)
    image = np.broadcast_to(np.expand_dims(ramp, (1 - longer, 2)), (height, width, 3))
    found = checked_image(image, model, "image", resize=True)
    assert found.mean() == pytest.approx(120, abs=6)
    along = found.mean(axis=(1 - longer, 2))
    assert (np.diff(along) > 0).all()
    if height != width:  # the ends are cut off
        assert 0 < along[0] < along[-1] < 240
    with pytest.raises(UserError, match="image 1 is an array"):
        checked_image(image[:, :, :1], model, "image 1", resize=True)


def test_digits_are_those_of_scikit_learn_in_three_parts():
    from sklearn.datasets import load_digits

    corpus = open_corpus(DataConfig(task="image_classification", corpus="digits:"))
    parts = {split: corpus.lines(split) for split in corpus.splits}
    assert {split: len(labels) for split, (_, labels) in parts.items()} == {
        "train": 1257,
        "dev": 180,
        "test": 360,
    }
    theirs, labels = load_digits(return_X_y=True)
    known = sorted(
        (tuple(np.rint(x * 255 / 16)), str(y)) for x, y in zip(theirs, labels, strict=True)
    )
    ours = [
        (tuple(map(float, image.ravel())), label)
        for own, names in parts.values()
        for image, label in zip(own, names, strict=True)
    ]
    assert sorted(ours) == known
    for _, names in parts.values():
        assert min(names.count(digit) for digit in "0123456789") > 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.patch_size": 3}, "not a multiple"),
        ({"model.patch_size": None}, "reads images"),
        ({"model.share_embeddings": True}, "no vocabulary to share"),
        ({"data.task": "tagging"}, "reads text"),
        ({"model.architecture": "encoder_decoder"}, "is for model.architecture"),
        ({"data.task": "auto"}, "encoder alone can learn"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes, said):
    config = {
        "model.architecture": "encoder_only",
        "model.patch_size": 4,
        "model.image_size": 8,
        "model.share_embeddings": False,
        "data.task": "image_classification",
    }
    Config().replace(config)
    with pytest.raises(UserError, match=said):
        Config().replace(config | changes)
