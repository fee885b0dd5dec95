"""Images and their labels: arrays in a file, or the digits of scikit-learn."""

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Int32, Integer, UInt8

from t2t_jax.batch import Batch, Patches, Sequence
from t2t_jax.config import DataConfig, ImageEncoderConfig
from t2t_jax.data.rows import BatchShape, Chosen
from t2t_jax.data.splits import SPLITS, Chunk, Split, chunks, digest
from t2t_jax.errors import UserError, in_one_line, needs_extra
from t2t_jax.system.bucket import as_path
from t2t_jax.system.host import usable_host_memory
from t2t_jax.system.regular_file import check_regular
from t2t_jax.version import removed_feature

Image = UInt8[np.ndarray, "height width channels"]
"""The numbers of each pixel, from 0 to 255."""

# Names of arrays in files of NumPy: those of Keras (x_train, y_train) and others, by split.
_NAMES = {
    "train": ("x_train", "train_images"),
    "dev": ("x_val", "val_images", "x_dev", "dev_images"),
    "test": ("x_test", "test_images"),
}
_DIGITS_VERSION = "1"


@dataclass(frozen=True)
class LabelledImages:
    """Images of one size, cut into patches, each with a label."""

    images: UInt8[np.ndarray, "n height width channels"]
    """The images of a split."""
    labels: Int32[np.ndarray, " n"]
    """The number of each image's label."""
    patch_size: int
    """The number of pixels on each side of a patch."""

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    @property
    def skipped(self) -> dict[str, int]:
        """Return no count for any reason, as no image is left out."""
        return {}

    @property
    def num_pairs_read(self) -> int:
        """Return the number of images in the corpus."""
        return len(self)

    @cached_property
    def source_lengths(self) -> Int32[np.ndarray, " n"]:
        """Return the number of positions of each image: one a patch, and the class token."""
        side = self.images.shape[1] // self.patch_size
        return np.full(len(self), side**2 + 1, np.int32)

    @cached_property
    def target_lengths(self) -> Int32[np.ndarray, " n"]:
        """Return the number of labels of each image, which is one."""
        return np.ones(len(self), np.int32)

    @property
    def target_tokens(self) -> Integer[np.ndarray, " n"]:
        """Return the labels of all images, as numbers."""
        return self.labels

    def shape(self, shape: BatchShape, most: int) -> BatchShape:
        """Return the shape of a batch's arrays, where a row of `most` images has no padding."""
        return BatchShape(shape.rows, most * int(self.source_lengths[0]), most)

    def batch(
        self, chosen: Chosen, shape: BatchShape, step: int, numbers: Integer[np.ndarray, " rows"]
    ) -> Batch:
        """Return the arrays of a batch, which depend on neither step nor row."""
        rows, length, fits = shape
        each = int(self.source_lengths[0])
        patches = self._patches(self.images[chosen.examples])
        at = chosen.rows, chosen.segments - 1
        values = np.zeros((rows, fits, each, patches.shape[-1]), np.uint8)
        values[(*at, slice(1, None))] = patches
        segments, labels = np.zeros((2, rows, fits), np.int32)
        segments[at], labels[at] = chosen.segments, self.labels[chosen.examples]
        of_patches = np.repeat(segments, each, axis=1)
        positions = np.where(of_patches == 0, 0, np.tile(np.arange(each, dtype=np.int32), fits))
        inputs = Patches(values.reshape(rows, length, -1), of_patches, positions)
        return Batch(inputs, Sequence(labels, segments, np.zeros_like(segments)))

    def _patches(
        self, images: UInt8[np.ndarray, "n height width channels"]
    ) -> UInt8[np.ndarray, "n patches values"]:
        n, height, width, channels = images.shape
        size = self.patch_size
        cut = images.reshape(n, height // size, size, width // size, size, channels)
        return cut.transpose(0, 1, 3, 2, 4, 5).reshape(n, -1, size * size * channels)


def checked_image(image: Any, model: ImageEncoderConfig, name: str) -> Image:
    """Return an image as the model reads it.

    Args:
      image: numbers from 0 to 255, `[height, width, channels]`, or without channels if it is grey.

    Raises:
      UserError: the image is of another kind or size.
    """
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[:, :, None]
    shape = model.image_size, model.image_size, model.image_channels
    if array.dtype != np.uint8 or array.shape != shape:
        raise UserError(
            f"{name} is an array {list(array.shape)} of {array.dtype}, but the model reads "
            f"{list(shape)} of uint8 (model.image_size and model.image_channels); convert it, or "
            "set these fields"
        )
    return array


def image_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of a corpus of images: source lines are arrays, and targets are labels.

    Raises:
      UserError: there is no such corpus, or it has no images.
    """
    scheme, _, place = name.partition(":")
    if scheme == "npz" and place:
        return _npz_splits(as_path(os.path.expanduser(place)))
    if name == "digits:":
        return {
            split: Split(partial(digest, "digits", _DIGITS_VERSION, split), partial(_digits, split))
            for split in SPLITS
        }
    if scheme == "tfds":
        raise removed_feature(f"data.corpus={name!r}", "image corpora of TFDS")
    raise UserError(
        f"corpus={name!r} has no images for data.task={config.task!r}; give npz:FILE or digits:"
    )


@contextmanager
def _opened_npz(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Open a file of NumPy (.npz), whose arrays are read one by one.

    Raises:
      UserError: the file is missing or damaged.
    """
    check_regular(path)
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            yield file
    except UserError:
        raise
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise _unreadable(path, "no file of arrays (.npz) that can be read", error) from error
    except Exception as error:  # zipfile.BadZipFile and zlib.error, which share no class
        raise _unreadable(path, "damaged", error) from error


def _unreadable(path: Path, what: str, error: Exception) -> UserError:
    return UserError(f"{path} is {what}: {_visible(in_one_line(error))[:200]}")


def _names_in(file: np.lib.npyio.NpzFile) -> str:
    return _visible(", ".join(file.files))


def _visible(text: str) -> str:
    """Return text of a file as one line of an error, which a terminal can show."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _read(path: Path, file: np.lib.npyio.NpzFile, names: Iterable[str]) -> dict[str, Any]:
    """Read the named arrays that a file of NumPy has, and return them by name.

    Raises:
      UserError: the arrays need more memory than there is, or one of them is no array.
    """
    there = [name for name in names if name in file.files]
    members = cast(Any, file.zip).infolist()
    sizes = {one.filename.removesuffix(".npy"): one.file_size for one in members}
    needed = sum(sizes[name] for name in there)
    free = usable_host_memory()
    if free is not None and needed > free:
        raise UserError(
            f"{path} has {needed / 2**30:,.1f} GiB of images and labels, and {free / 2**30:,.1f} "
            "GiB of memory are left; images are kept in memory: take fewer, or smaller ones"
        )
    arrays = {name: file[name] for name in there}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UserError(f"{name} of {path} is no array; save it with numpy.savez")
    return arrays


def images_in(path: Path) -> list[Any]:
    """Return the images of a file of NumPy, from its array x_test, images or x.

    Raises:
      UserError: there is no such file or array, or the array holds no images.
    """
    with _opened_npz(path) as file:
        name = next((name for name in ("x_test", "images", "x") if name in file.files), None)
        if name is None:
            raise UserError(
                f"{path} has the arrays {_names_in(file)}, but none called x_test, images or x"
            )
        images = _read(path, file, [name])[name]
    if images.ndim not in (3, 4):
        raise UserError(
            f"{name} of {path} is an array {list(images.shape)}; give images [n, height, width] or "
            "[n, height, width, channels]"
        )
    return list(images)


def _npz_splits(path: Path) -> dict[str, Split]:
    pairs = {
        name: (name.replace("x_", "y_").replace("images", "labels"), split)
        for split, names in _NAMES.items()
        for name in names
    }
    with _opened_npz(path) as file:
        there = {
            name: labels
            for name, (labels, _) in pairs.items()
            if name in file.files and labels in file.files
        }
        if not any(pairs[name][1] in ("train", "test") for name in there):
            raise UserError(
                f"{path} has the arrays {_names_in(file)}, but none of images with their "
                "labels: x_train and y_train, x_val and y_val, x_test and y_test"
            )
        arrays = _read(path, file, {*there, *there.values()})
    return {
        pairs[name][1]: _of_arrays(f"{path}: {name}", arrays[name], arrays[labels])
        for name, labels in there.items()
    }


def _of_arrays(name: str, images: Any, labels: Any) -> Split:
    n = images.shape[:1]
    if images.ndim not in (3, 4) or labels.shape not in (n, (*n, 1)):
        raise UserError(
            f"{name} is an array {list(images.shape)} with labels {list(labels.shape)}; give "
            "images [n, height, width] or [n, height, width, channels], and a label for each"
        )
    labels = labels.reshape(-1, 1)  # whatever the shape was, the hash is that of earlier releases
    names = _names_of(name, labels)

    def fingerprint() -> str:
        contents = (np.ascontiguousarray(x).tobytes() for x in (images, labels))
        hashes = (hashlib.sha256(content).hexdigest() for content in contents)
        return digest("images", *map(str, images.shape), *hashes)

    return Split(
        functools.cache(fingerprint), lambda: chunks(iter(zip(images, names, strict=True)))
    )


def _names_of(images: str, labels: Any) -> list[str]:
    """Return the names of labels, without spaces around them.

    Raises:
      UserError: a name is blank, or is no line of text.
    """
    try:
        text = np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels
        names = [str(label).strip() for label in text[:, 0].tolist()]
        "".join(names).encode()
    except ValueError as error:
        raise UserError(f"the labels of {images} are no text in Unicode: {error}") from error
    for number, label in enumerate(names, 1):
        if label.splitlines() != [label]:
            raise UserError(
                f"label {number} of {images} is {label!r}; give each image a name or a number, on "
                "one line"
            )
    return names


def _digits(split: str) -> Iterator[Chunk]:
    """Yield a split of the 1,797 images of digits in scikit-learn: 360 are test and 180 dev."""
    with needs_extra("digits", "data.corpus='digits:'"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    images = np.rint(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    # Mixed, as the digits come in an order; raw bits are the same in every version of NumPy.
    mixed = np.argsort(np.random.Philox(key=0).random_raw(len(images)), kind="stable")
    test, dev, train = np.split(mixed, [360, 540])
    at = np.sort({"test": test, "dev": dev, "train": train}[split])
    return chunks(zip(images[at], map(str, labels[at].tolist()), strict=True))
