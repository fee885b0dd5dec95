"""Read labeled images from a NumPy file or from the digits of scikit-learn."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from t2t_jax.config import DataConfig
from t2t_jax.data.splits import SPLITS, Chunk, Split, chunks, digest
from t2t_jax.errors import UserError, in_one_line, needs_extra, quote
from t2t_jax.system.bucket import as_path
from t2t_jax.system.regular_file import check_regular
from t2t_jax.version import removed_feature

# The arrays of a split are named x_train and y_train, as in Keras, or train_images and so on.
_SPLITS = {"train": "train", "val": "dev", "dev": "dev", "test": "test"}
_DIGITS_VERSION = "1"


def image_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits, by name, of the corpus npz:FILE or digits:, and refuse other corpora.

    Sources are images, targets are labels.
    """
    scheme, _, path = name.partition(":")
    if scheme == "npz" and path:
        return _npz_splits(as_path(os.path.expanduser(path)))
    if name == "digits:":
        fingerprint = partial(digest, "digits", _DIGITS_VERSION)
        return {split: Split.of(fingerprint, _digits, split) for split in SPLITS}
    if scheme == "tfds":
        raise removed_feature(f"data.corpus={quote(name)}", "image corpora of TFDS")
    raise UserError(
        f"corpus={quote(name)} has no images for data.task={config.task!r}; use npz:FILE or digits:"
    )


def images_in(path: Path) -> list[np.ndarray]:
    """Read a list of images from the first of the arrays x_test, images and x in a .npz file."""
    for images in _arrays(path, ("x_test", "images", "x")).values():
        return list(np.atleast_1d(images))
    raise UserError(f"{path} has no array named x_test, images or x")


def _arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    check_regular(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in names if name in file.files}
    except UserError:
        raise
    except Exception as error:  # NumPy, zipfile and zlib raise unrelated classes
        reason = "".join(c if c.isprintable() else "?" for c in in_one_line(error))[:200]
        raise UserError(f"{path} cannot be read as a NumPy .npz file: {reason}") from error


def _npz_splits(path: Path) -> dict[str, Split]:
    array_names = [
        (split, images, labels)
        for name, split in _SPLITS.items()
        for images, labels in ((f"x_{name}", f"y_{name}"), (f"{name}_images", f"{name}_labels"))
    ]
    arrays = _arrays(path, chain.from_iterable(array_names))
    splits = {
        split: _labelled_split(f"{path}: {images}", arrays[images], arrays[labels])
        for split, images, labels in array_names
        if images in arrays and labels in arrays
    }
    if not splits.keys() & {"train", "test"}:
        raise UserError(
            f"{path} has no images with labels; name the arrays x_train and y_train, x_val and "
            "y_val, x_test and y_test"
        )
    return splits


def _labelled_split(name: str, images: np.ndarray, labels: np.ndarray) -> Split:
    leading_shape = images.shape[:1]
    if images.ndim not in (3, 4) or labels.shape not in (leading_shape, (*leading_shape, 1)):
        raise UserError(
            f"{name} is an array {list(images.shape)} with labels {list(labels.shape)}; give "
            "images [n, height, width] or [n, height, width, channels], and a label for each"
        )
    labels = labels.reshape(-1, 1)  # keeps the fingerprint of earlier releases
    decode = partial(str, encoding="utf-8", errors="surrogateescape")  # in any locale
    label_names = [(decode(x) if isinstance(x, bytes) else str(x)).strip() for x in labels.ravel()]
    if bad := [x for x in label_names if not x or not x.isprintable()]:
        raise UserError(f"{name} has the label {quote(bad[0])}; give each a label in one line")

    def fingerprint() -> str:
        hashes = (hashlib.sha256(x.tobytes()).hexdigest() for x in (images, labels))
        return digest("images", *map(str, images.shape), *hashes)

    return Split.of(fingerprint, lambda: chunks(zip(images, label_names, strict=True)))


def _digits(split: str) -> Iterator[Chunk]:
    """Yield images and labels of a split of scikit-learn's digits: 360 for test, 180 for dev."""
    with needs_extra("digits", "data.corpus='digits:'"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    # The digits are sorted, so they are shuffled. Raw bits are equal in all NumPy versions.
    shuffled_indices = np.argsort(np.random.Philox(key=0).random_raw(len(images)), kind="stable")
    test, dev, train = np.split(shuffled_indices, [360, 540])
    indices = np.sort({"test": test, "dev": dev, "train": train}[split])
    return chunks(zip(images[indices], map(str, labels[indices].tolist()), strict=True))
