"""Images and their labels: arrays in a file, or the digits of scikit-learn."""

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

# Arrays of a split are called x_train and y_train, as Keras has them, or train_images and so on.
_SPLITS = {"train": "train", "val": "dev", "dev": "dev", "test": "test"}
_DIGITS_VERSION = "1"


def image_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of a corpus of images: source lines are arrays, and targets are labels."""
    scheme, _, place = name.partition(":")
    if scheme == "npz" and place:
        return _npz_splits(as_path(os.path.expanduser(place)))
    if name == "digits:":
        fingerprint = partial(digest, "digits", _DIGITS_VERSION)
        return {split: Split.of(fingerprint, _digits, split) for split in SPLITS}
    if scheme == "tfds":
        raise removed_feature(f"data.corpus={quote(name)}", "image corpora of TFDS")
    raise UserError(
        f"corpus={quote(name)} has no images for data.task={config.task!r}; use npz:FILE or digits:"
    )


def images_in(path: Path) -> list[np.ndarray]:
    """Return the images of a file of NumPy, from its array x_test, images or x."""
    for images in _arrays(path, ("x_test", "images", "x")).values():
        return list(np.atleast_1d(images))
    raise UserError(f"{path} has no array called x_test, images or x")


def _arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return those of the named arrays that a file of NumPy (.npz) has."""
    check_regular(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: np.asarray(file[name]) for name in names if name in file.files}
    except UserError:
        raise
    except Exception as error:  # of NumPy, zipfile and zlib, which share no class
        reason = "".join(c if c.isprintable() else "?" for c in in_one_line(error))[:200]
        raise UserError(f"{path} is no file of arrays (.npz) that can be read: {reason}") from error


def _npz_splits(path: Path) -> dict[str, Split]:
    names = [
        (split, images, labels)
        for name, split in _SPLITS.items()
        for images, labels in ((f"x_{name}", f"y_{name}"), (f"{name}_images", f"{name}_labels"))
    ]
    arrays = _arrays(path, chain.from_iterable(names))
    splits = {
        split: _labelled_split(f"{path}: {images}", arrays[images], arrays[labels])
        for split, images, labels in names
        if images in arrays and labels in arrays
    }
    if not splits.keys() & {"train", "test"}:
        raise UserError(
            f"{path} has none of images with their labels: x_train and y_train, x_val and y_val, "
            "x_test and y_test"
        )
    return splits


def _labelled_split(name: str, images: np.ndarray, labels: np.ndarray) -> Split:
    n = images.shape[:1]
    if images.ndim not in (3, 4) or labels.shape not in (n, (*n, 1)):
        raise UserError(
            f"{name} is an array {list(images.shape)} with labels {list(labels.shape)}; give "
            "images [n, height, width] or [n, height, width, channels], and a label for each"
        )
    labels = labels.reshape(-1, 1)  # whatever the shape was, the hash is that of earlier releases
    escaped = partial(str, encoding="utf-8", errors="surrogateescape")  # whatever the locale is
    names = [(escaped(x) if isinstance(x, bytes) else str(x)).strip() for x in labels.ravel()]
    if bad := [x for x in names if not x or not x.isprintable()]:
        raise UserError(f"{name} has the label {quote(bad[0])}; give each image a name in one line")

    def fingerprint() -> str:
        hashes = (hashlib.sha256(x.tobytes()).hexdigest() for x in (images, labels))
        return digest("images", *map(str, images.shape), *hashes)

    return Split.of(fingerprint, lambda: chunks(zip(images, names, strict=True)))


def _digits(split: str) -> Iterator[Chunk]:
    """Yield a split of the 1,797 digits in scikit-learn: 360 are test and 180 dev."""
    with needs_extra("digits", "data.corpus='digits:'"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    # Mixed, as the digits come in an order; raw bits are the same in every version of NumPy.
    mixed = np.argsort(np.random.Philox(key=0).random_raw(len(images)), kind="stable")
    test, dev, train = np.split(mixed, [360, 540])
    at = np.sort({"test": test, "dev": dev, "train": train}[split])
    return chunks(zip(images[at], map(str, labels[at].tolist()), strict=True))
