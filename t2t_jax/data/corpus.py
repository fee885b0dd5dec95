"""Corpora of sentence pairs: the bundled one, parallel text files, data sets of TFDS, or trees.

For language modelling, a corpus is documents of one language, as the targets of empty sources.

The train split of a mixture has all its corpora, each repeated by its weight. Any other split comes
from the first corpus that has one.

Lines of text are passed on exactly as they were written, without the line ends: BLEU compares
against them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path

from t2t_jax import plugins
from t2t_jax.config import DataConfig, tasks
from t2t_jax.data import text_files
from t2t_jax.data.corpus_name import added_schemes, components_of
from t2t_jax.data.splits import SPLITS, Chunk, Split, chunks, digest, with_dev
from t2t_jax.data.trees import FORMAT_VERSION, clean_tree, parse_trees
from t2t_jax.errors import UserError, quote

_BUNDLED, _BUNDLED_FILES = "bundled:", Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs of one language pair, or sentences and their trees, in splits."""

    name: str
    """The corpus as the config names it: bundled:, text:DIR, NAME:DIR, tfds:NAME/CONFIG or
    trees:DIR, or a mixture of them."""
    parts: Mapping[str, Split]
    """The splits of the corpus, by name."""
    mixed: tuple[tuple["Corpus", int], ...] = ()
    """The corpora of a mixture, and how often its train split has the pairs of each; () for one
    corpus by itself."""
    task: str = "auto"
    """The task that the corpus is read for, as `data.task` of the config says."""

    @property
    def facts(self) -> tasks.TaskFacts:
        """Return the facts of the corpus's task."""
        return tasks.TASKS[tasks.task_name(self.name, self.task)]

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits that exist: train, dev, test and other test sets."""
        return tuple(self.parts)

    def pairs(self, split: str) -> Iterator[Chunk]:
        """Read aligned chunks of unchanged source and target lines, in the order of the corpus."""
        part = self._part(split)
        part.fingerprint()  # has checked the files
        return part.read()

    def sample(self, split: str) -> Iterator[Chunk]:
        """Read the pairs for learning a vocabulary: all, or those of some shards."""
        part = self._part(split)
        return self.pairs(split) if part.sample is None else part.sample()

    def lines(self, split: str) -> Chunk:
        """Return all source and all target lines of a split, unchanged."""
        every = [*self.pairs(split)]
        sources = [line for lines, _ in every for line in lines]
        return sources, [line for _, lines in every for line in lines]

    def first(self, split: str, number: int) -> "Corpus":
        """Return the corpus with only the first pairs of a split."""
        part = self._part(split)

        def read() -> Iterator[Chunk]:
            pairs = chain.from_iterable(zip(*chunk, strict=True) for chunk in part.read())
            return chunks(islice(pairs, number))

        some = Split(lambda: digest("first", str(number), part.fingerprint()), read)
        return replace(self, parts={**self.parts, split: some}, mixed=())

    def fingerprint(self, split: str) -> str:
        """Return a hash that changes when the content of the split does."""
        return self._part(split).fingerprint()

    def _part(self, split: str) -> Split:
        if split not in self.parts:
            raise UserError(
                f"corpus {self.name} has no {split} split, only {', '.join(self.parts)}"
            )
        return self.parts[split]


def open_corpus(config: DataConfig) -> Corpus:
    """Open the corpus that `config.corpus` names: check it, but read nothing into memory yet."""
    mixed = tuple((_open(name, config), weight) for name, weight in components_of(config.corpus))
    (first, weight), *others = mixed
    if config.mixture_temperature is not None and not others:
        raise UserError(
            f"data.mixture_temperature={config.mixture_temperature} has no effect on one corpus, "
            f"{config.corpus}; leave it out, or name several, as in text:A+text:B"
        )
    if config.dev_lines and others:
        raise UserError(
            f"data.dev_lines={config.dev_lines} is for one corpus, but {config.corpus} is a "
            "mixture; give its first corpus a dev split, and leave data.dev_lines out"
        )
    return _mixture(config.corpus, *mixed) if others or weight > 1 else first


def _open(name: str, config: DataConfig) -> Corpus:
    facts = tasks.TASKS[tasks.task_name(name, config.task)]
    parts: dict[str, Split] = plugins.load(facts.corpora)(name, config)
    if config.dev_lines:
        parts = with_dev(name, parts, config.dev_lines)
    for split in SPLITS:  # other test sets may be large, and never asked for
        if split in parts:
            parts[split].fingerprint()
    return Corpus(name, parts, task=config.task)


def pair_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of parallel text; see `TaskFacts.corpora`."""
    scheme, _, place = name.partition(":")
    languages = config.source_language, config.target_language
    if name == _BUNDLED:
        return text_files.text_splits(_BUNDLED_FILES, *languages)
    if scheme == "text" and place:
        return text_files.file_splits(place, config, languages) or text_files.text_splits(
            text_files.corpus_directory(place), *languages
        )
    if (row := added_schemes().get(scheme)) and place:
        return _added(row.pairs, name, config)
    raise _unknown(name)


def _added(function: str, name: str, config: DataConfig) -> dict[str, Split]:
    return plugins.load(function)(name, config)


def tree_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of sentences and their trees; see `TaskFacts.corpora`."""
    places = name.partition(":")[2].split("+")
    if not all(places):
        raise _unknown(name)
    first, *more = map(text_files.corpus_directory, places)
    files = {
        name: [file] for name in SPLITS if (file := text_files.find_text(first, f"{name}.mrg"))
    }
    for directory in more:
        file = text_files.find_text(directory, "train.mrg")
        if file is None:
            raise UserError(f"corpus directory {directory} has no train.mrg (nor train.mrg.gz)")
        files.setdefault("train", []).append(file)
    if not files:
        raise UserError(
            f"corpus directory {first} has no train.mrg, dev.mrg or test.mrg (nor with .gz)"
        )
    return {
        name: Split.of(_survey_trees, _read_trees, *files[name]) for name in SPLITS if name in files
    }


def _unknown(name: str) -> UserError:
    added = ", ".join(f"{scheme}:{row.form}" for scheme, row in added_schemes().items())
    return UserError(
        f"corpus={quote(name)} is not bundled:, text:DIR, text:FILE.tsv, text:FILE.jsonl, "
        f"trees:DIR, {added}, nor a mixture such as text:A*3+text:B"
    )


def _mixture(name: str, *mixed: tuple[Corpus, int]) -> Corpus:
    for corpus, _ in mixed:
        if "train" not in corpus.parts:
            raise UserError(
                f"corpus {corpus.name} has no train split to mix, only {', '.join(corpus.parts)}; "
                f"leave it out of {name}"
            )
    first = {split: part for corpus, _ in reversed(mixed) for split, part in corpus.parts.items()}
    shards = [shard for corpus, _ in mixed for shard in corpus.parts["train"].shards]
    train = Split.of(_survey_mixture, partial(_read_mixture, Corpus.pairs), *mixed)
    sample = partial(_read_mixture, Corpus.sample, *mixed)
    train = train._replace(sample=sample, shards=shards)
    return Corpus(name, first | {"train": train}, mixed, mixed[0][0].task)


def _survey_mixture(*mixed: tuple[Corpus, int]) -> str:
    return digest("mixture", *(f"{corpus.fingerprint('train')}*{times}" for corpus, times in mixed))


def _read_mixture(
    read: Callable[[Corpus, str], Iterator[Chunk]], *mixed: tuple[Corpus, int]
) -> Iterator[Chunk]:
    for corpus, times in mixed:
        for _ in range(times):
            yield from read(corpus, "train")


def document_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of text of one language: `train.txt` and so on, or one bundled side.

    See `TaskFacts.corpora`.
    """
    scheme, _, place = name.partition(":")
    if name == _BUNDLED:
        directory, suffix = _BUNDLED_FILES, config.source_language
    elif scheme == "text" and (one_file := text_files.file_splits(place, config, ("text",))):
        return one_file
    elif scheme == "text" and place:
        directory, suffix = text_files.corpus_directory(place), "txt"
    elif (row := added_schemes().get(scheme)) and row.documents and place:
        return _added(row.documents, name, config)
    else:
        raise UserError(
            f"corpus={quote(name)} has no text of one language for data.task={config.task!r}; give "
            "text:DIR with train.txt and dev.txt in DIR, shards:PATTERN, or bundled:"
        )
    splits = {
        split: Split.of(_survey_documents, _read_documents, config.documents, file)
        for split in (*SPLITS, *text_files.other_names(directory, suffix))
        if (file := text_files.find_text(directory, f"{split}.{suffix}"))
    }
    if not splits:
        raise UserError(f"corpus directory {directory} has no train.{suffix} (nor with .gz)")
    return splits


def _survey_documents(how: str, file: text_files.TextFile) -> str:
    return digest("documents", how, file.survey.digest)


def _read_documents(how: str, file: text_files.TextFile) -> Iterator[Chunk]:
    """Yield the documents of a file that are not blank, each beside an empty source."""
    if how == "lines":
        documents = (line for line in file.lines() if line.strip())
    else:
        blocks = groupby(file.lines(), key=lambda line: bool(line.strip()))
        documents = (" ".join(lines) for has_text, lines in blocks if has_text)
    return chunks(("", document) for document in documents)


def _survey_trees(*files: text_files.TextFile) -> str:
    return digest(str(FORMAT_VERSION), *(file.survey.digest for file in files))


def _read_trees(*files: text_files.TextFile) -> Iterator[Chunk]:
    """Yield the cleaned trees of files, each as a line of words and a line of symbols."""
    trees = chain.from_iterable(parse_trees(file.lines(), file.path) for file in files)
    cleaned = map(clean_tree, trees)
    return chunks((" ".join(words), " ".join(symbols)) for words, symbols in cleaned)
