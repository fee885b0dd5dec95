"""Sentence pairs, whatever holds them: the bundled corpus, parallel text files, or TFDS.

Lines are handed on exactly as they were written: BLEU compares against them. The one thing taken
off is the end of the line.
"""

import gzip
import hashlib
import importlib.resources
import io
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from t2t_jax.config import DataConfig
from t2t_jax.errors import UserError

Chunk = tuple[list[str], list[str]]
"""Aligned source and target lines."""

SPLITS = ("train", "dev", "test")

_BinaryFile = gzip.GzipFile | io.BufferedReader
_CHUNK_LINES = 50_000
_TFDS_SPLITS = {"train": "train", "validation": "dev", "dev": "dev", "test": "test"}


class Split(NamedTuple):
    """One part of a corpus: what identifies its content, and a way to read it from the start."""

    fingerprint: str
    read: Callable[[], Iterator[Chunk]]


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs of one language pair in up to three splits."""

    name: str
    """As in the config: `bundled:`, `text:DIR` or `tfds:NAME/CONFIG`."""
    parts: Mapping[str, Split]
    """The splits that exist, by name."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Which of train, dev and test exist."""
        return tuple(self.parts)

    def pairs(self, split: str) -> Iterator[Chunk]:
        """Aligned chunks of untouched source and target lines, in the corpus's own order.

        Raises:
          UserError: there is no such split, or a line is not UTF-8.
        """
        return self._part(split).read()

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        """All source and all target lines of a split, untouched."""
        sources: list[str] = []
        targets: list[str] = []
        for source, target in self.pairs(split):
            sources += source
            targets += target
        return sources, targets

    def fingerprint(self, split: str) -> str:
        """A hash that changes when the content of the split does."""
        return self._part(split).fingerprint

    def _part(self, split: str) -> Split:
        if split not in self.parts:
            raise UserError(
                f"corpus {self.name} has no {split} split, only {', '.join(self.parts)}"
            )
        return self.parts[split]


def open_corpus(config: DataConfig) -> Corpus:
    """The corpus that `config.corpus` names, checked but not yet read into memory.

    Raises:
      UserError: the scheme is unknown; a directory, file, data set or language is missing; the two
        sides of a split differ in length; a TFDS data set is not prepared in a readable format.
    """
    scheme, colon, place = config.corpus.partition(":")
    languages = config.source_language, config.target_language
    if scheme == "bundled" and colon and not place:
        bundled = Path(str(importlib.resources.files("t2t_jax.data"))) / "bundled"
        return Corpus(config.corpus, _text_splits(bundled, *languages))
    if scheme == "text" and place:
        return Corpus(config.corpus, _text_splits(Path(place).expanduser(), *languages))
    if scheme == "tfds" and place:
        return Corpus(config.corpus, _tfds_splits(place, *languages))
    raise UserError(f"corpus={config.corpus!r} is not bundled:, text:DIR or tfds:NAME/CONFIG")


def _text_splits(directory: Path, source_language: str, target_language: str) -> dict[str, Split]:
    if not directory.is_dir():
        raise UserError(f"corpus directory {directory} does not exist")
    splits = {}
    for split in SPLITS:
        source, target = (
            _find(directory, f"{split}.{language}")
            for language in (source_language, target_language)
        )
        if source and target:
            splits[split] = _text_split(source, target)
        elif source or target:
            missing = f"{split}.{target_language if source else source_language}"
            raise UserError(f"{directory} has {source or target}, but no {missing} beside it")
    if not splits:
        raise UserError(
            f"corpus directory {directory} has no train.{source_language} and "
            f"train.{target_language} (nor with .gz)"
        )
    return splits


def _find(directory: Path, name: str) -> Path | None:
    paths = (directory / name, directory / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _text_split(source: Path, target: Path) -> Split:
    source_count, source_hash = _survey(source)
    target_count, target_hash = _survey(target)
    if source_count != target_count:
        raise UserError(
            f"{source} has {source_count} lines, but {target} has {target_count}; "
            "line n of one must translate line n of the other"
        )
    fingerprint = hashlib.sha256(f"{source_hash} {target_hash}".encode()).hexdigest()
    return Split(fingerprint, partial(_read_text, source, target))


def _open(path: Path) -> _BinaryFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _survey(path: Path) -> tuple[int, str]:
    """Number of lines, and the hash of the (uncompressed) content, in one pass."""
    digest, count, block = hashlib.sha256(), 0, b"\n"
    try:
        with _open(path) as file:
            while following := file.read(1 << 20):
                block = following
                digest.update(block)
                count += block.count(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return count + (not block.endswith(b"\n")), digest.hexdigest()


def _read_text(source: Path, target: Path) -> Iterator[Chunk]:
    with _open(source) as source_file, _open(target) as target_file:
        read = 0
        while lines := _read_lines(source_file, source, read):
            yield lines, _read_lines(target_file, target, read)
            read += len(lines)


def _read_lines(file: _BinaryFile, path: Path, already_read: int) -> list[str]:
    r"""The next lines of a file. Only \n ends a line: str.splitlines knows ten more ends."""
    block = b"".join(islice(file, _CHUNK_LINES))
    if not block:
        return []
    try:
        lines = block.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = already_read + block.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line} is not UTF-8; convert the file to UTF-8") from error
    return [line.removesuffix("\r") for line in lines]


def _tfds_splits(name: str, source_language: str, target_language: str) -> dict[str, Split]:
    builder = _tfds_builder(name)
    for language in (source_language, target_language):
        if language not in builder.info.features:
            known = ", ".join(builder.info.features)
            raise UserError(f"TFDS data set {name} has no language {language!r}, only {known}")
    splits = {}
    for tfds_name, split in _TFDS_SPLITS.items():
        if tfds_name in builder.info.splits:
            info = builder.info.splits[tfds_name]
            content = (builder.info.full_name, tfds_name, info.shard_lengths, info.num_bytes)
            identity = repr((*content, source_language, target_language))
            splits[split] = Split(
                hashlib.sha256(identity.encode()).hexdigest(),
                partial(_read_tfds, builder, tfds_name, source_language, target_language),
            )
    return splits


def _tfds_builder(name: str) -> Any:
    """The builder of a prepared data set."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # registers WMT, which TFDS leaves to the first use

    # TFDS reads this variable once, on import; a later change of it should count too.
    data_dir = os.environ.get("TFDS_DATA_DIR")
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"TFDS has no data set {name!r}, in code or on disk: {reason}") from error
    # The command `tfds build` would need TensorFlow.
    prepare = (
        'python -c "import tensorflow_datasets as tfds, tensorflow_datasets.translate; '
        f"tfds.builder('{name}', file_format='array_record').download_and_prepare()\""
    )
    if not builder.is_prepared():
        raise UserError(
            f"TFDS data set {name} is not in {builder.data_path}; prepare it with: {prepare}"
        )
    try:
        builder.as_data_source()
    except NotImplementedError as error:
        raise UserError(
            f"TFDS data set {name} in {builder.data_path} is not in file_format=array_record, and "
            f"TensorFlow is not used; set TFDS_DATA_DIR to an empty directory and run: {prepare}"
        ) from error
    return builder


def _read_tfds(
    builder: Any, split: str, source_language: str, target_language: str
) -> Iterator[Chunk]:
    examples = builder.as_data_source(split=split)
    for start in range(0, len(examples), _CHUNK_LINES):
        chunk = examples.__getitems__(range(start, min(start + _CHUNK_LINES, len(examples))))
        yield (
            [example[source_language].decode() for example in chunk],
            [example[target_language].decode() for example in chunk],
        )
