"""Text files of a corpus: one file per split, or one per side of a split of parallel text."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from t2t_jax.config import DataConfig
from t2t_jax.data.lines import Survey, change_error, check_aligned, read_lines, survey
from t2t_jax.data.pair_files import Faults, Shard, fields_of, format_of
from t2t_jax.data.splits import SPLITS, Chunk, Split, chunks, digest
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import BucketPath, as_path, is_directory

_FORMATS = ".tsv", ".jsonl"


def corpus_directory(name: str) -> Path:
    """Return the path of a corpus directory, with `~` expanded; refuse a missing directory."""
    directory = as_path(os.path.expanduser(name))
    if os.path.isfile(directory):
        raise UserError(f"{directory} is neither a directory nor a .tsv or .jsonl file")
    if not is_directory(directory):
        raise UserError(f"corpus directory {directory} does not exist")
    return directory


@dataclass(frozen=True)
class TextFile:
    """A text file of a corpus, plain or compressed by gzip."""

    path: Path
    compressed: Path | None = None
    """A compressed copy in the same directory; None if there is none."""

    @cached_property
    def survey(self) -> Survey:
        """Return the file's hash and number of lines; refuse a compressed copy with other text."""
        file_survey = survey(self.path)
        if self.compressed and survey(self.compressed).digest != file_survey.digest:
            raise UserError(f"{self.path} and {self.compressed} hold different text; remove one")
        return file_survey

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file, and refuse a file that has changed since the survey."""
        return read_lines(self.path, self.survey)


def file_splits(name: str, config: DataConfig, default: tuple[str, ...]) -> dict[str, Split]:
    """Return the train split of a `.tsv` or `.jsonl` file, or {} for other paths.

    Args:
      default: the names of the fields of a line if `config.fields` is empty.
    """
    path = as_path(os.path.expanduser(name))
    if format_of(path) not in _FORMATS or is_directory(path):
        return {}
    if not (path.exists() if isinstance(path, BucketPath) else os.path.exists(path)):
        raise UserError(f"corpus file {path} does not exist")
    shard = Shard((path,), fields_of(config, default))
    return {"train": Split.of(_file_digest, _read_file, TextFile(path), shard)}


def _file_digest(file: TextFile, shard: Shard) -> str:
    return digest("file", *shard.fields, file.survey.digest)


def _read_file(file: TextFile, shard: Shard) -> Iterator[Chunk]:
    faults = Faults()
    yield from shard.pairs(faults)
    for reason, line in faults.first.items():
        raise UserError(
            f"{line} is refused as {reason.replace('_', ' ')}, the first of "
            f"{faults.counts[reason]:,}; a line needs {' and '.join(shard.fields)} (data.fields): "
            f"correct it, or name the corpus shards:{file.path}, which leaves such lines out"
        )
    if TextFile(file.path).survey != file.survey:
        raise change_error(file.path)


def text_splits(directory: Path, source_language: str, target_language: str) -> dict[str, Split]:
    """Return the splits of a directory of parallel text, from the names of its files."""
    splits = {}
    for name in (*SPLITS, *other_names(directory, source_language)):
        source = find_text(directory, f"{name}.{source_language}")
        target = find_text(directory, f"{name}.{target_language}")
        if source and target:
            splits[name] = Split.of(_aligned_digest, _read_text, source, target)
        elif name in SPLITS and (file := source or target):
            missing_name = f"{name}.{target_language if source else source_language}"
            raise UserError(f"{directory} has {file.path}, but no {missing_name} beside it")
    if not splits:
        raise UserError(
            f"corpus directory {directory} has no train.{source_language} and "
            f"train.{target_language} (nor with .gz)"
        )
    return splits


def other_names(directory: Path, language: str) -> list[str]:
    """List the names of other test sets: files `NAME.LANGUAGE`, except train, dev and test."""
    try:
        files = [path.name.removesuffix(".gz") for path in directory.iterdir()]
    except OSError as error:
        raise UserError(f"corpus directory {directory} cannot be read: {error.strerror}") from error
    names = {file.removesuffix(f".{language}") for file in files if file.endswith(f".{language}")}
    return sorted(names.difference(SPLITS, [""]))


def find_text(directory: Path, name: str) -> TextFile | None:
    """Find a text file by its name, with or without `.gz`; return None if there is none."""
    paths = (directory / name, directory / f"{name}.gz")
    existing_paths = [path for path in paths if path.is_file()]
    for path in paths:
        if name.startswith(SPLITS) and os.path.lexists(path) and path not in existing_paths:
            raise UserError(
                f"{path} is a directory, a pipe or a broken link; put a file in its place"
            )
    return TextFile(*existing_paths) if existing_paths else None


def _aligned_digest(source: TextFile, target: TextFile) -> str:
    counts = source.survey.num_lines, target.survey.num_lines
    check_aligned(source.path, counts[0], target.path, counts[1])
    return digest(source.survey.digest, target.survey.digest)


def _read_text(source: TextFile, target: TextFile) -> Iterator[Chunk]:
    return chunks(zip(source.lines(), target.lines(), strict=True))
