"""Corpora of sentence pairs: the bundled corpus, text files, TFDS data sets, or trees.

For language modeling, documents of one language are the targets of empty sources.

The train split of a mixture repeats each corpus by its weight. Any other split comes from the first
corpus that has one. Text lines stay unchanged, because BLEU compares translations with them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path

from t2t_jax import plugins
from t2t_jax.config import DataConfig, tasks
from t2t_jax.config.corpus_name import BUNDLED, OWN, added_schemes, components_of, unknown_corpus
from t2t_jax.data import text_files
from t2t_jax.data.own import own_splits
from t2t_jax.data.splits import SPLITS, Chunk, Split, chunks, digest, with_dev
from t2t_jax.data.trees import FORMAT_VERSION, clean_tree, parse_trees
from t2t_jax.errors import UserError, quote

_BUNDLED_FILES = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs, or sentences and their trees, in splits."""

    name: str
    """The corpus as the config names it: bundled:, text:DIR, NAME:DIR, tfds:NAME/CONFIG, trees:DIR
    or python:, or a mixture."""
    parts: Mapping[str, Split]
    """The splits of the corpus, by name."""
    components: tuple[tuple["Corpus", int], ...] = ()
    """The corpora of a mixture, and how often its train split repeats each; () for one corpus."""
    task: str = "auto"
    """The field `data.task` of the config."""

    @property
    def facts(self) -> tasks.TaskFacts:
        """Return the properties of the task, such as translation, for which the corpus is read."""
        return tasks.TASKS[tasks.task_name(self.name, self.task)]

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits: train, dev, test and other test sets."""
        return tuple(self.parts)

    def pairs(self, split: str) -> Iterator[Chunk]:
        """Read chunks of unchanged source and target lines, in the order of the corpus."""
        part = self._part(split)
        part.fingerprint()  # checks the files
        return part.read()

    def sample(self, split: str) -> Iterator[Chunk]:
        """Read the pairs for learning a vocabulary: all pairs, or a sample of the shards."""
        part = self._part(split)
        return self.pairs(split) if part.sample is None else part.sample()

    def lines(self, split: str) -> Chunk:
        """Return all source lines and all target lines of a split, unchanged."""
        chunks = [*self.pairs(split)]
        sources = [line for lines, _ in chunks for line in lines]
        return sources, [line for _, lines in chunks for line in lines]

    def first(self, split: str, number: int) -> "Corpus":
        """Return a corpus with only the first `number` pairs of a split."""
        part = self._part(split)

        def read() -> Iterator[Chunk]:
            pairs = chain.from_iterable(zip(*chunk, strict=True) for chunk in part.read())
            return chunks(islice(pairs, number))

        head = Split(lambda: digest("first", str(number), part.fingerprint()), read)
        return replace(self, parts={**self.parts, split: head}, components=())

    def fingerprint(self, split: str) -> str:
        """Return a hash of the content of a split."""
        return self._part(split).fingerprint()

    def _part(self, split: str) -> Split:
        if split not in self.parts:
            raise UserError(
                f"corpus {self.name} has no {split} split, only {', '.join(self.parts)}"
            )
        return self.parts[split]


def open_corpus(config: DataConfig, data: object = None) -> Corpus:
    """Open and check the corpus that `config.corpus` names, without reading it into memory.

    Args:
      data: the corpus that a program gives instead, as `data.own` describes it.
    """
    components = components_of(config.corpus)
    is_mixture = len(components) > 1
    if config.dev_lines and is_mixture:
        raise UserError(
            f"data.dev_lines={config.dev_lines} is for one corpus, but {config.corpus} is a "
            "mixture; give its first corpus a dev split, and leave data.dev_lines out"
        )
    if data is not None:
        return replace(own_corpus(data, config), task=config.task)
    if config.corpus == OWN:
        raise UserError(
            f"data.corpus={OWN!r} is the data of a Python program; give the same data to t2t_jax."
            "train(config, workdir, data=...) or t2t_jax.evaluate(translator, data), or name a "
            "corpus such as text:DIR (--data.corpus, or --corpus of t2t-jax evaluate)"
        )
    corpora = tuple((_open(name, config), weight) for name, weight in components)
    first, weight = corpora[0]
    return _mixture(config.corpus, *corpora) if is_mixture or weight > 1 else first


def own_corpus(data: object, config: DataConfig, split: str = "train") -> Corpus:
    """Return the corpus of data from Python, which is checked, but not read into memory.

    Args:
      data: a `Corpus`, which is returned unchanged, or data as `data.own` describes it.
      split: the name of the split if `data` is one sequence; "dev" is a part of it if
        `config.dev_lines` is set.
    """
    if isinstance(data, Corpus):
        return data
    # With `dev_lines`, one sequence has the pairs of train and dev, as in training.
    parts = own_splits(data, config, "train" if config.dev_lines and split == "dev" else split)
    task = tasks.task_name(config.corpus, config.task)
    return _make_corpus(OWN, parts, config.dev_lines if "train" in parts else 0, task)


def _open(name: str, config: DataConfig) -> Corpus:
    facts = tasks.TASKS[tasks.task_name(name, config.task)]
    parts: dict[str, Split] = plugins.load(facts.corpora)(name, config)
    return _make_corpus(name, parts, config.dev_lines, config.task)


def _make_corpus(name: str, parts: dict[str, Split], dev_lines: int, task: str) -> Corpus:
    if dev_lines:
        parts = with_dev(name, parts, dev_lines)
    for split in SPLITS:  # other test sets may be large, and are checked when they are read
        if split in parts:
            parts[split].fingerprint()
    return Corpus(name, parts, task=task)


def pair_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of a corpus of parallel text, such as `text:DIR`, by name."""
    scheme, _, path = name.partition(":")
    languages = config.source_language, config.target_language
    if name == BUNDLED:
        return text_files.text_splits(_BUNDLED_FILES, *languages)
    if scheme == "text" and path:
        return text_files.file_splits(path, config, languages) or text_files.text_splits(
            text_files.corpus_directory(path), *languages
        )
    if (provider := added_schemes().get(scheme)) and path:
        return plugins.load(provider.pairs)(name, config)
    raise unknown_corpus(name)


def tree_splits(corpus_name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of sentences and their trees, such as `trees:DIR`, by name."""
    paths = corpus_name.partition(":")[2].split("+")
    if not all(paths):
        raise unknown_corpus(corpus_name)
    main_dir, *train_directories = map(text_files.corpus_directory, paths)
    files = {
        name: [file] for name in SPLITS if (file := text_files.find_text(main_dir, f"{name}.mrg"))
    }
    for directory in train_directories:
        file = text_files.find_text(directory, "train.mrg")
        if file is None:
            raise UserError(f"corpus directory {directory} has no train.mrg (nor train.mrg.gz)")
        files.setdefault("train", []).append(file)
    if not files:
        raise UserError(
            f"corpus directory {main_dir} has no train.mrg, dev.mrg or test.mrg (nor with .gz)"
        )
    return {
        name: Split.of(_survey_trees, _read_trees, *files[name]) for name in SPLITS if name in files
    }


def _mixture(name: str, *corpora: tuple[Corpus, int]) -> Corpus:
    for corpus, _ in corpora:
        if "train" not in corpus.parts:
            raise UserError(
                f"corpus {corpus.name} has no train split to mix, only {', '.join(corpus.parts)}; "
                f"leave it out of {name}"
            )
    # Of each split, the first corpus that has it comes last, and overwrites the others.
    parts = {split: part for corpus, _ in reversed(corpora) for split, part in corpus.parts.items()}
    shards = [shard for corpus, _ in corpora for shard in corpus.parts["train"].shards]
    train = Split.of(_survey_mixture, partial(_read_mixture, Corpus.pairs), *corpora)
    sample = partial(_read_mixture, Corpus.sample, *corpora)
    train = train._replace(sample=sample, shards=shards)
    return Corpus(name, parts | {"train": train}, corpora, corpora[0][0].task)


def _survey_mixture(*corpora: tuple[Corpus, int]) -> str:
    return digest("mixture", *(f"{corpus.fingerprint('train')}*{n}" for corpus, n in corpora))


def _read_mixture(
    read: Callable[[Corpus, str], Iterator[Chunk]], *corpora: tuple[Corpus, int]
) -> Iterator[Chunk]:
    for corpus, times in corpora:
        for _ in range(times):
            yield from read(corpus, "train")


def document_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of text of one language, such as `text:DIR`, by name.

    `bundled:` reads the source side of the bundled corpus.
    """
    scheme, _, path = name.partition(":")
    if name == BUNDLED:
        directory, suffix = _BUNDLED_FILES, config.source_language
    elif scheme == "text" and (file_splits := text_files.file_splits(path, config, ("text",))):
        return file_splits
    elif scheme == "text" and path:
        directory, suffix = text_files.corpus_directory(path), "txt"
    elif (provider := added_schemes().get(scheme)) and provider.documents and path:
        return plugins.load(provider.documents)(name, config)
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


def _survey_documents(unit: str, file: text_files.TextFile) -> str:
    return digest("documents", unit, file.survey.digest)


def _read_documents(unit: str, file: text_files.TextFile) -> Iterator[Chunk]:
    """Yield the documents of a file that are not blank, each with an empty source.

    Args:
      unit: whether "lines" or "paragraphs" are documents.
    """
    if unit == "lines":
        documents = (line for line in file.lines() if line.strip())
    else:
        # A paragraph is a block of lines between blank lines.
        blocks = groupby(file.lines(), key=lambda line: bool(line.strip()))
        documents = (" ".join(lines) for has_text, lines in blocks if has_text)
    return chunks(("", document) for document in documents)


def _survey_trees(*files: text_files.TextFile) -> str:
    return digest(str(FORMAT_VERSION), *(file.survey.digest for file in files))


def _read_trees(*files: text_files.TextFile) -> Iterator[Chunk]:
    """Yield the trees of files: lines of words as sources, lines of their symbols as targets."""
    trees = chain.from_iterable(parse_trees(file.lines(), file.path) for file in files)
    lines = ((" ".join(words), " ".join(symbols)) for words, symbols in map(clean_tree, trees))
    return chunks(lines)
