"""Write a public corpus as a directory of text files.

DIR/archives/        the downloaded archives, which may be removed afterwards
DIR/train.en ...     one file per split and language
DIR/corpus.json      the name, cleaning and counts of the corpus, written last
DIR/SOURCES.md       a description for readers, with URLs and checksums of the archives
"""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

import msgspec

from t2t_jax.config import DataConfig
from t2t_jax.data.splits import Split
from t2t_jax.data.text_files import text_splits
from t2t_jax.errors import UserError
from t2t_jax.extras.corpora import catalogue
from t2t_jax.extras.corpora.catalogue import public_corpus
from t2t_jax.extras.corpora.texts import lines_of
from t2t_jax.system import atomic_file, bucket, records, regular_file
from t2t_jax.system.sums import digest_of

_MANIFEST, _SOURCES, _ARCHIVES = "corpus.json", "SOURCES.md", "archives"
_BEGIN_AGAIN = "remove it and the texts beside it"  # whose corpus would be unknown


@dataclass
class Counts:
    """The numbers of pairs and words in a split."""

    pairs: int
    source_words: int
    target_words: int
    left_out: dict[str, int] = field(default_factory=dict)
    """The number of pairs left out, by `catalogue.Fault`."""

    @property
    def reasons(self) -> str:
        """Return a text with the number of pairs left out for each reason."""
        return ", ".join(f"{reason}: {count:,}" for reason, count in self.left_out.items())

    def add(self, source: str, target: str) -> None:
        """Count a sentence pair that is kept."""
        self.pairs += 1
        self.source_words += len(source.split())
        self.target_words += len(target.split())


_SCHEMA = records.schema({"corpus": str, "cleaning": dict, "splits": dict[str, Counts]})


def prepare_corpus(
    name: str,
    directory: Path,
    fetch: Callable[[catalogue.Archive, Path], Path],
    cleaning: catalogue.Cleaning | None = None,
) -> dict[str, Counts]:
    """Download the archives of a public corpus and write its splits as text files.

    Existing archives and complete corpora are reused. Files are written atomically.

    Args:
      fetch: downloads an archive into a directory and returns its path.
      cleaning: the limits on training pairs; None means the limits of the catalogue.
    """
    corpus = public_corpus(name)
    cleaning = cleaning or corpus.cleaning
    manifest = {"corpus": name, "cleaning": asdict(cleaning)}
    archive_folder = directory / _ARCHIVES
    try:
        archive_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise atomic_file.cannot_write(archive_folder, error) from error
    if counts := _complete_counts(corpus, directory, manifest):
        return counts
    _write_manifest(directory, manifest, {})
    paths = {archive: fetch(archive, archive_folder) for archive in archives_of(corpus)}
    counts = _write_splits(corpus, directory, cleaning)
    sha256_sums = {archive.name: _sha256(archive, path) for archive, path in paths.items()}
    description = _describe(name, corpus, cleaning, counts, sha256_sums)
    atomic_file.write_whole(directory / _SOURCES, description.encode())
    _write_manifest(directory, manifest, counts)
    return counts


def pair_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits by name of a prepared public corpus, such as wmt14-en-de:DIR."""
    corpus_name, _, path = name.partition(":")
    directory = bucket.as_path(os.path.expanduser(path))
    check_holds(corpus_name, directory)
    return text_splits(directory, config.source_language, config.target_language)


def check_holds(name: str, directory: Path) -> None:
    """Raise a `UserError` unless a directory holds a public corpus with its default cleaning."""
    manifest_path = directory / _MANIFEST
    advice = f"run t2t-jax data {name} {shlex.quote(str(directory))}"
    if not bucket.is_directory(directory):
        raise UserError(f"corpus directory {directory} does not exist; {advice}")
    if not manifest_path.is_file():
        raise UserError(f"{directory} has no {_MANIFEST}, so it does not hold {name}; {advice}")
    corpus = public_corpus(name)
    manifest = records.read_object(manifest_path, _SCHEMA, f"{_BEGIN_AGAIN}, and {advice}")
    if manifest["corpus"] != name:
        raise UserError(f"{directory} holds {manifest['corpus']}, not {name}")
    if manifest["cleaning"] != asdict(corpus.cleaning):
        raise UserError(
            f"{directory} holds {name} with custom cleaning, so scores are not comparable; name it "
            f"text:{directory}"
        )
    if not manifest["splits"].keys() >= {*_splits_of(corpus)}:
        raise UserError(f"{directory} does not hold all of {name} yet; {advice}")


def _sha256(archive: catalogue.Archive, path: Path) -> str:
    kind, _, published = (archive.digest or "").partition(":")
    return published if kind == "sha256" else digest_of(path)


def archives_of(corpus: catalogue.PublicCorpus) -> list[catalogue.Archive]:
    """List the archives of a corpus without duplicates."""
    parts = chain(corpus.train, *corpus.evaluation.values())
    return list(dict.fromkeys(text.archive for part in parts for text in part))


def _complete_counts(
    corpus: catalogue.PublicCorpus, directory: Path, manifest: Mapping[str, object]
) -> dict[str, Counts]:
    """Return the counts of each split if `directory` holds all files of the corpus, else {}."""
    path = directory / _MANIFEST
    regular_file.check_regular(path)
    if not path.exists():
        for file in sorted(directory.glob("*.*")):
            if file.suffix[1:] in corpus.languages:
                raise UserError(
                    f"{directory} holds {file.name}, which this command has not written; name an "
                    "empty directory"
                )
        return {}
    record = records.read_object(path, _SCHEMA, f"{_BEGIN_AGAIN} to prepare the corpus again")
    if record["corpus"] != manifest["corpus"]:
        raise UserError(f"{directory} holds {record['corpus']}; name another directory")
    splits = _splits_of(corpus)
    files = [directory / f"{split}.{language}" for split in splits for language in corpus.languages]
    is_complete = record["splits"].keys() == {*splits} and all(file.is_file() for file in files)
    if record["cleaning"] != manifest["cleaning"] or not is_complete:
        return {}
    return msgspec.convert(record["splits"], dict[str, Counts])


def _splits_of(corpus: catalogue.PublicCorpus) -> list[str]:
    return ["train", *(["dev"] if corpus.every_nth_is_dev else []), *corpus.evaluation]


def _write_manifest(
    directory: Path, manifest: Mapping[str, object], counts: Mapping[str, Counts]
) -> None:
    splits = {split: asdict(split_counts) for split, split_counts in counts.items()}
    content = json.dumps({**manifest, "splits": splits}, indent=1)
    atomic_file.write_whole(directory / _MANIFEST, content.encode())


def _write_splits(
    corpus: catalogue.PublicCorpus, directory: Path, cleaning: catalogue.Cleaning
) -> dict[str, Counts]:
    """Write all splits, and rename the files when all of them are complete."""
    counts = {split: Counts(0, 0, 0) for split in _splits_of(corpus)}
    dev_interval, num_kept, left_out = corpus.every_nth_is_dev, 0, counts["train"].left_out
    with ExitStack() as stack:
        files = {
            split: [
                stack.enter_context(atomic_file.open_atomic(directory / f"{split}.{language}"))
                for language in corpus.languages
            ]
            for split in counts
        }
        for corpus_split, texts in {"train": corpus.train, **corpus.evaluation}.items():
            for pair in _pairs(texts, directory):
                split = corpus_split
                if corpus_split == "train":
                    if fault := cleaning.fault(*pair):
                        left_out[fault] = left_out.get(fault, 0) + 1
                        continue
                    num_kept += 1
                    split = "dev" if dev_interval and num_kept % dev_interval == 0 else "train"
                for file, line in zip(files[split], pair, strict=True):
                    file.write(f"{line}\n".encode())
                counts[split].add(*pair)
    return counts


def _pairs(
    parts: tuple[catalogue.ParallelTexts, ...], directory: Path
) -> Iterator[tuple[str, str]]:
    for part in parts:
        pairs = zip_longest(*(lines_of(side, directory / _ARCHIVES) for side in part))
        for num_lines, pair in enumerate(pairs):
            if None in pair:
                shorter_side = pair.index(None)
                raise UserError(
                    f"{part[shorter_side].name} ends after {num_lines:,} lines, before "
                    f"{part[1 - shorter_side].name} does; are these the published archives?"
                )
            yield pair[0], pair[1]


def _describe(
    name: str,
    corpus: catalogue.PublicCorpus,
    cleaning: catalogue.Cleaning,
    counts: Mapping[str, Counts],
    sha256_sums: Mapping[str, str],
) -> str:
    """Return the text of SOURCES.md; `sha256_sums` has the sum of each archive, by file name."""
    is_default = cleaning == corpus.cleaning
    limits = ", ".join(f"{key}={value}" for key, value in asdict(cleaning).items())
    cleaned_by = corpus.cleaned_by if is_default else f"custom limits: {limits}"
    lines = [
        f"# {name}",
        "",
        f"{corpus.about}.",
        "",
        f"Made by `t2t-jax data {name}`. Training pairs: {cleaned_by}. Test sets are not cleaned.",
        "",
        f"Licence: {corpus.licence}",
        "",
        "| split | pairs | source words | target words | left out |",
        "|---|---|---|---|---|",
    ]
    for split, totals in counts.items():
        figures = f"{totals.pairs:,} | {totals.source_words:,} | {totals.target_words:,}"
        lines.append(f"| {split} | {figures} | {totals.reasons or 'none'} |")
    lines += ["", "| archive | published at | SHA-256 |", "|---|---|---|"]
    for archive in archives_of(corpus):
        note = "" if archive.digest else " (no sum is published; compare with other downloads)"
        lines.append(f"| {archive.name} | {archive.url} | {sha256_sums[archive.name]}{note} |")
    lines += ["", "| split | texts |", "|---|---|"]
    for split, parts in {"train": corpus.train, **corpus.evaluation}.items():
        lines += [f"| {split} | {part.source.name}, {part.target.name} |" for part in parts]
    return "\n".join(lines) + "\n"
